"""Where sharp faces come from: a folder, a CelebA root, or a zip, all read by name."""

import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from deblur.errors import DataError, OptionError

SPLITS = {"train": "0", "valid": "1", "test": "2"}
_SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".avif", ".heic", ".heif", ".ppm", ".pgm", ".gif")
)
_CELEBA_FOLDER, _CELEBA_SPLITS = "img_align_celeba", "list_eval_partition.txt"


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Source pictures in a fixed order; pickles to worker processes.

    Attributes:
        root: Folder, or zip file.
        names: Paths below the root, "/" between parts, sorted.
    """

    root: Path
    names: tuple[str, ...]
    _archives: dict[int, zipfile.ZipFile] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, object]:
        return {"root": self.root, "names": self.names, "_archives": {}}

    def read(self, name: str) -> bytes:
        """The file's content.

        Raises:
            OSError: It cannot be read.
            DataError: It cannot be taken out of the zip.
        """
        if self.root.is_dir():
            return (self.root / name).read_bytes()
        archive = self._archives.get(os.getpid())
        if archive is None:
            archive = self._archives[os.getpid()] = zipfile.ZipFile(self.root)
        try:
            return archive.read(name)
        except (zipfile.BadZipFile, KeyError, RuntimeError, NotImplementedError) as error:
            raise DataError(f"{self.root}: cannot take out {name}: {error}") from error


def open_sources(faces: Path, split: str = "train", exclude: Path | None = None) -> Sources:
    """Lists the pictures of a data set.

    Args:
        faces: A folder (searched to any depth, hidden names and symbolic links to folders left out), a CelebA
            root as torchvision lays it out (its partition file is honoured), or a zip of pictures.
        split: Part of CelebA: train, valid, test or all. Other sets have no parts and are taken whole.
        exclude: A folder below that is left out: the output of an earlier run.

    Raises:
        DataError: There is no such path, no picture in it, or the zip is none.
        OptionError: No such split.
    """
    if split != "all" and split not in SPLITS:
        raise OptionError(f"split: expected all or one of {', '.join(SPLITS)}, got {split!r}")
    if not faces.exists():
        raise DataError(f"{faces}: expected a folder or zip of face pictures, found nothing there")
    if faces.is_file():
        names = sorted(_in_zip(faces))
    else:
        celeba = _celeba_root(faces)
        faces = celeba or faces
        names = sorted(_in_folder(faces, exclude) if celeba is None else _in_celeba(celeba, split))
    if not names:
        raise DataError(f"{faces}: expected pictures ({' '.join(sorted(_SUFFIXES))}), found none")
    return Sources(root=faces, names=tuple(names))


def _in_zip(path: Path) -> Iterator[str]:
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            head = file.read(512).lstrip().lower()
        if head.startswith((b"<!doctype", b"<html")):
            raise DataError(
                f"{path}: expected a zip, found a web page: the download was refused (a quota page, most "
                "likely). Download it again later, or from another mirror"
            )
        raise DataError(f"{path}: expected a folder or a zip of pictures, found neither; is the download whole?")
    with zipfile.ZipFile(path) as archive:
        yield from (name for name in archive.namelist() if _is_picture(name))


def _in_folder(root: Path, exclude: Path | None) -> Iterator[str]:
    left_out = exclude.resolve() if exclude else None
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        folders[:] = [n for n in folders if not n.startswith(".") and (here / n).resolve() != left_out]
        for name in files:
            if _is_picture(name):
                yield (here / name).relative_to(root).as_posix()


def _celeba_root(faces: Path) -> Path | None:
    """The folder that holds CelebA's pictures and partition file, where there is one."""
    for root in (faces, faces / "celeba"):
        if (root / _CELEBA_FOLDER).is_dir() and (root / _CELEBA_SPLITS).is_file():
            return root
    return None


def _in_celeba(root: Path, split: str) -> Iterator[str]:
    present = {path.name for path in (root / _CELEBA_FOLDER).iterdir() if _is_picture(path.name)}
    for line in (root / _CELEBA_SPLITS).read_text(encoding="utf-8").splitlines():
        name, _, part = line.strip().partition(" ")
        if name in present and (split == "all" or part.strip() == SPLITS[split]):
            yield f"{_CELEBA_FOLDER}/{name}"


def _is_picture(name: str) -> bool:
    path = PurePosixPath(name)
    hidden = any(part.startswith((".", "__MACOSX")) for part in path.parts)
    return path.suffix.lower() in _SUFFIXES and not hidden
