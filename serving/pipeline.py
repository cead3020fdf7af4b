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
from typing import TYPE_CHECKING, TypeVar

from deblur import images
from deblur.images import Limits
from serving.admission import Admission, Ticket
from serving.batching import TooOld
from serving.fleet import Fleet, Model, Replica
from serving.metrics import Metrics
from serving.pool import FINISH, HEADER, PREPARE, Pool
from serving.settings import Settings
from serving.telemetry import span

if TYPE_CHECKING:
    from deblur.restoration import Plan, Restoration
    from torch import Tensor

T = TypeVar("T")


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
        self._pool = Pool(settings.codec_threads)

    def close(self) -> None:
        """Ends the pool's threads."""
        self._pool.close()

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
        header = await self._on_thread(ticket, HEADER, lambda: images.probe(bytes(body), self._limits))
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

        def prepare() -> Plan:
            with times.stage("decode"):
                picture = images.decode(body, self._limits)
            body.clear()  # the upload need not stay while the picture waits
            with times.stage("detect"):
                return restorer.plan(picture, mode=mode)

        def conclude() -> Outcome:
            with times.stage("finish"):
                restoration = restorer.finish(plan, outputs)
            picture = restoration.picture
            name = choose_format(images.output_format(picture).lower())
            payload = None
            if encode:
                with times.stage("encode"):
                    payload = images.encode(picture, name)
            return Outcome(
                restoration=restoration,
                payload=payload,
                format=name,
                model=self._fleet.require_model(),
                timings_s=times.seconds,
            )

        plan = await self._on_thread(ticket, PREPARE, prepare)
        outputs = await self._generate(replica, plan, times)
        outcome = await self._on_thread(ticket, FINISH, conclude)
        self._metrics.count_restoration(outcome.restoration, ticket.pixels)
        return outcome

    async def _generate(self, replica: Replica, plan: Plan, times: Stopwatch) -> list[Tensor]:
        with span("generate", tensors=len(plan.inputs)):
            work = replica.owner.submit(plan.inputs)
            outputs = await asyncio.wrap_future(work.future)
        ended = time.monotonic()
        began = work.began or ended
        times.add("wait", began - work.arrived)
        times.add("infer", ended - began)
        return outputs

    async def _on_thread(self, ticket: Ticket, priority: int, task: Callable[[], T]) -> T:
        context = contextvars.copy_context()  # the request id and the trace go along
        future: Future[T] = self._pool.submit(priority, lambda: context.run(task))
        ticket.working = future
        return await asyncio.wrap_future(future)


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
