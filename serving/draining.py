"""SIGTERM and SIGINT: readiness off, then the server's own handling, which drains and exits.

A server (uvicorn) stops listening the moment it gets the signal. A balancer that has not looked at /readyz
since would still send requests, and they would be lost. So the signal first turns readiness off; the server
hears of it only after `drain_delay_s`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

logger = logging.getLogger("serving.draining")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def drain_on_signals(drain: Callable[[], None], delay_s: float) -> Iterator[None]:
    """Calls `drain` at the first SIGTERM or SIGINT and hands the signal on, SIGTERM after a delay.

    Does nothing outside the main thread (a test client, Ray Serve): there is no signal to hear there.

    Args:
        drain: turns readiness off; called on the event loop.
        delay_s: time between that and the server's own handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    previous: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}
    heard: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if callable(previous[number]):
            previous[number](number, frame)

    def on_loop(number: int, frame: FrameType | None) -> None:
        drain()
        loop.call_later(delay_s if number == signal.SIGTERM else 0.0, pass_on, number, frame)

    def handle(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        if len(heard) == 1:
            loop.call_soon_threadsafe(on_loop, number, frame)
        else:
            pass_on(number, frame)  # asked twice: at once

    ours = [number for number in _SIGNALS if callable(previous[number])]
    for number in ours:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is handle:
                signal.signal(number, previous[number])
