"""Packs faces into one tar of size-capped pictures: `python -m training.pack FACES... OUT.tar --max-mib 50`."""

from __future__ import annotations

import argparse
import io
import os
import sys
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from data_synth.sources import Sources, open_sources
from deblur.errors import DataError, DeblurError, ImageError, OptionError, OutputError
from deblur.images import decode, encode

PERCEPTUAL, INIT = "perceptual.safetensors", "init.safetensors"
TOGETHER = 64  # pictures encoded ahead
FACE_MARGIN = 0.6  # of the face's box, added in all

Crop = Callable[[np.ndarray], list[np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """What a pack holds.

    Attributes:
        max_side: longer side of a picture, px; larger ones are reduced by area, none is enlarged.
        max_mib: size of the tar, MiB, all included.
        quality: of WebP, 1..100.
        seed: of the order, which decides what is left out when not all fits.
        perceptual_weights: VGG weights to pack along, or None.
        init: weights to start from to pack along, or None.
    """

    max_side: int = 256
    max_mib: float = 50.0
    quality: int = 92
    seed: int = 0
    perceptual_weights: Path | None = None
    init: Path | None = None

    def __post_init__(self) -> None:
        if self.max_side < 32 or self.max_mib <= 0 or not 1 <= self.quality <= 100:
            raise OptionError(
                "expected max_side of at least 32 px, max_mib above 0 and quality in 1..100, got "
                f"{self.max_side}, {self.max_mib:g}, {self.quality}"
            )


@dataclass
class Packed:
    """What was packed.

    Attributes:
        pictures: in the tar.
        left_out: source pictures for which there was no room.
        bad: names of those that could not be read, with the reason.
        size: of the tar, bytes.
    """

    pictures: int = 0
    left_out: int = 0
    bad: dict[str, str] = field(default_factory=dict)
    size: int = 0


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="training.pack", description=__doc__)
    parser.add_argument(
        "faces", nargs="+", type=Path, metavar="FACES", help="folder, CelebA root (its train part), zip"
    )
    parser.add_argument("out", type=Path, metavar="OUT.tar")
    parser.add_argument("--max-side", type=int, default=256, metavar="PX")
    parser.add_argument("--max-mib", type=float, default=50.0, metavar="MIB")
    parser.add_argument("--quality", type=int, default=92, help="of WebP")
    parser.add_argument("--detect", action="store_true", help="crop to the faces found (for photos, not face crops)")
    parser.add_argument("--perceptual-weights", type=Path, metavar="FILE", help="VGG weights to pack along")
    parser.add_argument("--init", type=Path, metavar="FILE", help="weights to start from, to pack along")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--force", action="store_true", help="replace OUT.tar")
    options = parser.parse_args(arguments)
    try:
        if options.out.exists() and not options.force:
            raise OutputError(f"{options.out} is there already; --force replaces it")
        chosen = PackOptions(
            max_side=options.max_side,
            max_mib=options.max_mib,
            quality=options.quality,
            seed=options.seed,
            perceptual_weights=options.perceptual_weights,
            init=options.init,
        )
        packed = pack([open_sources(path) for path in options.faces], options.out, chosen, face_crops(options.detect))
    except DeblurError as error:
        sys.stderr.write(f"pack: {error}\n")
        return 3
    for name, reason in list(packed.bad.items())[:5]:
        sys.stderr.write(f"pack: left out {name}: {reason}\n")
    sys.stdout.write(
        f"{options.out}: {packed.pictures} pictures, {packed.size / 2**20:.1f} MiB; {packed.left_out} left out for "
        f"lack of room, {len(packed.bad)} unreadable\n"
    )
    return 0


def face_crops(detect: bool) -> Crop:
    """What a picture gives: itself, or a square around each face found in it."""
    if not detect:
        return lambda levels: [levels]
    from deblur.faces import FaceDetector

    detector = FaceDetector()

    def crops(levels: np.ndarray) -> list[np.ndarray]:
        return [_around(levels, face.box) for face in detector.detect(levels)]

    return crops


def _around(levels: np.ndarray, box: tuple[float, float, float, float]) -> np.ndarray:
    height, width = levels.shape[:2]
    half = max(box[2] - box[0], box[3] - box[1]) * (1 + FACE_MARGIN) / 2
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    left, top = max(0, round(x - half)), max(0, round(y - half))
    return levels[top : min(height, round(y + half)), left : min(width, round(x + half))]


def pack(sources: list[Sources], out: Path, options: PackOptions, crop: Crop) -> Packed:
    """Writes the tar, whole or not at all.

    Raises:
        DataError: nothing could be packed.
        OutputError: the file cannot be written, or the weights alone do not fit.
    """
    entries = [(index, source, name) for index, source in enumerate(sources) for name in source.names]
    order = np.random.default_rng(options.seed).permutation(len(entries))
    packed = Packed()
    temporary = out.with_name(f".{out.name}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(temporary, "w") as tar:
            _add_weights(tar, options)
            taken = _add_pictures(tar, [entries[i] for i in order], options, crop, packed)
        packed.left_out = len(entries) - taken
        packed.size = temporary.stat().st_size
        if not packed.pictures:
            raise DataError(
                f"no picture of {len(entries)} was packed; {next(map(': '.join, packed.bad.items()), 'no room')}"
            )
        temporary.replace(out)
    except OSError as error:
        raise OutputError(f"{out}: cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return packed


def _room(tar: tarfile.TarFile, options: PackOptions) -> float:
    # A tar ends with two empty blocks and is filled up to a whole record.
    return options.max_mib * 2**20 - tar.offset - 2 * tarfile.BLOCKSIZE - tarfile.RECORDSIZE


def _add_weights(tar: tarfile.TarFile, options: PackOptions) -> None:
    for name, path in ((PERCEPTUAL, options.perceptual_weights), (INIT, options.init)):
        if path is not None:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise DataError(f"weights to pack along: cannot be read: {error}") from error
            _add(tar, name, content)
    if _room(tar, options) < 0:
        raise OutputError(f"the weights alone are larger than {options.max_mib:g} MiB")


def _add_pictures(
    tar: tarfile.TarFile, entries: list[tuple[int, Sources, str]], options: PackOptions, crop: Crop, packed: Packed
) -> int:
    taken = 0
    for name, made in _encoded(entries, options, crop):
        if isinstance(made, str):
            packed.bad[name] = made
        else:
            if sum(len(content) + 2 * tarfile.BLOCKSIZE for content in made) > _room(tar, options):
                return taken
            for number, content in enumerate(made):
                _add(tar, f"{name}-{number}.webp" if number else f"{name}.webp", content)
            packed.pictures += len(made)
        taken += 1
    return taken


def _encoded(entries: list[Any], options: PackOptions, crop: Crop) -> Iterator[tuple[str, list[bytes] | str]]:
    """Name, and the encoded pictures or why there is none."""

    def work(entry: tuple[int, Sources, str]) -> tuple[str, list[bytes] | str]:
        index, source, name = entry
        called = f"{index}/{name.rpartition('.')[0]}"
        try:
            levels = decode(source.read(name)).levels
            return called, [_small_webp(part, options) for part in crop(levels)]
        except (ImageError, DataError, OSError) as error:
            return called, str(error)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 2)) as pool:
        for start in range(0, len(entries), TOGETHER):
            yield from pool.map(work, entries[start : start + TOGETHER])


def _small_webp(levels: np.ndarray, options: PackOptions) -> bytes:
    if levels.dtype == np.uint16:
        levels = (levels / 257 + 0.5).astype(np.uint8)
    height, width = levels.shape[:2]
    scale = options.max_side / max(height, width)
    if scale < 1:
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        levels = cv2.resize(levels, size, interpolation=cv2.INTER_AREA)
    return encode(decode(np.ascontiguousarray(levels)), "WEBP", options.quality)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)  # no time, no owner: the same faces give the same bytes
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def read_along(path: Path, name: str) -> bytes | None:
    """The content of what was packed along under a name, or None."""
    if not tarfile.is_tarfile(path):
        return None
    with tarfile.open(path) as tar:
        try:
            member = tar.extractfile(name)
        except KeyError:
            return None
        return member.read() if member else None


if __name__ == "__main__":
    sys.exit(main())
