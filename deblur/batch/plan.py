"""What is to be restored, and under which name each result goes: decided before any picture is opened."""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import os
import threading
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from deblur.errors import OptionError

_SUFFIX_OF = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png", ".apng"),
    "WEBP": (".webp",),
    "TIFF": (".tif", ".tiff"),
    "AVIF": (".avif",),
    "HEIF": (".heic", ".heif", ".hif"),
    "BMP": (".bmp", ".dib"),
    "PPM": (".ppm", ".pgm", ".pnm", ".pbm"),
}
SUFFIXES = frozenset([".gif", *(suffix for suffixes in _SUFFIX_OF.values() for suffix in suffixes)])
OWN_PREFIX = "deblur-"  # journal, report and comparisons in the output folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One picture to restore.

    Attributes:
        key: What the picture is called in the journal: its path below the folder that was given, or its
        full path
            where the file itself was given.
        source: The picture.
        output: Path of the result, below the output folder; "/" between parts.
    """

    key: str
    source: Path
    output: str


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which files of a folder are taken.

    Attributes:
        recursive: Whether to go into folders. include: Globs; when there are any, a file must match one. A
        glob is tried on the name and on the path below
            the folder given; `*` matches `/` too; upper and lower case are the same.
        exclude: Globs of files to leave out.
        shard: (i, n): the i-th of n parts, counted from 1.
    """

    recursive: bool = True
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    shard: tuple[int, int] = (1, 1)

    def takes(self, relative: str) -> bool:
        """Whether the globs let a file through."""
        path = relative.lower()
        name = path.rsplit("/", 1)[-1]

        def matches(globs: tuple[str, ...]) -> bool:
            return any(
                fnmatch.fnmatchcase(path, glob.lower()) or fnmatch.fnmatchcase(name, glob.lower()) for glob in globs
            )

        return (not self.include or matches(self.include)) and not matches(self.exclude)

    def holds(self, key: str) -> bool:
        """Whether a picture belongs to this shard. It does not depend on which other pictures there are."""
        index, count = self.shard
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        return int.from_bytes(digest[:8], "big") % count == index - 1


@dataclass(kw_only=True)
class Found:
    """What a scan came to.

    Attributes:
        jobs: In the order of their keys within each input.
        ignored: Counts of files left out, by reason.
        problems: (path, reason) of inputs and folders that could not be read.
        names: Gives out further names that collide with none of these.
    """

    jobs: list[Job] = field(default_factory=list)
    ignored: dict[str, int] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    names: Names = field(default_factory=lambda: Names({}, None))

    def ignore(self, why: str) -> None:
        """Counts a file that is left out."""
        self.ignored[why] = self.ignored.get(why, 0) + 1


def find_jobs(
    inputs: Collection[Path],
    output: Path,
    *,
    format: str | None = None,
    selection: Selection | None = None,
    taken: Mapping[str, str] | None = None,
) -> Found:
    """Finds the pictures and gives each an output of its own.

    A single folder is mirrored below the output folder. Several inputs go side by side: a folder under its
    own name, a file under its name. Names are unique without regard to case or Unicode form, so that the
    result can be copied to any file system. The output folder itself, and what earlier runs wrote, is never
    an input.

    Args:
        inputs: Files and folders.
        output: Output folder.
        format: Family to write ("PNG", ...), or None to keep each picture's own.
        selection: Which files to take.
        taken: Outputs of earlier runs by key; they are kept, so that new files never rename old results.

    Returns:
        All jobs of this shard. Their order and names depend on nothing but the files and `taken`.
    """
    selection = selection or Selection()
    names = Names(taken or {}, format)
    found = Found(names=names)
    candidates = list(_candidates(inputs, output, selection, taken or {}, found))
    # Files that need no new suffix come first: a.png stays a.png even where a.jpg becomes a PNG beside it.
    outputs: dict[str, str] = {}
    for key, _, wanted in sorted(candidates, key=lambda item: not names.fits(item[2])):
        outputs[key] = names.claim(key, wanted)
    for key, source, _ in candidates:
        if selection.holds(key):
            found.jobs.append(Job(key=key, source=source, output=outputs[key]))
    return found


def _candidates(
    inputs: Collection[Path], output: Path, selection: Selection, taken: Mapping[str, str], found: Found
) -> Iterator[tuple[str, Path, str]]:
    """(key, path, wanted output) of all pictures of all shards."""
    here = _real(output)
    written = {os.path.join(here, path) for path in taken.values()}  # noqa: PTH118 (millions of them)
    roots = _labels(inputs)
    for path, label in roots:
        if not path.exists() and not path.is_symlink():
            found.problems.append((str(path), "no such file or folder"))
        elif not path.is_dir():
            yield str(path.absolute()), path, label
        else:
            prefix = f"{label}/" if len(roots) > 1 else ""
            for relative, source in _walk(path, here, selection, found):
                key = prefix + relative
                if _real(source) in written and key not in taken:
                    found.ignore("written by an earlier run")
                else:
                    yield key, source, key


def _labels(inputs: Collection[Path]) -> list[tuple[Path, str]]:
    """Each input once, with the name it goes under."""
    labelled: list[tuple[Path, str]] = []
    seen: set[str] = set()
    for path in inputs:
        real = _real(path)
        if real not in seen:
            seen.add(real)
            labelled.append((path, path.name or path.resolve().name or "root"))
    used: dict[str, int] = {}
    result = []
    for path, label in labelled:
        count = used[_folded(label)] = used.get(_folded(label), 0) + 1
        result.append((path, label if count == 1 or not path.is_dir() else f"{label}~{count}"))
    return result


