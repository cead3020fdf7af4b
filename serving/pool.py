"""The threads that decode, detect and encode: a fixed number, first the work that frees memory.

`concurrent.futures.ThreadPoolExecutor` is first come, first served: a crowd of pictures to decode would stand
before the pictures that only wait to be sent, and everything would be held in memory at once.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

T = TypeVar("T")

#: Priorities: the lower goes first.
FINISH, HEADER, PREPARE = 0, 1, 2


class Pool:
    """A bounded set of worker threads with priorities.

    Args:
        threads: how many.
        name: begins the names of the threads.
        begin: called first on each thread.
        gate: entered before a task is taken; it may hold the threads up.
    """

    def __init__(
        self,
        threads: int,
        name: str = "codec",
        begin: Callable[[], None] = lambda: None,
        gate: AbstractContextManager[None] | None = None,
    ) -> None:
        self._begin = begin
        self._gate = gate or nullcontext()
        self._condition = threading.Condition()
        self._waiting: list[tuple[int, int, Future, Callable[[], object]]] = []
        self._order = itertools.count()
        self._closed = False
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, priority: int, task: Callable[[], T]) -> Future[T]:
        """Runs `task` on some thread; cancelling the future before it starts takes it out of the queue.

        Raises:
            RuntimeError: the pool is closed.
        """
        future: Future[T] = Future()
        with self._condition:
            if self._closed:
                raise RuntimeError("the pool is closed")
            heapq.heappush(self._waiting, (priority, next(self._order), future, task))
            self._condition.notify()
        return future

    def close(self) -> None:
        """Cancels what has not started and waits for what has."""
        with self._condition:
            self._closed = True
            for _, _, future, _ in self._waiting:
                future.cancel()
            self._waiting.clear()
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()

    def _await_task(self) -> bool:
        """Whether there is one; False when the pool is closed."""
        with self._condition:
            while not self._waiting:
                if self._closed:
                    return False
                self._condition.wait()
            return True

    def _work(self) -> None:
        self._begin()
        while self._await_task():
            with self._gate:
                self._do_first()

    def _do_first(self) -> None:
        """The task that is first by now; it and its result are not kept, for an idle thread keeps no picture alive."""
        with self._condition:
            if not self._waiting:  # another thread was quicker
                return
            _, _, future, task = heapq.heappop(self._waiting)
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = task()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
