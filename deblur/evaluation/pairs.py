"""Which pictures belong together, and what is known about their blur."""

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deblur.errors import DataError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".avif", ".heic", ".heif", ".ppm"})
MANIFESTS = ("pairs.csv", "manifest.jsonl", "manifest.csv")
FILE_KEYS = ("file", "blurred", "path", "name")
EXTENT_KEYS = ("extent_px_at_128", "extent_px")


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a manifest says about one picture.

    Attributes:
        extent: the blur's extent in the unit of `unit`.
        unit: "extent_px" in pixels of the picture, or "extent_px_at_128" of the picture scaled to 128 px.
        notes: the manifest's other columns.
    """

    extent: float
    unit: str
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The files of one picture; `restored` is None where it is still to be made, `sharp` where there is none."""

    name: str
    blurred: Path
    restored: Path | None = None
    sharp: Path | None = None
    known: Known | None = None


def find_pairs(
    blurred: Path, restored: Path | None, sharp: Path | None, known: Mapping[str, Known] | None = None
) -> tuple[list[Pair], list[str]]:
    """Pair pictures by their relative path; the suffix may differ.

    Args:
        blurred: folder whose pictures are measured.
        restored: folder of their restored versions, or None.
        sharp: folder of their sharp versions, or None.
        known: by relative path, from `read_manifest`.

    Returns:
        The complete pairs in the order of their names, and one line for each picture that lacks its
        counterpart.

    Raises:
        DataError: a folder is absent, or nothing pairs up.
    """
    files = list_pictures(blurred)
    if not files:
        raise DataError(f"{blurred}: expected a folder with pictures, found none")
    others = [(kind, root, list_pictures(root)) for kind, root in (("restored", restored), ("sharp", sharp)) if root]
    pairs, problems = [], []
    for name, path in files.items():
        found = {kind: _counterpart(name, listed) for kind, _, listed in others}
        missing = [f"{kind} in {root}" for kind, root, _ in others if found[kind] is None]
        if missing:
            problems.append(f"{name}: no {' and no '.join(missing)}")
            continue
        files_of = {kind: found.get(kind) for kind in ("restored", "sharp")}
        pairs.append(Pair(name=name, blurred=path, known=(known or {}).get(name), **files_of))
    if not pairs:
        raise DataError(f"no picture of {blurred} has its counterpart; the first: {problems[0]}")
    return pairs, problems


def list_pictures(root: Path) -> dict[str, Path]:
    """Pictures below a folder by relative path with forward slashes, sorted; hidden ones are left out.

    Raises:
        DataError: the folder is absent.
    """
    if not root.is_dir():
        raise DataError(f"{root}: expected a folder")
    found = {}
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        hidden = any(part.startswith(".") for part in relative.parts)
        if path.suffix.lower() in SUFFIXES and path.is_file() and not hidden:
            found[relative.as_posix()] = path
    return found


def _counterpart(name: str, listed: Mapping[str, Path]) -> Path | None:
    if name in listed:
        return listed[name]
    stem = name.rpartition(".")[0]
    candidates = [path for other, path in listed.items() if other.rpartition(".")[0] == stem]
    return candidates[0] if len(candidates) == 1 else None


def pairs_below(root: Path) -> list[Pair]:
    """The complete pairs of `root`/blurred and `root`/sharp, with what a manifest beside them says.

    Raises:
        DataError: as `find_pairs` and `read_manifest`.
    """
    manifest = find_manifest(root / "blurred")
    return find_pairs(root / "blurred", None, root / "sharp", read_manifest(manifest) if manifest else {})[0]


def find_manifest(blurred: Path) -> Path | None:
    """The manifest in the folder of blurred pictures or beside it, if there is one."""
    for folder in (blurred, blurred.parent):
        for name in MANIFESTS:
            if (folder / name).is_file():
                return folder / name
    return None


def read_manifest(path: Path) -> dict[str, Known]:
    """Known blur extents from a CSV with a header, or from JSON lines.

    Each row names its picture in one of the columns file, blurred, path or name, and its extent in
    extent_px_at_128 or extent_px. Rows without an extent are skipped.

    Returns:
        What is known by the picture's relative path, with and without a leading `blurred/`.

    Raises:
        DataError: the file cannot be read or has none of these columns.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            if path.suffix == ".jsonl":
                rows = [json.loads(line) for line in stream if line.strip()]
            else:
                rows = list(csv.DictReader(stream))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected CSV or JSON lines ({error})") from error
    known = {}
    for row in rows:
        file_key = next((key for key in FILE_KEYS if row.get(key)), None)
        unit = next((key for key in EXTENT_KEYS if row.get(key) not in (None, "")), None)
        if file_key is None or unit is None:
            continue
        notes = {key: value for key, value in row.items() if key not in (file_key, unit)}
        entry = Known(extent=_number(row[unit], path), unit=unit, notes=notes)
        name = Path(row[file_key]).as_posix()
        known[name] = entry
        known.setdefault(name.removeprefix("blurred/"), entry)
    if not known:
        raise DataError(
            f"{path}: expected a column out of {', '.join(FILE_KEYS)} and one out of {', '.join(EXTENT_KEYS)}"
        )
    return known


def _number(value: Any, path: Path) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: expected a number of pixels, got {value!r}") from error
    if not math.isfinite(number) or number < 0:
        raise DataError(f"{path}: expected an extent of at least 0 px, got {value!r}")
    return number
