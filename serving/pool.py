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
    """

    def __init__(self, threads: int, name: str = "codec", begin: Callable[[], None] = lambda: None) -> None:
        self._begin = begin
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

    def _next(self) -> tuple[Future, Callable[[], object]] | None:
        with self._condition:
            while not self._waiting:
                if self._closed:
                    return None
                self._condition.wait()
            _, _, future, task = heapq.heappop(self._waiting)
            return future, task

    def _work(self) -> None:
        self._begin()
        while (item := self._next()) is not None:
            future, task = item
            if not future.set_running_or_notify_cancel():
                del item, future, task
                continue
            try:
                result = task()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
            del item, future, task  # an idle thread must not keep the last picture alive
