"""Sharp faces in, batches of crops out. What is in a batch depends on the seed and the step alone."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor

from deblur.errors import DataError, ImageError
from deblur.images import decode
from training.config import Bucket

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".avif"}


@dataclass(frozen=True)
class FaceFile:
    """One sharp picture: its name, and how to read its bytes."""

    name: str
    read: Callable[[], bytes]


def list_faces(root: Path, split: str = "train") -> list[FaceFile]:
    """Pictures below a folder, in sorted order; of a CelebA root only those of the split.

    Raises:
        DataError: nothing usable is there.
    """
    if not root.is_dir():
        raise DataError(f"faces {root}: expected a folder of pictures, or a CelebA root; it is not there")
    partition = root / "list_eval_partition.txt"
    if partition.is_file():
        return _celeba(root, partition, split)
    paths = sorted(p for p in root.rglob("*") if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
    if not paths:
        raise DataError(f"faces {root}: expected pictures ({', '.join(sorted(SUFFIXES))}) in it, found none")
    return [FaceFile(str(p.relative_to(root)), p.read_bytes) for p in paths]


def _celeba(root: Path, partition: Path, split: str) -> list[FaceFile]:
    wanted = {"train": "0", "valid": "1", "test": "2"}[split]
    lines = [line.split() for line in partition.read_text(encoding="utf-8").splitlines()]
    folder = root / "img_align_celeba"
    names = [line[0] for line in lines if len(line) == 2 and line[1] == wanted]
    present = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
    found = [name for name in names if name in present]
    if not found:
        raise DataError(f"CelebA {root}: expected the pictures of {partition.name} in {folder.name}/, found none")
    return [FaceFile(name, (folder / name).read_bytes) for name in found]


class FaceStore:
    """Decoded faces, kept in memory up to a limit.

    Attributes:
        files: the pictures.
        bad: names of pictures that could not be decoded, with the reason; a neighbour takes their place.
    """

    def __init__(self, files: Sequence[FaceFile], cache_mib: int):
        self.files = list(files)
        self.bad: dict[str, str] = {}
        self._room = cache_mib * 2**20
        self._kept: dict[int, np.ndarray] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> np.ndarray:
        """(H, W, 3) uint8 RGB of a picture, or of the next one that can be decoded."""
        for shift in range(len(self.files)):
            found = self._get((index + shift) % len(self.files))
            if found is not None:
                return found
        raise DataError(
            f"faces: none of {len(self.files)} pictures could be decoded; the first: {next(iter(self.bad.items()))}"
        )

    def _get(self, index: int) -> np.ndarray | None:
        kept = self._kept.get(index)
        if kept is not None:
            return kept
        file = self.files[index]
        if file.name in self.bad:
            return None
        try:
            levels = decode(file.read()).levels
        except (ImageError, OSError) as error:
            self.bad[file.name] = str(error)
            return None
        if levels.dtype == np.uint16:
            levels = (levels / 257 + 0.5).astype(np.uint8)
        with self._lock:
            if levels.nbytes <= self._room and index not in self._kept:
                self._room -= levels.nbytes
                self._kept[index] = levels
        return levels


class CropSampler:
    """Batches of sharp crops; the batch of a step is a pure function of (seed, step, rank).

    Args:
        stores: face sets; each picture of each is drawn equally often, times its set's weight.
        weights: how often each set's pictures are drawn.
        seed: the run's seed.
        rank: index of this process.
        world: number of processes.
    """

    def __init__(
        self,
        stores: Sequence[FaceStore],
        weights: Sequence[float],
        *,
        seed: int,
        rank: int = 0,
        world: int = 1,
    ):
        self.stores = list(stores)
        self.seed, self.rank, self.world = seed, rank, world
        masses = np.array([len(s) * w for s, w in zip(stores, weights, strict=True)], dtype=np.float64)
        self._ends = np.cumsum(masses / masses.sum())
        self._pool = ThreadPoolExecutor(2)
        self._sides: dict[tuple[int, int], tuple[int, int]] = {}

    def bucket(self, step: int, buckets: Sequence[Bucket]) -> Bucket:
        """The bucket of a step, the same in every process."""
        shares = np.cumsum([b.share for b in buckets])
        draw = np.random.default_rng((self.seed, 1, step)).random() * shares[-1]
        return buckets[int(np.searchsorted(shares, draw, side="right"))]

    def batch(self, step: int, bucket: Bucket) -> tuple[Tensor, Tensor]:
        """Sharp crops (B, 3, height, width) float32 in [0, 1], and (B,) int64 seeds for their degradation."""
        rngs = [np.random.default_rng((self.seed, 2, step, self.rank, i)) for i in range(bucket.batch)]
        crops = list(self._pool.map(lambda rng: self._crop(rng, bucket), rngs))
        stacked = torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).float().div_(255)
        seeds = torch.tensor([int(rng.integers(2**62)) for rng in rngs])
        return stacked, seeds

    def _crop(self, rng: np.random.Generator, bucket: Bucket) -> np.ndarray:
        for _ in range(200):
            store = int(np.searchsorted(self._ends, rng.random(), side="right").clip(0, len(self.stores) - 1))
            levels = self.stores[store][int(rng.integers(len(self.stores[store])))]
            height, width = levels.shape[:2]
            if height < bucket.height or width < bucket.width:
                continue
            if bucket.max_side and max(height, width) > bucket.max_side:
                continue
            return random_crop(levels, rng, bucket)
        raise DataError(
            f"faces: no picture of at least {bucket.width}x{bucket.height} px"
            f"{f' and at most {bucket.max_side} px' if bucket.max_side else ''} in 200 draws; "
            "add larger faces or choose a recipe with smaller crops"
        )


def random_crop(levels: np.ndarray, rng: np.random.Generator, bucket: Bucket) -> np.ndarray:
    """A crop of (height, width) from a picture reduced by a random factor, mirrored half of the time.

    The picture is reduced so that the largest region of the crop's shape is `zoom` times the crop; it is never
    enlarged.
    """
    height, width = levels.shape[:2]
    fit = min(height / bucket.height, width / bucket.width)  # largest region over the crop
    zoom = min(math.exp(rng.uniform(math.log(bucket.zoom[0]), math.log(bucket.zoom[1]))), fit)
    region_h = min(height, round(bucket.height * fit / zoom))
    region_w = min(width, round(bucket.width * fit / zoom))
    top, left = int(rng.integers(height - region_h + 1)), int(rng.integers(width - region_w + 1))
    crop = levels[top : top + region_h, left : left + region_w]
    if crop.shape[:2] != (bucket.height, bucket.width):
        crop = cv2.resize(crop, (bucket.width, bucket.height), interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray(crop[:, ::-1]) if rng.random() < 0.5 else crop
