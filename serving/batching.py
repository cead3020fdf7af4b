"""One owner for each device, and dynamic batches across requests.

A request brings tensors (its faces, or its tiles) of a few sizes. The owner takes the most urgent one,
fills a batch with others of the same size up to a bound on pixels, waits a few milliseconds for more if it
is not full and somebody could still come, and runs the generator. Urgency is arrival time plus the time
that the request's own earlier tensors need, so a photo of a hundred tiles does not hold up a portrait that
comes after it.

On a CPU an owner has several lanes: threads that take batches from the one queue and share the one set of weights. Two
lanes with a processor each do more than one lane with two, whose processors wait for each other after every layer, and
longest when something else wants one of them. The processors are dealt out batch by batch, so that a lone request gets
all of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from deblur.errors import OutOfMemory

logger = logging.getLogger("serving.batching")

#: Assumed before anything was measured.
_FIRST_PIXELS_PER_S = 1e6
#: After out-of-memory the bound is halved, and grows by this a batch until it is back.
_RECOVERY = 1.05


class Generates(Protocol):
    """The part of a `deblur.Restorer` that the owner thread uses."""

    def generate(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """(3, h, w) tensors in, restored ones of the same sizes out."""
        ...


class TooOld(Exception):
    """The work waited longer than the queue's bound on age."""


