"""The parts of the service, put together: something that starts, serves, drains and stops."""

from __future__ import annotations

import asyncio
import logging

from deblur.errors import DeblurError
from serving.admission import Admission, Bounds
from serving.batching import BatchReport
from serving.fleet import Fleet
from serving.memory import TRIM_EVERY_S, give_back_free_memory
from serving.metrics import Metrics
from serving.pipeline import Pipeline
from serving.settings import Settings

logger = logging.getLogger("serving.service")


class Service:
    """Everything that one application holds.

    Args:
        settings: what the operator chose.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.fleet = Fleet(settings, expected=lambda: self.admission.requests, on_batch=self._count_batch)
        self.admission = Admission(
            Bounds(
                requests=settings.max_requests,
                bytes=settings.queue_bytes,
                pixels=settings.queue_pixels,
                age_s=settings.queue_age_s,
            ),
            oldest_wait_s=self.fleet.oldest_wait_s,
            on_reject=lambda reason: self.metrics.rejected.labels(reason).inc(),
        )
        self.pipeline = Pipeline(settings, self.fleet, self.admission, self.metrics)
        self._loading: asyncio.Task[None] | None = None
        self._trimming: asyncio.Task[None] | None = None
        self.metrics.follow(
            {
                "ready": lambda: float(self.ready),
                "queue_requests": lambda: self.admission.requests,
                "queue_pixels": lambda: self.admission.pixels,
                "queue_bytes": lambda: self.admission.bytes,
                "queue_items": self.fleet.waiting,
            }
        )

    @property
    def started(self) -> bool:
        """Whether the model is being loaded or has been."""
        return self._loading is not None

    @property
    def ready(self) -> bool:
        """Whether the next request would be taken."""
        return self.fleet.ready and not self.admission.draining and not self.admission.full

    def check(self) -> None:
        """Raises the Problem that the next picture would be refused with, if it would."""
        if not self.fleet.ready:
            raise self.fleet.not_ready()
        self.admission.check()

    def start(self) -> asyncio.Task[None]:
        """Begins to load the model on a thread; the task ends when it is ready or has failed."""
        self._loading = asyncio.create_task(self._load())
        self._trimming = asyncio.create_task(_trim())
        return self._loading

    async def _load(self) -> None:
        try:
            await asyncio.to_thread(self.fleet.load)
        except Exception as error:
            self.fleet.failure = error
            expected = isinstance(error, DeblurError)
            logger.critical("the model could not be loaded: %s", error, exc_info=None if expected else error)
            return
        model = self.fleet.require_model()
        devices = ",".join(replica.device for replica in self.fleet.replicas)
        self.metrics.model.labels(model.name, model.sha256, model.version, devices).set(1)

    def drain(self) -> None:
        """Refuses new requests; those inside go on."""
        self.admission.draining = True
        logger.info("draining", extra={"requests": self.admission.requests})

    async def stop(self) -> None:
        """Ends all threads; requests still inside fail."""
        self.admission.draining = True
        if self._trimming is not None:
            self._trimming.cancel()
        if self._loading is not None:
            await self._loading
        await asyncio.to_thread(self.fleet.close)
        await asyncio.to_thread(self.pipeline.close)

    def _count_batch(self, report: BatchReport) -> None:
        self.metrics.batch_items.observe(report.items)
        self.metrics.batch_requests.observe(report.requests)
        self.metrics.generator_pixels.inc(report.pixels)


async def _trim() -> None:
    while True:
        await asyncio.sleep(TRIM_EVERY_S)
        await asyncio.to_thread(give_back_free_memory)
