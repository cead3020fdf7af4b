"""The journal: one JSON line a picture, written ahead of the result; runs are resumed and audited by it.

A line is appended after the result is encoded and before it takes its final name. Wherever a run is killed,
the line then names a result that is there whole, or one that is not there and is made again. Which of the
two is told by the size, and for the last lines, where the kill may have struck, by the hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TextIO

from deblur.batch.files import reason
from deblur.errors import OutputError

FILE_NAME = "deblur-journal.jsonl"
_SYNC_EVERY_S = 1.0
_TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape"}  # names need not be UTF-8
_CHECKED_BY_HASH = 256  # more than the pictures that are ever being written at once


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What happened to one picture.

    Attributes:
        key: As in `Job`.
        source: Path of the input.
        output: Path of the result below the output folder; "" where there is none.
        status: "restored", "unchanged" (the result holds the same picture) or "failed".
        input_sha256: Of the file's content; "" where it could not be read.
        input_bytes: Size.
        input_mtime_ns: Time of modification.
        output_sha256: Of the result.
        output_bytes: Size of the result.
        faces_before: Faces found in the input.
        faces_after: Faces found in the result.
        confidence_before: Mean detection score in the input, 0 without a face.
        confidence_after: Mean detection score in the result, 0 without a face.
        seconds: Work spent on the picture, waiting left out.
        weights: Name of the weights.
        weights_sha256: Hash of the weights.
        settings: What else decides the result: mode, format, quality.
        warnings: What the user should know of this picture.
        error: Why it failed; "" otherwise.
        finished: UTC, ISO 8601.
    """

    key: str
    source: str
    output: str = ""
    status: str = "failed"
    input_sha256: str = ""
    input_bytes: int = 0
    input_mtime_ns: int = 0
    output_sha256: str = ""
    output_bytes: int = 0
    faces_before: int = 0
    faces_after: int = 0
    confidence_before: float = 0.0
    confidence_after: float = 0.0
    seconds: float = 0.0
    weights: str = ""
    weights_sha256: str = ""
    settings: str = ""
    warnings: tuple[str, ...] = ()
    error: str = ""
    finished: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether there is a result."""
        return self.status in ("restored", "unchanged")

    def to_json(self) -> dict[str, Any]:
        """Plain values, as in the journal."""
        return asdict(self)


_FIELDS = {entry_field.name for entry_field in fields(Entry)}


def now() -> str:
    """The time in UTC, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Journal:
    """The journals of an output folder: reads all of them, appends to one.

    Args:
        folder: The output folder.
        shard: (i, n). Each shard appends to a file of its own, so that many machines can share a folder.
        read_only: Take no lock and make no file.

    Raises:
        OutputError: The file cannot be opened, or another run is at work on it.
    """

    def __init__(self, folder: Path, shard: tuple[int, int] = (1, 1), *, read_only: bool = False):
        own = FILE_NAME if shard[1] == 1 else f"deblur-journal.{shard[0]}-of-{shard[1]}.jsonl"
        self.folder = folder
        self.path = folder / own
        self._stream: TextIO | None = None if read_only else self._open()
        self._lock = threading.Lock()
        self._synced = time.monotonic()
        self.latest: dict[str, Entry] = {}
        self._uncertain: set[str] = set()
        for path in sorted(folder.glob("deblur-journal*.jsonl")):
            self._read(path)

    def _open(self) -> TextIO:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            stream = self.path.open("a+", **_TEXT)
            _lock_or_refuse(stream, self.path)
            _end_last_line(self.path, stream)
        except OSError as error:
            raise OutputError(f"{self.path}: the journal cannot be written: {reason(error)}") from error
        return stream

    def _read(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError), path.open(**_TEXT) as stream:
            entries = [entry for entry in map(parse, stream) if entry is not None]
            for entry in entries:
                before = self.latest.get(entry.key)
                if before is None or entry.finished >= before.finished:
                    self.latest[entry.key] = entry
            self._uncertain.update(entry.key for entry in entries[-_CHECKED_BY_HASH:])

    def outputs(self) -> dict[str, str]:
        """Output by key, of every picture that ever got one."""
        return {entry.key: entry.output for entry in self.latest.values() if entry.output}

    def append(self, entry: Entry) -> None:
        """Adds a line.

        Raises:
            OutputError: It cannot be written.
        """
        line = json.dumps(entry.to_json(), ensure_ascii=False) + "\n"
        with self._lock:
            assert self._stream is not None, "opened read-only"
            try:
                self._stream.write(line)
                self._stream.flush()
                if time.monotonic() - self._synced > _SYNC_EVERY_S:
                    self.sync()
            except OSError as error:
                raise OutputError(f"{self.path}: the journal cannot be written: {reason(error)}") from error
            self.latest[entry.key] = entry
            self._uncertain.discard(entry.key)

    def sync(self) -> None:
        """Sees the lines written so far to the disk."""
        if self._stream is not None and not self._stream.closed:
            os.fsync(self._stream.fileno())
            self._synced = time.monotonic()

    def has_result(self, entry: Entry) -> bool:
        """Whether the result that an entry names is there, whole."""
        path = self.folder / entry.output
        try:
            if not entry.succeeded or path.stat().st_size != entry.output_bytes:
                return False
            if entry.key in self._uncertain:
                if hashlib.sha256(path.read_bytes()).hexdigest() != entry.output_sha256:
                    return False
                self._uncertain.discard(entry.key)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Syncs and closes the file."""
        if self._stream is not None and not self._stream.closed:
            with contextlib.suppress(OSError):
                self.sync()
            with contextlib.suppress(OSError):
                self._stream.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def parse(line: str) -> Entry | None:
    """An entry from a line; None where the line was cut short or is of another kind."""
    try:
        values = json.loads(line)
        known = {name: value for name, value in values.items() if name in _FIELDS}
        known["warnings"] = tuple(known.get("warnings", ()))
        return Entry(**known)
    except (ValueError, TypeError, AttributeError):
        return None


def read_entries(lines: Iterable[str]) -> list[Entry]:
    """All entries of a journal, in order, damaged lines left out."""
    return [entry for entry in map(parse, lines) if entry is not None]


def _lock_or_refuse(stream: TextIO, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: two runs on one folder are up to the user there
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        stream.close()
        raise OutputError(
            f"{path.parent}: another run is at work on this output folder (its journal is locked). "
            "Wait for it, or split the work with --shard i/n"
        ) from error
    except OSError:  # a file system without locks
        return


def _end_last_line(path: Path, stream: TextIO) -> None:
    """A line that a kill cut short must not swallow the next one."""
    with path.open("rb") as raw:
        raw.seek(0, os.SEEK_END)
        if raw.tell():
            raw.seek(-1, os.SEEK_END)
            if raw.read(1) != b"\n":
                stream.write("\n")
                stream.flush()
