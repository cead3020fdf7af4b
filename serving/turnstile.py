"""A few at a time through the event loop, so that in a crowd nobody who is quick waits for all of it."""

from __future__ import annotations

import asyncio
from collections import deque

#: A refusal takes about a quarter of a millisecond.
_AT_ONCE = 8


class Turnstile:
    """Lets a few coroutines pass in every turn of the event loop; the others wait in line.

    A crowd whose requests arrive together would otherwise be worked off in one turn, in which no probe is heard.
    """

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._at_once = at_once
        self._passed = 0
        self._turning = False
        self._line: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Returns when it is the caller's turn."""
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)
        if self._passed < self._at_once:
            self._passed += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        await place

    def _turn(self) -> None:
        self._passed = 0
        while self._line and self._passed < self._at_once:
            place = self._line.popleft()
            if not place.done():  # done: cancelled
                place.set_result(None)
                self._passed += 1
        self._turning = bool(self._passed)
        if self._turning:
            asyncio.get_running_loop().call_soon(self._turn)
