"""The models: one restorer and one owner for each device, loaded and warmed up in the background."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from serving.batching import BatchReport, Owner, least_loaded, use_torch_threads
from serving.errors import Problem
from serving.gate import Gate
from serving.settings import Settings

if TYPE_CHECKING:
    from deblur import Restorer

logger = logging.getLogger("serving.fleet")

_WARM_UP_PX = 128
_BATCH_PIXELS = {"cpu": 1 << 18}  # larger batches are no faster there, and everybody waits for the whole batch
_BATCH_PIXELS_ACCELERATOR = 1 << 20
_MOST_LANES = 8  # each holds what its layers need for a batch


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One device's restorer and the owner of its generator."""

    device: str
    restorer: Restorer
    owner: Owner


@dataclass(frozen=True, kw_only=True)
class Model:
    """What callers are told about the weights."""

    name: str
    sha256: str

    @property
    def version(self) -> str:
        """`name@first twelve digits of the hash`: the value of `X-Model-Version`."""
        return f"{self.name}@{self.sha256[:12]}"


class Fleet:
    """All replicas, and whether they are ready.

    Args:
        settings: weights, devices, precision and batching.
        expected: how many requests are inside the service.
        on_batch: called after every batch, on an owner thread.

    Attributes:
        gate: for the threads that work on the processors that a generator works on, too.
    """

    def __init__(
        self, settings: Settings, *, expected: Callable[[], int], on_batch: Callable[[BatchReport], None]
    ) -> None:
        self._settings = settings
        self._expected = expected
        self._on_batch = on_batch
        self._torch_threads = processors_of(settings.workers)  # before the pool's threads limit their own
        self.gate = Gate()
        self.replicas: list[Replica] = []
        self.model: Model | None = None
        self.ready = False
        self.failure: Exception | None = None

    def load(self) -> None:
        """Loads, verifies and warms up every replica; blocks for seconds, so it runs on a thread.

        Raises:
            DeblurError: the weights are absent or damaged, or a device is not there.
        """
        begun = time.monotonic()
        use_torch_threads(self._torch_threads)  # this thread, too, may have been set up after the pool's
        for device in device_names(self._settings.devices):
            self._add(device)
        if all(replica.restorer.device.type == "cpu" for replica in self.replicas):
            self.gate.narrow(self._torch_threads)
        if self._settings.warm_up:
            for replica in self.replicas:
                replica.restorer.restore(_warm_up_picture(), mode="whole")
        gc.collect()
        gc.freeze()  # what is loaded stays; looking through it again and again would stop every thread for long
        self.ready = True
        logger.info(
            "ready",
            extra={
                "model": self.require_model().version,
                "devices": [r.device for r in self.replicas],
                "lanes": [r.owner.lanes for r in self.replicas],
                "seconds": round(time.monotonic() - begun, 2),
            },
        )

    def _add(self, device: str) -> None:
        import deblur

        settings = self._settings
        restorer = deblur.load(settings.weights, device=device, precision=settings.precision, backend=settings.backend)
        kind = restorer.device.type
        owner = Owner(
            restorer,
            max_pixels=settings.batch_pixels or _BATCH_PIXELS.get(kind, _BATCH_PIXELS_ACCELERATOR),
            wait_s=settings.batch_wait_ms / 1000,
            max_age_s=settings.queue_age_s,
            expected=self._expected,
            on_batch=self._on_batch,
            lanes=settings.lanes or self._default_lanes(kind),
            gate=self.gate if kind == "cpu" else None,
            torch_threads=self._torch_threads,
            name=f"generator-{len(self.replicas)}-{device}",
        )
        self.replicas.append(Replica(device=device, restorer=restorer, owner=owner))
        self.model = Model(name=restorer.weights.name, sha256=restorer.weights.sha256)

    def _default_lanes(self, kind: str) -> int:
        """One a processor, where it is torch that works there: others keep threads or buffers of their own."""
        by_torch = runs_on_torch(self._settings.backend, self._settings.weights)
        return min(_MOST_LANES, self._torch_threads) if kind == "cpu" and by_torch else 1

    def require_model(self) -> Model:
        """The model; raises Problem 503 before it is loaded."""
        if self.model is None:
            raise self.not_ready()
        return self.model

    def not_ready(self) -> Problem:
        """Why not, as a 503."""
        if self.failure is not None:
            return Problem("not-ready", f"The model could not be loaded: {self.failure}")
        return Problem("not-ready", "The model is being loaded and warmed up.", retry_after_s=2)

    def choose(self) -> Replica:
        """The least-loaded replica; raises Problem 503 when none is ready."""
        if not self.ready:
            raise self.not_ready()
        owner = least_loaded([replica.owner for replica in self.replicas])
        return next(replica for replica in self.replicas if replica.owner is owner)

    def oldest_wait_s(self) -> float:
        """How long the longest waiting work has waited for its generator, in seconds."""
        return max((replica.owner.oldest_wait_s() for replica in self.replicas), default=0.0)

    def waiting(self) -> int:
        """Tensors that wait for a generator."""
        return sum(replica.owner.waiting() for replica in self.replicas)

    def close(self) -> None:
        """Ends the owner threads."""
        self.ready = False
        for replica in self.replicas:
            replica.owner.close()


def device_names(wanted: Sequence[str]) -> list[str]:
    """The devices to use, `auto` resolved: every CUDA device, else MPS, else the CPU."""
    if tuple(wanted) != ("auto",):
        return list(wanted)
    if torch.cuda.is_available():
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["mps" if torch.backends.mps.is_available() else "cpu"]


def processors_of(workers: int) -> int:
    """One of so many workers' share of the processors, or what `OMP_NUM_THREADS` gives to each."""
    threads = torch.get_num_threads()
    return threads if "OMP_NUM_THREADS" in os.environ else max(1, threads // workers)


def runs_on_torch(backend: str, weights: str) -> bool:
    """Whether the generator runs on PyTorch as it is, without a compiler or a program of its own."""
    return backend == "torch" or (backend == "auto" and not weights.endswith(".onnx"))


def _warm_up_picture() -> np.ndarray:
    ramp = np.linspace(40, 215, _WARM_UP_PX, dtype=np.uint8)
    return np.stack([np.broadcast_to(ramp, (_WARM_UP_PX, _WARM_UP_PX))] * 3, axis=-1)
