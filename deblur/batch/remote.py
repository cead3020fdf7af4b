"""Files that any machine of a cluster can reach: URIs, WebDataset shards, and the journal as Parquet."""

from __future__ import annotations

import io
import posixpath
import tarfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from deblur.batch.journal import Entry
from deblur.batch.pipeline import Settings
from deblur.batch.plan import SUFFIXES, Found, Job, Names, check_inputs_are_kept, find_jobs
from deblur.batch.runner import Options
from deblur.batch.stores import LocalStore, Times
from deblur.errors import ImageError, ImageTooLarge, OutputError
from deblur.images import Limits

JOURNAL_FOLDER = "deblur-journal"
SHARD_SUFFIX = ".tar"
_URI_CHARACTERS = "%/:?#[]@!$&'()*+,;="  # what is escaped already stays; spaces and letters beyond ASCII are escaped


def is_uri(path: str) -> bool:
    """Whether a path is a URI such as `s3://bucket/folder`."""
    return "://" in path


def is_shard(path: str) -> bool:
    """Whether a path is a WebDataset shard."""
    return path.lower().endswith(SHARD_SUFFIX)


def as_source(path: str) -> Any:
    """A path for this machine, or the URI as it is (a Path would fold its slashes)."""
    return path if is_uri(path) else Path(path)


def file_system(path: str) -> tuple[Any, str]:
    """pyarrow's file system for a path or URI, and the path in it.

    Raises:
        OutputError: pyarrow knows no such file system.
    """
    from pyarrow import ArrowException, fs

    try:
        if is_uri(path):
            return fs.FileSystem.from_uri(quote(path, safe=_URI_CHARACTERS))
        return fs.LocalFileSystem(), str(Path(path).absolute())
    except (ArrowException, OSError, ValueError) as error:
        raise OutputError(f"{path}: {error}") from error


class UriStore:
    """Reads any path or URI, writes below a URI. An object appears when it is whole."""

    def __init__(self, root: str):
        self.root = root
        self._system, self._path = file_system(root)

    def read(self, source: Path | str, limits: Limits) -> tuple[bytes, Times | None]:
        """Content and times of an input."""
        if not is_uri(str(source)):
            source = str(Path(source).absolute())
        system, path = file_system(str(source))
        try:
            information = system.get_file_info(path)
            if (information.size or 0) > limits.max_bytes:
                raise ImageTooLarge(f"{source}: more than the {limits.max_bytes} bytes allowed")
            with system.open_input_stream(path) as stream:
                content = stream.read()
        except OSError as error:
            raise ImageError(f"{source}: cannot be read ({error})") from error
        modified = information.mtime_ns or 0
        return content, (modified, modified)

    def exists(self, output: str) -> bool:
        """Whether a result of that name is there."""
        info = self._system.get_file_info(posixpath.join(self._path, output))
        return bool(info.type.name != "NotFound")

    def write(self, output: str, content: bytes, times_ns: Times | None) -> None:
        """Writes a result; object stores keep no times of ours."""
        path = posixpath.join(self._path, output)
        try:
            self._system.create_dir(posixpath.dirname(path), recursive=True)
            with self._system.open_output_stream(path) as stream:
                stream.write(content)
        except OSError as error:
            raise OutputError(f"{self.root}/{output}: cannot be written: {error}") from error


class _LocalFolder(LocalStore):
    """Results below a folder of this machine, inputs from anywhere."""

    def read(self, source: Path | str, limits: Limits) -> tuple[bytes, Times | None]:
        """Content and times of an input."""
        return UriStore(str(source)).read(source, limits) if is_uri(str(source)) else super().read(source, limits)


def store_for(output: str) -> Any:
    """The store that writes below a folder or URI."""
    return UriStore(output) if is_uri(output) else _LocalFolder(Path(output))