@dataclass(kw_only=True)
class Work:
    """One request's tensors and the future for its outputs.

    Attributes:
        inputs: (3, h, w) tensors.
        arrived: when it was queued, in seconds of the monotonic clock.
        began: when its first batch began, likewise.
        future: holds the outputs in the order of the inputs; cancelling it takes the rest out of the queue.
        outputs: those that are there.
    """

    inputs: list[Tensor]
    arrived: float
    began: float | None = None
    future: Future[list[Tensor]] = field(default_factory=Future)
    outputs: dict[int, Tensor] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether somebody still waits for the outputs."""
        return not self.future.done()

    def settle(self, outcome: list[Tensor] | BaseException) -> None:
        """Sets the outputs or the failure, unless the request was dropped meanwhile."""
        try:
            if isinstance(outcome, BaseException):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)
        except InvalidStateError:
            pass


@dataclass(kw_only=True, order=True)
class _Item:
    urgency: float
    work: Work = field(compare=False)
    index: int = field(compare=False)

    @property
    def tensor(self) -> Tensor:
        return self.work.inputs[self.index]


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """What one run of the generator was: for the metrics."""

    items: int
    requests: int
    pixels: int
    infer_s: float
    waits_s: tuple[float, ...]


def use_torch_threads(count: int) -> None:
    """Sets how many threads torch uses for operators called on this thread, and leaves other threads alone.

    Every thread that calls torch gets a team of its own. Left at the default, each of the pool's threads would bring
    as many as there are processors, all of them spinning while they wait for each other.
    """
    torch.get_num_threads()  # makes torch set up this thread, which would otherwise undo the next line later
    torch.set_num_threads(count)


def _pixels(tensor: Tensor) -> int:
    return tensor.shape[-2] * tensor.shape[-1]


class Owner:
    """The threads that alone run one device's generator.

    Args:
        engine: has `generate`.
        max_pixels: bound on a batch.
        wait_s: longest wait for a batch to fill.
        max_age_s: work that waited longer before its first batch fails with `TooOld`.
        expected: how many requests are inside the service; when all are in the batch nobody is waited for.
        on_batch: called after every batch, on the thread that ran it.
        lanes: batches under way at once, each on a thread of its own.
        gate: entered before a batch is taken; what comes while it holds a lane up is in the batch, too.
        torch_threads: processors for the generator on a CPU, shared by the lanes at work; None leaves torch's default.
        name: begins the names of the threads.
    """

    def __init__(
        self,
        engine: Generates,
        *,
        max_pixels: int,
        wait_s: float,
        max_age_s: float,
        expected: Callable[[], int] = lambda: 2,
        on_batch: Callable[[BatchReport], None] = lambda report: None,
        lanes: int = 1,
        gate: AbstractContextManager[None] | None = None,
        torch_threads: int | None = None,
        name: str = "generator",
    ) -> None:
        self.engine = engine
        self.lanes = lanes
        self.load_pixels = 0  # of pictures assigned to this owner; kept by the event loop
        self._max_pixels = max_pixels
        self._bound = float(max_pixels)
        self._wait_s = wait_s
        self._max_age_s = max_age_s
        self._expected = expected
        self._on_batch = on_batch
        self._gate = gate or nullcontext()
        self._torch_threads = torch_threads
        self._pixels_per_s = _FIRST_PIXELS_PER_S
        self._items: dict[tuple[int, int], list[_Item]] = defaultdict(list)
        self._not_started: dict[int, Work] = {}  # in order of arrival
        self._condition = threading.Condition()
        self._closed = False
        self._busy = 0  # lanes with a batch under way
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True) for i in range(lanes)]
        for thread in self._threads:
            thread.start()

    def submit(self, inputs: Sequence[Tensor]) -> Work:
        """Queues one request's (3, h, w) tensors.

        Raises:
            RuntimeError: the owner is closed.
        """
        work = Work(inputs=list(inputs), arrived=time.monotonic())
        if not work.inputs:
            work.settle([])
            return work
        with self._condition:
            if self._closed:
                raise RuntimeError("the generator is closed")
            self._not_started[id(work)] = work
            ahead = 0
            for index, tensor in enumerate(work.inputs):
                urgency = work.arrived + ahead / self._pixels_per_s
                height, width = tensor.shape[-2:]
                self._items[height, width].append(_Item(urgency=urgency, work=work, index=index))
                ahead += _pixels(tensor)
            self._condition.notify_all()  # not one: that might be a lane that waits for another size
        return work

    def oldest_wait_s(self) -> float:
        """How long the longest waiting work that has not started has waited, in seconds."""
        with self._condition:
            oldest = next((work for work in self._not_started.values() if work.live), None)
        return time.monotonic() - oldest.arrived if oldest else 0.0

    def waiting(self) -> int:
        """Tensors in the queue."""
        with self._condition:
            return sum(len(items) for items in self._items.values())

    def close(self) -> None:
        """Fails what waits and ends the threads after the batches at hand."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while self._await_batch():
            with self._gate:
                self._run_batch()

    def _run_batch(self) -> None:
        batch = self._collect()
        if not batch:  # another lane was quicker, or nobody waits any more
            return
        if self._torch_threads is not None:
            use_torch_threads(self._share(self._torch_threads))
        self._process(batch)
        with self._condition:
            self._busy -= 1

    def _share(self, processors: int) -> int:
        """How many of the processors a batch that begins now may use."""
        with self._condition:
            wanted = max(self._expected(), self._busy + bool(self._items))
        return max(1, processors // min(self.lanes, max(1, wanted)))

    def _await_batch(self) -> bool:
        """Returns when there is a batch to run; False when the owner is closed."""
        with self._condition:
            while True:
                self._drop_dead()
                if self._closed:
                    self._fail_waiting()
                    return False
                if not self._items:
                    self._condition.wait()
                    continue
                remaining = self._worth_waiting(self._most_urgent())
                if remaining <= 0:
                    return True
                self._condition.wait(remaining)

    def _collect(self) -> list[_Item]:
        with self._condition:
            self._drop_dead()
            return self._take(self._most_urgent()) if self._items else []

    def _most_urgent(self) -> tuple[int, int]:
        return min(self._items, key=lambda size: min(self._items[size]).urgency)

    def _drop_dead(self) -> None:
        now = time.monotonic()
        for work in list(self._not_started.values()):
            if now - work.arrived > self._max_age_s:
                work.settle(TooOld(f"waited {now - work.arrived:.1f} s"))
            if not work.live:
                del self._not_started[id(work)]
        for size in list(self._items):
            self._items[size] = [item for item in self._items[size] if item.work.live]
            if not self._items[size]:
                del self._items[size]

    def _worth_waiting(self, size: tuple[int, int]) -> float:
        """Seconds that a batch of this size may still wait for more, 0 to go now."""
        items = self._items[size]
        if len(self._items) > 1 or len(items) >= self._capacity(size):
            return 0.0  # other work is there to do, or the batch is full
        if len({id(item.work) for item in items}) >= self._expected():
            return 0.0  # everybody who is in the house is in the batch
        return min(item.work.arrived for item in items) + self._wait_s - time.monotonic()

    def _capacity(self, size: tuple[int, int]) -> int:
        return max(1, int(self._bound // (size[0] * size[1])))

    def _take(self, size: tuple[int, int]) -> list[_Item]:
        items = sorted(self._items.pop(size))
        taken, rest = items[: self._capacity(size)], items[self._capacity(size) :]
        if rest:
            self._items[size] = rest
        now = time.monotonic()
        for item in taken:
            item.work.began = item.work.began or now
            self._not_started.pop(id(item.work), None)
        self._busy += 1
        return taken

    def _process(self, batch: list[_Item]) -> None:
        begun = time.monotonic()
        waits = tuple(begun - item.work.arrived for item in batch)
        try:
            outputs = self.engine.generate([item.tensor for item in batch])
        except Exception as error:
            self._isolate(batch, error)
            return
        elapsed = time.monotonic() - begun
        pixels = sum(_pixels(item.tensor) for item in batch)
        with self._condition:
            self._pixels_per_s += 0.2 * (pixels / max(elapsed, 1e-6) - self._pixels_per_s)
            self._bound = min(self._max_pixels, self._bound * _RECOVERY)
        requests = len({id(item.work) for item in batch})
        self._on_batch(BatchReport(items=len(batch), requests=requests, pixels=pixels, infer_s=elapsed, waits_s=waits))
        for item, output in zip(batch, outputs, strict=True):
            _deliver(item, output)

    def _isolate(self, batch: list[_Item], error: Exception) -> None:
        """A batch failed: out of memory fails all of it, anything else only the request that causes it."""
        works = {id(item.work): item.work for item in batch}
        if isinstance(error, OutOfMemory):
            with self._condition:
                self._bound = max(1.0, min(self._bound, sum(_pixels(item.tensor) for item in batch)) / 2)
            logger.warning("out of memory", extra={"batch": len(batch), "next_batch_pixels": int(self._bound)})
        if isinstance(error, OutOfMemory) or len(works) == 1:
            for work in works.values():
                work.settle(error)
            return
        for work in works.values():
            self._process([item for item in batch if item.work is work])

    def _fail_waiting(self) -> None:
        for items in self._items.values():
            for item in items:
                item.work.settle(RuntimeError("the service stopped"))
        self._items.clear()
        self._not_started.clear()


def _deliver(item: _Item, output: Tensor) -> None:
    work = item.work
    work.outputs[item.index] = output
    if len(work.outputs) == len(work.inputs):
        work.settle([work.outputs[i] for i in range(len(work.inputs))])


def least_loaded(owners: Sequence[Owner]) -> Owner:
    """The owner with the fewest pixels assigned; the first among equals."""
    return min(owners, key=lambda owner: owner.load_pixels)
