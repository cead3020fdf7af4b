import gc
import threading
import weakref

import pytest

from serving.pool import FINISH, PREPARE, Pool


@pytest.fixture
def pool():
    pool = Pool(1)
    yield pool
    pool.close()


def blocked(pool):
    """Keeps the pool's only thread busy until the event is set."""
    gate, started = threading.Event(), threading.Event()

    def hold():
        started.set()
        gate.wait(5)

    future = pool.submit(FINISH, hold)
    assert started.wait(5)
    return gate, future


def test_work_that_frees_memory_goes_first_and_equals_in_order(pool):
    gate, _ = blocked(pool)
    order = []
    futures = [pool.submit(PREPARE, lambda i=i: order.append(f"prepare {i}")) for i in range(3)]
    futures.append(pool.submit(FINISH, lambda: order.append("finish")))
    gate.set()
    for future in futures:
        future.result(5)
    assert order == ["finish", "prepare 0", "prepare 1", "prepare 2"]


def test_a_cancelled_task_never_runs(pool):
    gate, _ = blocked(pool)
    ran = []
    future = pool.submit(PREPARE, lambda: ran.append(1))
    after = pool.submit(PREPARE, lambda: "after")
    assert future.cancel()
    gate.set()
    assert after.result(5) == "after"
    assert not ran


def test_a_failure_reaches_its_own_caller_alone(pool):
    failing = pool.submit(PREPARE, lambda: 1 / 0)
    fine = pool.submit(PREPARE, lambda: 42)
    assert fine.result(5) == 42
    with pytest.raises(ZeroDivisionError):
        failing.result(5)


def test_results_are_not_kept_alive_by_idle_threads(pool):
    class Big:
        pass

    big = Big()
    seen = weakref.ref(big)
    future = pool.submit(PREPARE, lambda kept=big: kept)
    assert future.result(5) is big
    pool.submit(PREPARE, lambda: None).result(5)
    del big, future
    gc.collect()
    assert seen() is None


def test_threads_are_as_many_as_asked_for():
    pool = Pool(3, name="counted")
    barrier = threading.Barrier(3)
    futures = [pool.submit(PREPARE, lambda: barrier.wait(5)) for _ in range(3)]
    assert sorted(f.result(5) for f in futures) == [0, 1, 2]
    assert sum(t.name.startswith("counted-") for t in threading.enumerate()) == 3
    pool.close()


def test_closing_cancels_what_waits_and_refuses_more():
    pool = Pool(1)
    gate, running = blocked(pool)
    waiting = pool.submit(PREPARE, lambda: None)
    threading.Timer(0.05, gate.set).start()
    pool.close()
    assert running.done()
    assert waiting.cancelled()
    with pytest.raises(RuntimeError):
        pool.submit(PREPARE, lambda: None)
