"""Where sharp faces come from: a folder, a CelebA root, a zip or a tar, all read by name."""

import os
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from deblur.errors import DataError, OptionError

SPLITS = {"train": "0", "valid": "1", "test": "2"}
_SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".avif", ".heic", ".heif", ".ppm", ".pgm", ".gif")
)
_CELEBA_FOLDER, _CELEBA_ZIP = "img_align_celeba", "img_align_celeba.zip"
_CELEBA_SPLITS = "list_eval_partition.txt"
_HOW_CELEBA = (
    f'CelebA is to be downloaded by hand: {_CELEBA_ZIP} (1.3 GB, "Align&Cropped Images") and {_CELEBA_SPLITS} from '
    "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html; put both into one folder, packed as they are, and name that"
)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Source pictures in a fixed order; pickles to worker processes.

    Attributes:
        root: Folder, zip or tar file.
        names: Paths below the root, "/" between parts, sorted.
    """

    root: Path
    names: tuple[str, ...]
    _archives: dict[int, "_Archive"] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, object]:
        return {"root": self.root, "names": self.names, "_archives": {}}

    def read(self, name: str) -> bytes:
        """The file's content.

        Raises:
            OSError: It cannot be read.
            DataError: It cannot be taken out of the archive.
        """
        if self.root.is_dir():
            return (self.root / name).read_bytes()
        archive = self._archives.get(os.getpid())
        if archive is None:
            archive = self._archives[os.getpid()] = _open_archive(self.root)
        try:
            return archive.read(name)
        except (zipfile.BadZipFile, KeyError, RuntimeError, NotImplementedError) as error:
            raise DataError(f"{self.root}: cannot take out {name}: {error}") from error


def open_sources(faces: Path, split: str = "train", exclude: Path | None = None) -> Sources:
    """Lists the pictures of a data set.

    Args:
        faces: A folder (searched to any depth, hidden names and symbolic links to folders left out), a CelebA
            root as torchvision lays it out (its partition file is honoured, its zip need not be unpacked), a
            zip or uncompressed tar of pictures, or a folder that holds nothing but one of these.
        split: Part of CelebA: train, valid, test or all. Other sets have no parts and are taken whole.
        exclude: A folder below that is left out: the output of an earlier run.

    Raises:
        DataError: There is no such path, no picture in it, or the archive is none.
        OptionError: No such split.
    """
    if split != "all" and split not in SPLITS:
        raise OptionError(f"split: expected all or one of {', '.join(SPLITS)}, got {split!r}")
    if not faces.exists():
        raise DataError(f"{faces}: expected a folder, zip or tar of face pictures, found nothing there. {_HOW_CELEBA}")
    root, partition = _locate(faces)
    if root.is_file():
        names = [name for name in _open_archive(root).names() if _is_picture(name)]
    elif partition:
        names = [
            f"{_CELEBA_FOLDER}/{path.name}" for path in (root / _CELEBA_FOLDER).iterdir() if _is_picture(path.name)
        ]
    else:
        names = list(_in_folder(root, exclude))
    if partition and split != "all":
        wanted = _members(partition, split)
        names = [name for name in names if name.rpartition("/")[2] in wanted]
    if not names:
        part = f" of the {split} part that {partition.name} names" if partition and split != "all" else ""
        raise DataError(f"{faces}: expected pictures ({' '.join(sorted(_SUFFIXES))}){part}, found none. {_HOW_CELEBA}")
    return Sources(root=root, names=tuple(sorted(names)))


def _locate(faces: Path) -> tuple[Path, Path | None]:
    """The folder or archive that holds the pictures, and CelebA's partition file where there is one."""
    if faces.is_file():
        beside = faces.parent / _CELEBA_SPLITS
        return faces, beside if faces.name == _CELEBA_ZIP and beside.is_file() else None
    for root in (faces, faces / "celeba"):
        partition = root / _CELEBA_SPLITS if (root / _CELEBA_SPLITS).is_file() else None
        if (root / _CELEBA_FOLDER).is_dir() and partition:
            return root, partition
        if (root / _CELEBA_ZIP).is_file() and not (root / _CELEBA_FOLDER).is_dir():
            return root / _CELEBA_ZIP, partition
    archives = [path for path in faces.iterdir() if path.suffix.lower() in (".zip", ".tar")]
    if len(archives) == 1 and next(_in_folder(faces, None), None) is None:
        return archives[0], None
    return faces, None


def _members(partition: Path, split: str) -> set[str]:
    lines = (line.split() for line in partition.read_text(encoding="utf-8").splitlines())
    return {line[0] for line in lines if len(line) == 2 and line[1] == SPLITS[split]}


def _open_archive(path: Path) -> "_Archive":
    if zipfile.is_zipfile(path):
        return _Zip(path)
    with path.open("rb") as file:
        head = file.read(512)
    if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
        raise DataError(
            f"{path}: expected a zip, found a web page: the download was refused (a quota page, most "
            "likely). Download it again later, or from another mirror"
        )
    try:
        return _Tar(path)
    except tarfile.TarError as error:
        raise DataError(
            f"{path}: expected a zip or an uncompressed tar of pictures, found neither; is the download whole?"
        ) from error


class _Archive(Protocol):
    def names(self) -> list[str]:
        """Names of the files in it."""

    def read(self, name: str) -> bytes:
        """A file's content; KeyError when it is not there."""


class _Zip:
    def __init__(self, path: Path) -> None:
        self._file = zipfile.ZipFile(path)
        self._names = [entry.filename for entry in self._file.infolist() if not entry.is_dir()]

    def names(self) -> list[str]:
        return self._names

    def read(self, name: str) -> bytes:
        return self._file.read(name)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


class _Tar:
    def __init__(self, path: Path) -> None:
        self._path = path
        with tarfile.open(path, "r:") as archive:
            members = [member for member in archive if member.isfile()]
        self._places = {member.name: (member.offset_data, member.size) for member in members}

    def names(self) -> list[str]:
        return list(self._places)

    def read(self, name: str) -> bytes:
        offset, size = self._places[name]
        with self._path.open("rb") as file:  # a handle of its own: threads read at the same time
            file.seek(offset)
            return file.read(size)


def _in_folder(root: Path, exclude: Path | None) -> Iterator[str]:
    left_out = exclude.resolve() if exclude else None
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        folders[:] = [n for n in folders if not n.startswith(".") and (here / n).resolve() != left_out]
        for name in files:
            if _is_picture(name):
                yield (here / name).relative_to(root).as_posix()


def _is_picture(name: str) -> bool:
    path = PurePosixPath(name)
    hidden = any(part.startswith((".", "__MACOSX")) for part in path.parts)
    return path.suffix.lower() in _SUFFIXES and not hidden
