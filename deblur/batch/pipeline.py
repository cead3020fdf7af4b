"""Decode and detect, generate, finish and encode: side by side, so that the generator is what is waited for.

Reader threads decode pictures and find faces; the calling thread runs the generator on the inputs of
several pictures at once; writer threads blend, look again, encode and write. What is in flight is bounded
by its pixels.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from deblur.batch.journal import Entry, Journal, now
from deblur.batch.outcome import Outcome, explain, is_done, mean_score
from deblur.batch.plan import Job, Names, suffix_fits
from deblur.batch.stores import LocalStore, Store, Times
from deblur.errors import DeblurError, DeviceError, OutOfMemory, WeightsError
from deblur.images import Limits, Picture, decode, encode, output_format, probe

if TYPE_CHECKING:
    from deblur.restoration import Restorer
    from deblur.results import Restoration

_log = logging.getLogger("deblur.batch")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How each picture is treated.

    Attributes:
        output: Output folder. mode: "auto", "faces" or "whole". format: Family to write, or None to keep
        each picture's own. quality: 1 to 100 for lossy formats, or None. overwrite: Whether files that are
        there already are replaced. jobs: Threads that read, and as many that write. pixels_in_flight: Most
        pixels of all pictures between decoding and writing; a larger picture goes alone. batch_pixels:
        Pixels of generator inputs that are waited for to fill a batch, at most. limits: What is refused
        before decoding.
    """

    output: Path
    mode: str = "auto"
    format: str | None = None
    quality: int | None = None
    overwrite: bool = False
    jobs: int = 2
    pixels_in_flight: int = 32_000_000
    batch_pixels: int = 1_000_000
    compare: bool = False
    limits: Limits = field(default_factory=Limits)

    @property
    def fingerprint(self) -> str:
        """What, besides the input and the weights, decides a result."""
        return f"mode={self.mode} format={self.format or 'keep'} quality={self.quality or 'default'}"


@dataclass(kw_only=True)
class _Work:
    """A picture on its way."""

    job: Job
    pixels: int
    content: bytes
    digest: str
    times_ns: Times | None
    picture: Picture
    plan: Any
    inputs: list[Any] | None  # None: too many to keep, cut again as they are used
    input_pixels: int
    seconds: float


_FATAL = (WeightsError, DeviceError)  # not the fault of a picture
_Result = Any  # list of generator outputs, or a Restoration


class PixelBudget:
    """Admits pictures while their pixels together stay within a limit; one larger than that goes alone."""

    def __init__(self, limit: int):
        self._limit = limit
        self._held = 0
        self._changed = threading.Condition()

    def acquire(self, pixels: int, stopped: Callable[[], bool]) -> bool:
        """Waits for room; False when the work was stopped meanwhile."""
        with self._changed:
            while self._held and self._held + pixels > self._limit:
                if stopped():
                    return False
                self._changed.wait(0.2)
            self._held += pixels
            return True

    def release(self, pixels: int) -> None:
        """Gives room back."""
        with self._changed:
            self._held -= pixels
            self._changed.notify_all()


