"""A large picture's tiles through the generator: a few in flight, so that they are never all in memory."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError

from torch import Tensor

from serving.batching import Owner, Work

_IN_FLIGHT = 4


class TileStream:
    """The outputs of many inputs, in order; iterated once, on a thread that may block.

    Args:
        owner: runs the generator.
        inputs: (3, h, w) tensors, cut one by one when their turn comes.
    """

    def __init__(self, owner: Owner, inputs: Sequence[Tensor]) -> None:
        self._owner = owner
        self._inputs = inputs
        self._lock = threading.Lock()
        self._flying: deque[Work] = deque()
        self._dropped = False
        self.waited_s = 0.0

    def drop(self) -> None:
        """Takes what has not started out of the generator's queue; the iteration fails at its next step."""
        with self._lock:
            self._dropped = True
            for work in self._flying:
                work.future.cancel()

    def __iter__(self) -> Iterator[Tensor]:
        for tensor in self._inputs:
            self._launch(tensor)
            if len(self._flying) >= _IN_FLIGHT:
                yield self._land()
        while self._flying:
            yield self._land()

    def _launch(self, tensor: Tensor) -> None:
        with self._lock:
            if self._dropped:
                raise CancelledError
            self._flying.append(self._owner.submit([tensor]))

    def _land(self) -> Tensor:
        begun = time.monotonic()
        output = self._flying[0].future.result()[0]
        with self._lock:
            self._flying.popleft()
        self.waited_s += time.monotonic() - begun
        return output