class ShardStore:
    """One WebDataset shard in, one out: members in their order, those that are no pictures or fail as they were."""

    def __init__(self, source: str, target: Any, output: str):
        self._target = target
        self._output = output
        content, self.times_ns = UriStore(source).read(source, Limits(max_bytes=1 << 40))
        self.size = len(content)
        try:
            with tarfile.open(fileobj=io.BytesIO(content)) as shard:
                self._members = [(member, _data(shard, member)) for member in shard]
        except tarfile.TarError as error:
            raise ImageError(f"{source}: not a tar file ({error})") from error
        self._by_name = {str(Path(member.name)): data for member, data in self._members if member.isfile()}
        self._sources: dict[str, str] = {}
        self._results: dict[str, tuple[str, bytes]] = {}

    def jobs(self, format: str | None) -> list[Job]:
        """A job for each picture in the shard."""
        names = Names({}, format)
        pictures = [name for name in self._by_name if posixpath.splitext(name)[1].lower() in SUFFIXES]
        pictures.sort(key=lambda name: not names.fits(name))
        self._sources = {names.claim(name, name): name for name in pictures}
        return [Job(key=name, source=Path(name), output=output) for output, name in self._sources.items()]

    def read(self, source: Path | str, limits: Limits) -> tuple[bytes, Times | None]:
        """Content of a member."""
        content = self._by_name[str(source)]
        if len(content) > limits.max_bytes:
            raise ImageTooLarge(f"{source}: more than the {limits.max_bytes} bytes allowed")
        return content, None

    def exists(self, output: str) -> bool:
        """Never: the shard is written as a whole."""
        return False

    def write(self, output: str, content: bytes, times_ns: Times | None) -> None:
        """Keeps the result of a member until `close`."""
        # A picture that had to become PNG has one suffix more than was planned.
        source = self._sources.get(output) or self._sources[posixpath.splitext(output)[0]]
        self._results[source] = (output, content)

    def close(self) -> None:
        """Writes the shard."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as shard:
            for member, data in self._members:
                name, content = self._results.get(str(Path(member.name)), (member.name, data))
                member.name, member.size = name, len(content)
                member.pax_headers = {}
                shard.addfile(member, io.BytesIO(content))
        self._target.write(self._output, stream.getvalue(), self.times_ns)


def _data(shard: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = shard.extractfile(member) if member.isfile() else None
    return stream.read() if stream else b""


class ParquetJournal:
    """Journal of a run on many machines: `deblur-journal/rows-*.parquet`, one row a picture, as in `Entry`.

    `plan-*.parquet` lists what a run set out to write, so that results without a row are known as our own.

    Args:
        output: Output folder or URI.
    """

    def __init__(self, output: str):
        self.output = output
        self._system, root = file_system(output)
        self._folder = posixpath.join(root, JOURNAL_FOLDER)
        self.latest: dict[str, Entry] = {}
        self._own: set[tuple[str, str]] = set()
        for path in self._files():
            self._read(path)

    def _files(self) -> list[str]:
        from pyarrow import fs

        found = self._system.get_file_info(fs.FileSelector(self._folder, allow_not_found=True))
        return sorted(info.path for info in found if info.path.endswith(".parquet"))

    def _read(self, path: str) -> None:
        import pyarrow.parquet as parquet

        rows = parquet.read_table(path, filesystem=self._system).to_pylist()
        if posixpath.basename(path).startswith("plan-"):
            self._own.update((row["key"], row["output"]) for row in rows)
            return
        for row in rows:
            entry = Entry(**{**row, "warnings": tuple(row["warnings"])})
            before = self.latest.get(entry.key)
            if before is None or entry.finished >= before.finished:
                self.latest[entry.key] = entry

    def outputs(self) -> dict[str, str]:
        """Output by key, of every picture that was planned or written."""
        return {**dict(self._own), **{entry.key: entry.output for entry in self.latest.values() if entry.output}}

    def is_own(self, job: Job) -> bool:
        """Whether a run of ours wrote, or set out to write, this output."""
        return (job.key, job.output) in self._own

    def is_done(self, job: Job, settings: Settings, weights_sha256: str) -> bool:
        """Whether an earlier run left the result of this input, as far as size and time tell."""
        entry = self.latest.get(job.key)
        if entry is None or entry.status == "failed" or entry.weights_sha256 != weights_sha256:
            return False
        if entry.settings != settings.fingerprint or not store_for(self.output).exists(entry.output):
            return False
        system, path = file_system(str(job.source))
        info = system.get_file_info(path)
        return (info.size, info.mtime_ns or 0) == (entry.input_bytes, entry.input_mtime_ns)

    def write_plan(self, jobs: Sequence[Job]) -> None:
        """Writes down what is going to be written."""
        self._write("plan", [{"key": job.key, "output": job.output} for job in jobs])

    def write_rows(self, entries: Sequence[Entry]) -> None:
        """Writes rows of pictures that are done with."""
        self._write("rows", [{**entry.to_json(), "warnings": list(entry.warnings)} for entry in entries])

    def _write(self, kind: str, rows: list[dict[str, Any]]) -> None:
        import pyarrow
        import pyarrow.parquet as parquet

        table = pyarrow.Table.from_pylist(rows)
        if "warnings" in table.column_names:
            column = pyarrow.array([row["warnings"] for row in rows], pyarrow.list_(pyarrow.string()))
            table = table.set_column(table.column_names.index("warnings"), "warnings", column)
        sink = pyarrow.BufferOutputStream()
        parquet.write_table(table, sink)
        name = f"{kind}-{time.time_ns()}-{uuid.uuid4().hex[:8]}.parquet"
        store_for(self.output).write(f"{JOURNAL_FOLDER}/{name}", sink.getvalue().to_pybytes(), None)


def scan(inputs: Sequence[str], output: str, options: Options, journal: ParquetJournal) -> Found:
    """Finds pictures and shards below local folders and URIs, and names their results.

    Raises:
        OptionError: A result would replace an original.
    """
    local = [Path(path) for path in inputs if not is_uri(path) and not is_shard(path)]
    taken, format = journal.outputs(), options.settings.format
    found = find_jobs(local, Path(output), format=format, selection=options.selection, taken=taken)
    if not is_uri(output):
        check_inputs_are_kept(found.jobs, Path(output), options.settings.overwrite)
    for path in inputs:
        if not is_uri(path) and is_shard(path):
            _add(found, str(Path(path).absolute()), Path(path).name, taken, options)
        elif is_uri(path):
            for uri, relative in _listed(path, found):
                label = f"{posixpath.basename(path.rstrip('/'))}/" if len(inputs) > 1 else ""
                if options.selection.takes(relative):
                    _add(found, uri, label + relative, taken, options)
    return found


def _add(found: Found, source: str, wanted: str, taken: dict[str, str], options: Options) -> None:
    if is_shard(wanted):
        output = taken.get(source) or found.names.claim_as(PurePosixPath(wanted), None)
    else:
        output = found.names.claim(source, wanted)
    if options.selection.holds(source):
        found.jobs.append(Job(key=source, source=as_source(source), output=output))


def _listed(uri: str, found: Found) -> Iterator[tuple[str, str]]:
    """(URI, path below) of the pictures and shards at a URI."""
    from pyarrow import fs

    system, root = file_system(uri)
    scheme = uri[: uri.index("://") + 3]
    info = system.get_file_info(root)
    if info.type.name == "NotFound":
        found.problems.append((uri, "no such file or folder"))
        return
    if info.type.name == "File":
        yield uri, posixpath.basename(root)
        return
    for item in sorted(system.get_file_info(fs.FileSelector(root, recursive=True)), key=lambda item: str(item.path)):
        relative = item.path[len(root.rstrip("/")) + 1 :]
        if item.type.name != "File" or any(part.startswith(".") for part in relative.split("/")):
            continue
        if posixpath.splitext(relative)[1].lower() in SUFFIXES or is_shard(relative):
            yield scheme + quote(item.path, safe="/"), relative
        else:
            found.ignore("not pictures by their names")
