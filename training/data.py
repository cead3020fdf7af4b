"""Sharp faces in, batches of crops out. What is in a batch depends on the seed and the step alone."""

from __future__ import annotations

import contextlib
import math
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from data_synth import Degrade
from data_synth.sources import Sources, open_sources
from deblur.errors import DataError, ImageError, OptionError
from deblur.images import decode, probe
from training.config import Bucket, TrainConfig

Pair = tuple[Tensor, Tensor]
"""Blurred and sharp, each (B, 3, H, W) float32 in [0, 1]."""
DRAWS = 2000  # pictures drawn for one crop, at most
PROBES = 1000  # pictures looked at to see which crops they allow
LEAST_FITTING = 0.02  # share of pictures below which a size of crops is left out


def split_faces(path: Path, held_out: float) -> tuple[Sources, Sources]:
    """A set's pictures for training, and those kept for validation.

    CelebA's own train and valid parts where its partition file is there; else a share by a hash of the name, which
    stays the same when pictures are added. At least one picture is held out where there are two.

    Args:
        path: what `data_synth.sources.open_sources` opens.
        held_out: share for validation, 0..1.

    Raises:
        DataError: nothing usable is there.
    """
    train = open_sources(path, "train")
    with contextlib.suppress(DataError):
        valid = open_sources(path, "valid")
        if valid.names != train.names:
            return train, valid
    if held_out == 0 or len(train.names) < 2:
        return train, replace(train, names=())
    by_hash = sorted(train.names, key=_name_hash)
    count = max(1, sum(_name_hash(name) < held_out * 2**32 for name in by_hash))
    kept = set(by_hash[:count])
    return (
        replace(train, names=tuple(n for n in train.names if n not in kept)),
        replace(train, names=tuple(n for n in train.names if n in kept)),
    )


def _name_hash(name: str) -> int:
    return zlib.crc32(name.encode("utf-8"))


def parse_source(item: str) -> tuple[Path, float]:
    """`PATH` or `PATH=WEIGHT` to a path and a weight, 1 where none is given.

    Raises:
        OptionError: the weight is not above zero.
    """
    path, equals, text = item.rpartition("=")
    try:
        weight = float(text) if equals and not Path(item).exists() else None
    except ValueError:
        weight = None
    if weight is None:
        return Path(item), 1.0
    if not 0 < weight < math.inf:
        raise OptionError(f"--data {item}: expected a weight above 0")
    return Path(path), weight


class FaceStore:
    """Decoded faces, kept in memory up to a limit.

    Attributes:
        bad: names of pictures that could not be read, with the reason; a neighbour takes their place.

    Args:
        sources: the pictures.
        cache_mib: limit of the memory, MiB.
    """

    def __init__(self, sources: Sources, cache_mib: int):
        self.sources = sources
        self.bad: dict[str, str] = {}
        self._room = cache_mib * 2**20
        self._kept: dict[int, np.ndarray] = {}
        self._sizes: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.sources.names)

    def __getitem__(self, index: int) -> np.ndarray:
        """(H, W, 3) uint8 RGB of a picture, or of the next one that can be decoded."""
        for shift in range(len(self)):
            found = self._decoded((index + shift) % len(self))
            if found is not None:
                return found
        raise self._none_readable()

    def size(self, index: int) -> tuple[int, int]:
        """Height and width of a picture as its file stores it, from the header, or of the next that can be read."""
        for shift in range(len(self)):
            found = self._size((index + shift) % len(self))
            if found is not None:
                return found
        raise self._none_readable()

    def _none_readable(self) -> DataError:
        name, reason = next(iter(self.bad.items()))
        return DataError(f"{self.sources.root}: none of {len(self)} pictures can be read; the first, {name}: {reason}")

    def _size(self, index: int) -> tuple[int, int] | None:
        if index in self._kept:
            return self._kept[index].shape[:2]
        if index not in self._sizes:
            header = self._read(index, probe)
            if header is None:
                return None
            self._sizes[index] = (header.height, header.width)
        return self._sizes[index]

    def _decoded(self, index: int) -> np.ndarray | None:
        kept = self._kept.get(index)
        if kept is not None:
            return kept
        picture = self._read(index, decode)
        if picture is None:
            return None
        levels = picture.levels
        if levels.dtype == np.uint16:
            levels = (levels / 257 + 0.5).astype(np.uint8)
        with self._lock:
            if levels.nbytes <= self._room and index not in self._kept:
                self._room -= levels.nbytes
                self._kept[index] = levels
        return levels

    def _read(self, index: int, how: Callable[[bytes], Any]) -> Any:
        name = self.sources.names[index]
        if name in self.bad:
            return None
        try:
            return how(self.sources.read(name))
        except (ImageError, DataError, OSError) as error:
            self.bad[name] = str(error)
            return None