class Pipeline:
    """Restores pictures of a folder.

    Args:
        restorer: Does the work.
        journal: Says what is done already; every picture is written down there.
        names: Gives out further output names.
        settings: How each picture is treated.
        done: Is told of each picture, in any order, by one thread at a time.
        store: Where files are; this machine's when None.
    """

    def __init__(
        self,
        restorer: Restorer,
        journal: Journal,
        names: Names,
        settings: Settings,
        done: Callable[[Outcome], None],
        store: Store | None = None,
    ):
        self.store = store or LocalStore(settings.output)
        self.restorer = restorer
        self.journal = journal
        self.names = names
        self.settings = settings
        self._done = done
        self._done_lock = threading.Lock()
        self._stop = threading.Event()
        self._budget = PixelBudget(settings.pixels_in_flight)
        self._ready: queue.Queue[_Work | None] = queue.Queue()
        self._jobs: Iterator[Job] = iter(())
        self._jobs_lock = threading.Lock()
        self._fatal: Exception | None = None

    def stop(self) -> None:
        """Takes no further picture; those in flight are finished."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def run(self, jobs: Sequence[Job]) -> None:
        """Works through the jobs; failures of single pictures are outcomes, not exceptions.

        Raises:
            WeightsError: Weights turned out to be missing or damaged: no picture can be restored.
            DeviceError: The device is gone.
        """
        self._jobs = iter(jobs)
        readers = [threading.Thread(target=self._read_all, daemon=True) for _ in range(self.settings.jobs)]
        for reader in readers:
            reader.start()
        with ThreadPoolExecutor(self.settings.jobs, thread_name_prefix="deblur-write") as writers:
            left = len(readers)
            while left:
                left, works = self._next_works(left)
                for work, result in self._generate(works):
                    writers.submit(self._finish, work, result)
        for reader in readers:
            reader.join()
        if self._fatal is not None:
            raise self._fatal

    # Reading

    def _read_all(self) -> None:
        try:
            while not self.stopped:
                with self._jobs_lock:
                    job = next(self._jobs, None)
                if job is None:
                    return
                self._read_guarded(job)
        finally:
            self._ready.put(None)

    def _read_guarded(self, job: Job) -> None:
        held = 0
        try:
            skipped = self._reason_to_skip(job)
            if skipped:
                self._report(Outcome(job=job, entry=self.journal.latest.get(job.key), skipped=skipped))
                return
            content, times_ns = self.store.read(job.source, self.settings.limits)
            header = probe(content, self.settings.limits, name=str(job.source))
            pixels = header.width * header.height
            if not self._budget.acquire(pixels, lambda: self.stopped):
                return
            held = pixels
            self._ready.put(self._read(job, content, times_ns, pixels))
            held = 0
        except Exception as error:
            self._fail(job, error)
        finally:
            if held:
                self._budget.release(held)

    def _reason_to_skip(self, job: Job) -> str:
        if self.settings.overwrite and (self.settings.output / job.output) != job.source:
            return ""
        weights = self.restorer.weights.sha256
        if is_done(job, self.journal, self.settings, weights):
            return "done before"
        if self.settings.overwrite or job.key in self.journal.latest:
            return ""
        return "exists" if self.store.exists(job.output) else ""

    def _read(self, job: Job, content: bytes, times_ns: Times | None, pixels: int) -> _Work:
        started = time.perf_counter()
        picture = decode(content, self.settings.limits, name=str(job.source))
        plan = self.restorer.plan(picture, mode=self.settings.mode)
        input_pixels = sum(region.side[0] * region.side[1] for region in plan.regions)
        return _Work(
            job=job,
            pixels=pixels,
            content=content,
            digest=hashlib.sha256(content).hexdigest(),
            times_ns=times_ns,
            picture=picture,
            plan=plan,
            inputs=list(plan.inputs) if input_pixels <= self.settings.batch_pixels else None,
            input_pixels=input_pixels,
            seconds=time.perf_counter() - started,
        )

    # Generating

    def _next_works(self, left: int) -> tuple[int, list[_Work]]:
        """Waits for a picture, then takes what else is ready; also how many readers are still at work."""
        works: list[_Work] = []
        pixels = 0
        while left and pixels < self.settings.batch_pixels:
            try:
                work = self._ready.get(block=not works)
            except queue.Empty:
                break
            if work is None:
                left -= 1
                continue
            works.append(work)
            pixels += work.input_pixels
        return left, works

    def _generate(self, works: list[_Work]) -> Iterator[tuple[_Work, _Result]]:
        """Runs the generator on pictures; one that fails does not take the others with it."""
        small = [work for work in works if work.inputs is not None]
        for work in works:
            if work.inputs is None:
                yield from self._guarded([work], self._streamed)
        if small:
            yield from self._guarded(small, self._batched)

    def _guarded(
        self, works: list[_Work], generate: Callable[[list[_Work]], list[_Result]]
    ) -> Iterator[tuple[_Work, _Result]]:
        try:
            yield from zip(works, generate(works), strict=True)
        except Exception as error:
            if len(works) == 1:
                self._fail(works[0].job, error, works[0])
                self._budget.release(works[0].pixels)
                return
            if not isinstance(error, OutOfMemory):
                _log.warning("a batch of %d pictures failed (%s); trying one by one", len(works), error)
            for work in works:
                yield from self._guarded([work], generate)

    def _batched(self, works: list[_Work]) -> list[_Result]:
        started = time.perf_counter()
        inputs = [item for work in works for item in work.inputs or ()]
        outputs = iter(self.restorer.generate(inputs) if inputs else ())
        seconds = time.perf_counter() - started
        results: list[_Result] = []
        for work in works:
            count = len(work.inputs or ())
            work.seconds += seconds * count / max(1, len(inputs))
            results.append([next(outputs) for _ in range(count)])
            work.inputs = None
        return results

    def _streamed(self, works: list[_Work]) -> list[_Result]:
        """A picture of many inputs: what they give would take too much memory if it were all kept."""
        (work,) = works
        started = time.perf_counter()
        restoration = self.restorer.finish(work.plan, self.restorer.stream(work.plan.inputs))
        work.seconds += time.perf_counter() - started
        return [restoration]

    # Finishing

    def _finish(self, work: _Work, result: _Result) -> None:
        try:
            started = time.perf_counter()
            restoration = self.restorer.finish(work.plan, result) if isinstance(result, list) else result
            work.plan = None
            content, changed, family = self._encoded(work, restoration)
            output = self._output_name(work, family)
            work.seconds += time.perf_counter() - started
            path = self.settings.output / output
            entry = self._entry(work, restoration, content, output, "restored" if changed else "unchanged")
            self.journal.append(entry)  # ahead of the result: see journal.py
            self.store.write(output, content, work.times_ns)
            if self.settings.compare:
                self._compare(work, restoration, output)
            self._report(Outcome(job=work.job, entry=entry, before=work.picture, restoration=restoration, written=path))
        except Exception as error:
            self._fail(work.job, error, work)
        finally:
            self._budget.release(work.pixels)

    def _compare(self, work: _Work, restoration: Restoration, output: str) -> None:
        from deblur.batch.compare import write_comparison

        before, after = restoration.faces_before, restoration.faces_after
        try:
            write_comparison(self.settings.output, output, work.picture, restoration.picture, before, after)
        except DeblurError as error:  # the result itself is safe
            _log.warning("%s", error)

    def _encoded(self, work: _Work, restoration: Restoration) -> tuple[bytes, bool, str]:
        """The file, whether the picture changed, and the family it is of."""
        changed = not np.array_equal(restoration.picture.levels, work.picture.levels)
        family = output_format(work.picture, self.settings.format)
        as_it_is = family == work.picture.format and self.settings.quality is None
        if not changed and (self.settings.format is None or as_it_is):
            return work.content, False, work.picture.format  # encoding it again could only lose something
        return encode(restoration.picture, family, self.settings.quality), changed, family

    def _output_name(self, work: _Work, family: str) -> str:
        """The planned name, unless the picture became PNG because its own format cannot hold it.

        A file whose name does not fit its content keeps that name where its format is kept.
        """
        output = work.job.output
        if suffix_fits(output, family) or family == work.picture.format:
            return output
        return self.names.claim_as(PurePosixPath(f"{output}.{family.lower()}"), family)

    def _entry(self, work: _Work, restoration: Restoration, content: bytes, output: str, status: str) -> Entry:
        before, after = restoration.faces_before, restoration.faces_after
        return replace(
            self._blank_entry(work.job),
            output=output,
            status=status,
            input_sha256=work.digest,
            input_bytes=len(work.content),
            input_mtime_ns=work.times_ns[1] if work.times_ns else 0,
            output_sha256=hashlib.sha256(content).hexdigest(),
            output_bytes=len(content),
            faces_before=len(before),
            faces_after=len(after),
            confidence_before=mean_score(before),
            confidence_after=mean_score(after),
            seconds=round(work.seconds, 4),
            warnings=tuple(work.picture.warnings),
        )

    def _blank_entry(self, job: Job) -> Entry:
        weights = self.restorer.weights
        return Entry(
            key=job.key,
            source=str(job.source),
            weights=weights.name,
            weights_sha256=weights.sha256,
            settings=self.settings.fingerprint,
            finished=now(),
        )

    def _fail(self, job: Job, error: Exception, work: _Work | None = None) -> None:
        if isinstance(error, _FATAL) and not isinstance(error, OutOfMemory):
            self._fatal = error
            self.stop()
            return
        if not isinstance(error, (DeblurError, OSError)):
            _log.debug("unexpected error on %s", job.source, exc_info=error)
        entry = replace(
            self._blank_entry(job),
            status="failed",
            input_sha256=work.digest if work else "",
            input_bytes=len(work.content) if work else 0,
            seconds=round(work.seconds, 4) if work else 0.0,
            error=explain(error, job.source),
        )
        with contextlib.suppress(DeblurError):  # a full disk may refuse this line as well
            self.journal.append(entry)
        self._report(Outcome(job=job, entry=entry))

    def _report(self, outcome: Outcome) -> None:
        with self._done_lock:
            self._done(outcome)
