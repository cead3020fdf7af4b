"""As many threads at work as there are processors.

More of them would not be quicker: they take the caches and the interpreter's lock from each other, a thousand times for
one picture. On a CPU, decoding, detection and the generator therefore share one gate.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType

_WIDE_OPEN = 1 << 20


class Gate:
    """A context that so many threads may be in at a time, first come, first served; wide open until it is narrowed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free = _WIDE_OPEN
        self._line: deque[threading.Lock] = deque()

    def narrow(self, places: int) -> None:
        """Bounds how many threads may be inside; those that are inside already stay. To be called once."""
        with self._lock:
            self._free -= _WIDE_OPEN - places

    def __enter__(self) -> None:
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return
            place = threading.Lock()
            place.acquire()
            self._line.append(place)
        place.acquire()  # until somebody who leaves hands his place over

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            if self._line and self._free >= 0:
                self._line.popleft().release()
            else:
                self._free += 1
