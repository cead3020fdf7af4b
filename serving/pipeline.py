"""One picture's way: header -> place in the queue -> decode, detect -> generate -> blend, detect -> encode.

What needs the processor runs on the pool's threads, the generator on its owner's; the event loop only waits.
A request that is dropped (deadline passed, client gone) is cancelled: what has not started never starts.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from deblur import images
from deblur.images import Limits
from serving.admission import Admission, Ticket
from serving.batching import TooOld, use_torch_threads
from serving.fleet import Fleet, Model, Replica
from serving.metrics import Metrics
from serving.pool import FINISH, HEADER, PREPARE, Pool
from serving.settings import Settings
from serving.streaming import TileStream
from serving.telemetry import span

if TYPE_CHECKING:
    from torch import Tensor

    from deblur.restoration import Plan, Restoration

T = TypeVar("T")

#: More generator input than this is streamed through rather than held at once, for so many pictures at a time.
_LARGE_PIXELS = 1 << 22
_LARGE_AT_ONCE = 2


@dataclass(kw_only=True)
class Outcome:
    """A restored picture, ready to send.

    Attributes:
        restoration: the library's result.
        payload: the encoded picture, or None when it was not asked for.
        format: of the payload: png, jpeg, webp, tiff or avif.
        model: the weights at work.
        timings_s: seconds by stage.
    """

    restoration: Restoration
    payload: bytes | None
    format: str
    model: Model
    timings_s: dict[str, float] = field(default_factory=dict)


class Pipeline:
    """Runs requests; one for an application."""

    def __init__(self, settings: Settings, fleet: Fleet, admission: Admission, metrics: Metrics) -> None:
        self._limits = Limits(max_bytes=settings.max_body_bytes, max_pixels=settings.max_pixels)
        self._fleet = fleet
        self._admission = admission
        self._metrics = metrics
        alone = partial(use_torch_threads, 1)
        self._pool = Pool(settings.codec_threads, begin=alone, gate=fleet.gate)
        self._large = Pool(_LARGE_AT_ONCE, name="large", begin=alone)  # its threads wait for the generator

    def close(self) -> None:
        """Ends the threads."""
        self._pool.close()
        self._large.close()

    async def run(
        self, body: bytearray, *, mode: str, choose_format: Callable[[str], str], encode: bool, ticket: Ticket
    ) -> Outcome:
        """Restores one picture.

        Args:
            body: the file's bytes.
            mode: auto, faces or whole.
            choose_format: from the format that the picture would keep (png, jpeg...) to the one to write.
            encode: whether the picture is wanted, or the report alone.
            ticket: this request's place.

        Raises:
            Problem: the queue is full or too old, or nothing is ready.
            ImageError: the picture cannot be used.
            OutOfMemory: on the device, after the library's smaller retry.
        """
        header = await self._on_thread(self._pool, ticket, HEADER, lambda: images.probe(bytes(body), self._limits))
        pixels = header.width * header.height
        ticket.claim(pixels)
        replica = self._fleet.choose()
        replica.owner.load_pixels += pixels
        try:
            return await self._restore(replica, body, mode, choose_format, encode, ticket)
        except TooOld as error:
            raise self._admission.refusal("age", str(error)) from error
        finally:
            replica.owner.load_pixels -= pixels

    async def last(self, ticket: Ticket, task: Callable[[], T]) -> T:
        """What a task on the restored picture gives; it runs on the pool, before the pictures that come after."""
        return await self._on_thread(self._pool, ticket, FINISH, task)

    async def _restore(
        self,
        replica: Replica,
        body: bytearray,
        mode: str,
        choose_format: Callable[[str], str],
        encode: bool,
        ticket: Ticket,
    ) -> Outcome:
        restorer, times = replica.restorer, Stopwatch(self._metrics)

        def prepare() -> tuple[Plan, list[Tensor] | None]:
            with times.stage("decode"):
                picture = images.decode(body, self._limits)
            body.clear()  # the upload need not stay while the picture waits
            with times.stage("detect"):
                plan = restorer.plan(picture, mode)
                return plan, None if _is_large(plan) else list(plan.inputs)

        plan, inputs = await self._on_thread(self._pool, ticket, PREPARE, prepare)
        if inputs is None:
            restoration = await self._finish_streaming(replica, plan, times, ticket)
        else:
            outputs = await self._generate(replica, inputs, times)
            restoration = await self._on_thread(
                self._pool, ticket, FINISH, lambda: times.run("finish", lambda: restorer.finish(plan, outputs))
            )
        picture = restoration.picture
        name = choose_format(images.output_format(picture).lower())
        payload = None
        if encode:
            payload = await self._on_thread(
                self._pool, ticket, FINISH, lambda: times.run("encode", lambda: images.encode(picture, name))
            )
        self._metrics.count_restoration(restoration, ticket.pixels)
        return Outcome(
            restoration=restoration,
            payload=payload,
            format=name,
            model=self._fleet.require_model(),
            timings_s=times.seconds,
        )

    async def _generate(self, replica: Replica, inputs: list[Tensor], times: Stopwatch) -> list[Tensor]:
        with span("generate", tensors=len(inputs)):
            work = replica.owner.submit(inputs)
            outputs = await asyncio.wrap_future(work.future)
        ended = time.monotonic()
        began = work.began or ended
        times.add("wait", began - work.arrived)
        times.add("infer", ended - began)
        return outputs

    async def _finish_streaming(self, replica: Replica, plan: Plan, times: Stopwatch, ticket: Ticket) -> Restoration:
        """Blends while the generator goes on, so that the tiles of a large picture are never all in memory."""
        stream = TileStream(replica.owner, plan.inputs)

        def finish() -> Restoration:
            restoration = times.run("finish", lambda: replica.restorer.finish(plan, stream))
            times.add("infer", stream.waited_s)
            return restoration

        try:
            return await self._on_thread(self._large, ticket, PREPARE, finish)
        finally:
            stream.drop()

    async def _on_thread(self, pool: Pool, ticket: Ticket, priority: int, task: Callable[[], T]) -> T:
        context = contextvars.copy_context()  # the request id and the trace go along
        future: Future[T] = pool.submit(priority, lambda: context.run(task))
        ticket.working = future
        return await asyncio.wrap_future(future)


def _is_large(plan: Plan) -> bool:
    return sum(region.side[0] * region.side[1] for region in plan.regions) > _LARGE_PIXELS


class Stopwatch:
    """Seconds by stage, for the reply and for the metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.seconds: dict[str, float] = {}

    def add(self, stage: str, seconds: float) -> None:
        """Adds time to a stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        self._metrics.stage.labels(stage).observe(seconds)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times the block as a stage, and makes it a span of the trace."""
        begun = time.monotonic()
        with span(name):
            yield
        self.add(name, time.monotonic() - begun)

    def run(self, name: str, task: Callable[[], T]) -> T:
        """The task's result; its time counts as a stage."""
        with self.stage(name):
            return task()