def _real(path: Path) -> str:
    return os.path.realpath(path)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _walk(root: Path, output: str, selection: Selection, found: Found) -> Iterator[tuple[str, Path]]:
    """(relative path, path) of the pictures below a folder, each real folder once, links last."""
    visited: set[str] = set()
    folders: list[tuple[Path, str]] = [(root, "")]
    links: list[tuple[Path, str]] = []
    while folders or links:
        folder, relative = folders.pop() if folders else links.pop(0)
        real = _real(folder)
        if real in visited or (real == output and relative):
            continue
        visited.add(real)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            found.problems.append((str(folder), f"the folder cannot be read: {error.strerror}"))
            continue
        below: list[tuple[Path, str]] = []
        for entry in entries:
            path = f"{relative}{entry.name}"
            if _is_folder(entry):
                if not selection.recursive or entry.name.startswith("."):
                    found.ignore("in folders left out")
                elif not (real == output and entry.name.startswith(OWN_PREFIX)):
                    (links if entry.is_symlink() else below).append((Path(entry.path), path + "/"))
            elif _is_picture(entry, path, real == output, selection, found):
                yield path, Path(entry.path)
        folders.extend(reversed(below))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_picture(entry: os.DirEntry[str], path: str, at_output: bool, selection: Selection, found: Found) -> bool:
    if at_output and entry.name.startswith(OWN_PREFIX):
        return False
    if entry.name.startswith("."):
        found.ignore("hidden")
        return False
    if Path(entry.name).suffix.lower() not in SUFFIXES:
        found.ignore("not pictures by their names")
        return False
    if not selection.takes(path):
        found.ignore("left out by include or exclude")
        return False
    try:
        # A link that leads nowhere is a picture that cannot be read: it is reported, not passed over.
        regular = entry.is_file() or not os.path.exists(entry.path)  # noqa: PTH110
    except OSError:
        regular = True
    if not regular:
        found.ignore("no regular files")
    return regular


class Names:
    """Gives out output names, each once.

    Args:
        taken: Outputs of earlier runs by key.
        format: Family that is written, or None to keep each picture's own.
    """

    def __init__(self, taken: Mapping[str, str], format: str | None):
        self._taken = taken
        self._format = format
        self._used = {_folded(output) for output in taken.values()}
        self._lock = threading.Lock()

    def fits(self, wanted: str) -> bool:
        """Whether a name needs no other suffix."""
        return self._format is None or suffix_fits(wanted, self._format)

    def claim(self, key: str, wanted: str) -> str:
        """A name for a picture: the one it had before, or `wanted` with the suffix of the format."""
        path = PurePosixPath(wanted)
        before = self._taken.get(key)
        if before is not None and _may_stay(before, path, self._format):
            return before
        return self.claim_as(path, self._format)

    def claim_as(self, path: PurePosixPath, family: str | None) -> str:
        """A new name like `path` whose suffix stands for the family."""
        with self._lock:
            for candidate in _name_candidates(path, family):
                if _folded(candidate) not in self._used:
                    self._used.add(_folded(candidate))
                    return candidate
        raise AssertionError("the candidates have no end")


def _may_stay(before: str, wanted: PurePosixPath, family: str | None) -> bool:
    if family is not None:
        return suffix_fits(before, family)
    suffix = PurePosixPath(before).suffix.lower()
    return suffix == wanted.suffix.lower() or before.startswith(str(wanted) + ".")


def _name_candidates(path: PurePosixPath, family: str | None) -> Iterator[str]:
    name = path.name
    if family is not None and not suffix_fits(name, family):
        yield str(path.with_name(path.stem + _SUFFIX_OF[family][0]))
        name += _SUFFIX_OF[family][0]
    yield str(path.with_name(name))
    stem, ending = name.rsplit(".", 1) if "." in name else (name, "")
    number = 2
    while True:
        yield str(path.with_name(f"{stem}~{number}" + (f".{ending}" if ending else "")))
        number += 1


def check_inputs_are_kept(jobs: Collection[Job], output: Path, overwrite: bool) -> None:
    """Refuses to replace an original, unless that was asked for.

    Raises:
        OptionError: A result would take the place of an input.
    """
    here = _real(output) + os.sep
    sources = {real for job in jobs for real in _places(job.source) if real.startswith(here)}
    if overwrite or not sources:
        return
    for job in jobs:
        if sources.intersection(_places(output / job.output)):
            raise OptionError(
                f"{job.source}: the result would replace an original. Give another output folder with -o, or "
                "--overwrite to restore in place"
            )


@functools.lru_cache(maxsize=4096)
def _real_folder(folder: Path) -> str:
    return os.path.realpath(folder)


def _places(source: Path) -> tuple[str, ...]:
    """Where a file's name is, and where a link leads."""
    named = os.path.join(_real_folder(source.parent), source.name)  # noqa: PTH118
    return (named, _real(source)) if source.is_symlink() else (named,)


def suffix_fits(name: str, family: str) -> bool:
    """Whether a file name may stand for a format."""
    return Path(name).suffix.lower() in _SUFFIX_OF.get(family, ())