class CropSampler:
    """Batches of sharp crops; a batch is a pure function of (seed, index, rank).

    Args:
        stores: face sets; each picture of each is drawn equally often, times its set's weight.
        weights: how often each set's pictures are drawn.
        seed: the run's seed.
        rank: index of this process.
        workers: threads that read and decode.
        flat_share: share of crops that are one colour: a generator that never saw any invents shades in them.
    """

    def __init__(
        self,
        stores: Sequence[FaceStore],
        weights: Sequence[float],
        *,
        seed: int,
        rank: int = 0,
        workers: int = 2,
        flat_share: float = 0.0,
    ):
        self.stores, self.flat_share = list(stores), flat_share
        self.seed, self.rank = seed, rank
        masses = np.array([len(s) * w for s, w in zip(stores, weights, strict=True)], dtype=np.float64)
        self._ends = np.cumsum(masses / masses.sum())
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="crops")
        self._fitting: dict[tuple[int, int, int], float] = {}

    def bucket(self, step: int, buckets: Sequence[Bucket]) -> Bucket:
        """The bucket of a step, the same in every process."""
        shares = np.cumsum([b.share for b in buckets])
        draw = np.random.default_rng((self.seed, 1, step)).random() * shares[-1]
        return buckets[int(np.searchsorted(shares, draw, side="right"))]

    def batch(self, index: int, bucket: Bucket) -> tuple[np.ndarray, Tensor]:
        """Sharp crops (B, height, width, 3) uint8, and (B,) int64 seeds for their degradation."""
        rngs = [np.random.default_rng((self.seed, 2, index, self.rank, i)) for i in range(bucket.batch)]
        crops = np.empty((bucket.batch, bucket.height, bucket.width, 3), np.uint8)

        def fill(start: int) -> None:  # a share for each thread: to hand over crops one by one costs as much as some
            for i in range(start, bucket.batch, self._workers):
                crops[i] = self.crop(rngs[i], bucket)

        list(self._pool.map(fill, range(self._workers)))
        return crops, torch.tensor([int(rng.integers(2**62)) for rng in rngs])

    def crop(self, rng: np.random.Generator, bucket: Bucket) -> np.ndarray:
        """One crop (height, width, 3) uint8 of a picture drawn at random among those that fit.

        Raises:
            DataError: hardly any picture fits.
        """
        if self.flat_share and rng.random() < self.flat_share:
            colour = rng.integers(0, 256, 3) * rng.random()  # dark ones are where shades show most
            return np.full((bucket.height, bucket.width, 3), colour, np.uint8)
        for _ in range(DRAWS):
            store, index = self._draw(rng)
            if fits(store.size(index), bucket):
                levels = store[index]
                if fits(levels.shape[:2], bucket):  # turned upright, it may have other sides than in its header
                    return random_crop(levels, rng, bucket)
        raise DataError(f"faces: no picture that fits {_described(bucket)} in {DRAWS} draws; add larger faces")

    def _draw(self, rng: np.random.Generator) -> tuple[FaceStore, int]:
        chosen = int(np.searchsorted(self._ends, rng.random(), side="right").clip(0, len(self.stores) - 1))
        store = self.stores[chosen]
        return store, int(rng.integers(len(store)))

    def usable(self, buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
        """The buckets that enough of the pictures fit.

        Raises:
            DataError: there is none.
        """
        kept = tuple(b for b in buckets if self.fitting(b) >= LEAST_FITTING)
        if not kept:
            raise DataError(
                f"faces: hardly any picture fits {' or '.join(_described(b) for b in buckets)}; add larger faces, or "
                "choose a recipe with smaller crops"
            )
        return kept

    def fitting(self, bucket: Bucket) -> float:
        """Estimated share of draws that fit a bucket, 0..1."""
        key = (bucket.height, bucket.width, bucket.max_side)
        if key not in self._fitting:
            rng = np.random.default_rng((self.seed, 4))
            draws = [self._draw(rng) for _ in range(PROBES)]
            self._fitting[key] = sum(fits(store.size(index), bucket) for store, index in draws) / PROBES
        return self._fitting[key]

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(cancel_futures=True)


def fits(size: tuple[int, ...], bucket: Bucket) -> bool:
    """Whether a picture of (height, width) holds a crop of the bucket without being enlarged."""
    height, width = size
    small_enough = not bucket.max_side or max(height, width) <= bucket.max_side
    return height >= bucket.height and width >= bucket.width and small_enough


def _described(bucket: Bucket) -> str:
    limit = f" and at most {bucket.max_side} px" if bucket.max_side else ""
    return f"{bucket.width}x{bucket.height} px{limit}"


class Batches:
    """A run's batches in order, as blurred and sharp pairs on the device, made ahead of time.

    On the CPU a thread reads and crops while the networks work, and the blur is made in turn: two threads with
    parallel kernels on the same cores would slow each other down. On a GPU the thread also sends the crops (pinned,
    as bytes) and blurs them on a stream of its own.

    Args:
        config: the run.
        sampler: where sharp crops come from.
        degrade: makes the blurred ones, on the device.
        device: where pairs are wanted.
        progress_at: progress of the run before a step, in 0..1.
    """

    def __init__(
        self,
        config: TrainConfig,
        sampler: CropSampler,
        degrade: Degrade,
        device: torch.device,
        progress_at: Callable[[int], float],
    ):
        self.config, self.sampler, self.degrade, self.device = config, sampler, degrade, device
        self.progress_at = progress_at
        self._usable = {stage: sampler.usable(stage.buckets) for stage in config.stages}
        self._ahead: dict[int, Future[Any]] = {}
        self._depth = 3 if device.type == "cuda" else 1
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if self._stream is not None:  # what the blur reads was sent to the device on the stream of this thread
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def bucket_at(self, step: int) -> Bucket:
        """The bucket of a step."""
        progress = self.progress_at(step)
        stage = next((s for s in self.config.stages if progress < s.until), self.config.stages[-1])
        return self.sampler.bucket(step, self._usable[stage])

    def get(self, step: int) -> list[Pair]:
        """The pairs of a step, one for each accumulated batch; the next steps' are begun."""
        current = self._ahead.pop(step, None) or self._thread.submit(self._load, step)
        for ahead in range(step + 1, step + 1 + self._depth):
            if ahead not in self._ahead:
                self._ahead[ahead] = self._thread.submit(self._load, ahead)
        loaded = current.result()
        if self._stream is None:
            return [self._pair(crops, seeds) for crops, seeds in loaded]
        pairs, ready = loaded
        consumer = torch.cuda.current_stream(self.device)
        consumer.wait_event(ready)
        for pair in pairs:
            for tensor in pair:
                tensor.record_stream(consumer)
        return pairs

    def _load(self, step: int) -> Any:
        bucket, count = self.bucket_at(step), self.config.accumulate
        loaded = [self.sampler.batch(step * count + i, bucket) for i in range(count)]
        if self._stream is None:
            return loaded
        with torch.cuda.stream(self._stream):
            pairs = [self._pair(crops, seeds) for crops, seeds in loaded]
            ready = torch.cuda.Event()
            ready.record()
        return pairs, ready

    def _pair(self, crops: np.ndarray, seeds: Tensor) -> Pair:
        levels = torch.from_numpy(crops)
        if self._stream is not None:
            levels, seeds = levels.pin_memory(), seeds.pin_memory()
        levels = levels.to(self.device, non_blocking=True)
        # (B, H, W, C) seen as (B, C, H, W) is channels last as it lies.
        sharp = levels.permute(0, 3, 1, 2).float().div_(255)
        # Levels, not floats: on the CPU a table turns them into light.
        blurred, _ = self.degrade(levels.permute(0, 3, 1, 2), seeds=seeds.to(self.device, non_blocking=True))
        return blurred.contiguous(memory_format=torch.channels_last), sharp

    def close(self) -> None:
        """Ends the threads."""
        self._thread.shutdown(cancel_futures=True)
        self.sampler.close()


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
    if region_h >= 2 * bucket.height and region_w >= 2 * bucket.width:
        # Whole pixels first: to halve is far quicker than to reduce by a fraction, and the area counts the same.
        half = (region_w // 2, region_h // 2)
        crop = cv2.resize(crop[: 2 * half[1], : 2 * half[0]], half, interpolation=cv2.INTER_AREA)
    if crop.shape[:2] != (bucket.height, bucket.width):
        crop = cv2.resize(crop, (bucket.width, bucket.height), interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray(crop[:, ::-1]) if rng.random() < 0.5 else crop
