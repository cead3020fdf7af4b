"""Who gets in: a queue bounded by requests, by bytes, by pixels and by age.

Everything here runs on the event loop, so nothing needs a lock. A request holds a `Ticket` from its headers
to its last byte sent; leaving by any way gives its place back.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from serving.errors import Problem

#: Assumed before anything was measured.
_FIRST_PIXELS_PER_S = 1e6
_LONGEST_RETRY_S = 60


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How much may be inside at once.

    Attributes:
        requests: requests being read or worked on.
        bytes: upload bytes held.
        pixels: pixels of the pictures being worked on; a lone picture may be larger.
        age_s: longest wait for the generator.
    """

    requests: int
    bytes: int
    pixels: int
    age_s: float


class Ticket:
    """One request's place."""

    def __init__(self, queue: Admission) -> None:
        self._queue = queue
        self.bytes = 0
        self.pixels = 0
        self.entered = time.monotonic()
        self.working: Future | None = None  # the thread work at hand
        self._released = False

    def add_bytes(self, count: int) -> None:
        """Accounts for upload bytes; raises Problem 503 when the service holds too many."""
        self._queue.add_bytes(self, count)

    def claim(self, pixels: int) -> None:
        """Accounts for the picture's pixels; raises Problem 503 when there is no room."""
        self._queue.claim(self, pixels)

    def release(self, *, completed: bool = False) -> None:
        """Gives the place back; more than once does no harm.

        Args:
            completed: the picture was restored (the rate that `Retry-After` comes from counts those).
        """
        if not self._released:
            self._released = True
            self._queue.forget(self, completed)

    def release_when_idle(self) -> None:
        """Gives the place back as soon as no thread works on this request any more."""
        future, loop = self.working, asyncio.get_running_loop()
        if future is None or future.done() or future.cancel():
            self.release()
        else:
            future.add_done_callback(lambda _: _on_loop(loop, self.release))


def _on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has closed: nobody counts any more
        loop.call_soon_threadsafe(call)


class Admission:
    """The bounded queue.

    Args:
        bounds: how much may be inside.
        oldest_wait_s: how long the longest waiting work has waited for the generator.
        on_reject: called with the reason of every refusal: requests, bytes, pixels, age or draining.
    """

    def __init__(self, bounds: Bounds, *, oldest_wait_s: Callable[[], float], on_reject: Callable[[str], None]) -> None:
        self.bounds = bounds
        self.draining = False
        self.requests = 0
        self.bytes = 0
        self.pixels = 0
        self._oldest_wait_s = oldest_wait_s
        self._on_reject = on_reject
        self._completed: deque[tuple[float, int]] = deque(maxlen=64)

    @property
    def full(self) -> bool:
        """Whether the next request would be refused."""
        return (
            self.requests >= self.bounds.requests
            or self.pixels >= self.bounds.pixels
            or self.bytes >= self.bounds.bytes
            or self._oldest_wait_s() > self.bounds.age_s
        )

    def check(self) -> None:
        """Whether there is a place for a request whose headers have come.

        Raises:
            Problem: 503 when draining or full.
        """
        if self.draining:
            self._on_reject("draining")
            raise Problem("draining", "Try another instance, or this one again soon.", retry_after_s=1)
        if self.requests >= self.bounds.requests:
            raise self.refusal("requests", f"{self.requests} requests are inside")
        if self.pixels >= self.bounds.pixels:
            raise self.refusal("pixels", f"{self.pixels} pixels are being worked on")

    def enter(self) -> Ticket:
        """A place for a request whose headers have come.

        Raises:
            Problem: 503 when draining or full.
        """
        self.check()
        self.requests += 1
        return Ticket(self)

    def add_bytes(self, ticket: Ticket, count: int) -> None:
        """See `Ticket.add_bytes`."""
        if self.bytes + count > self.bounds.bytes and self.bytes > ticket.bytes:
            raise self.refusal("bytes", f"{self.bytes} upload bytes are held")
        ticket.bytes += count
        self.bytes += count

    def claim(self, ticket: Ticket, pixels: int) -> None:
        """See `Ticket.claim`."""
        if self.pixels and self.pixels + pixels > self.bounds.pixels:
            raise self.refusal("pixels", f"{self.pixels} pixels are being worked on")
        if self._oldest_wait_s() > self.bounds.age_s:
            raise self.refusal("age", f"the oldest has waited {self._oldest_wait_s():.1f} s")
        ticket.pixels = pixels
        self.pixels += pixels

    def forget(self, ticket: Ticket, completed: bool) -> None:
        """See `Ticket.release`."""
        self.requests -= 1
        self.bytes -= ticket.bytes
        self.pixels -= ticket.pixels
        if completed:
            self._completed.append((time.monotonic(), ticket.pixels))

    def refusal(self, reason: str, detail: str) -> Problem:
        """A 503 that says when to come back; counted under its reason."""
        self._on_reject(reason)
        wait = self.retry_after_s()
        return Problem("queue-full", f"The service is busy: {detail}; try again in {wait} s.", retry_after_s=wait)

    def retry_after_s(self) -> int:
        """When about half of what is inside will be done, at the rate of late; 1 to 60 s."""
        return max(1, min(_LONGEST_RETRY_S, math.ceil(self.pixels / 2 / self._pixels_per_s())))

    def _pixels_per_s(self) -> float:
        if len(self._completed) < 2:
            return _FIRST_PIXELS_PER_S
        elapsed = time.monotonic() - self._completed[0][0]
        return max(1.0, sum(pixels for _, pixels in list(self._completed)[1:]) / max(elapsed, 1e-3))
