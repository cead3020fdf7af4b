import threading
import time

from serving.gate import Gate
from serving.pool import FINISH, PREPARE, Pool


class Crowd:
    """Threads that go through a gate; who is inside, and who came through in which order."""

    def __init__(self, gate):
        self.gate, self.leave, self.passed = gate, threading.Semaphore(0), []
        self.threads = []

    def send(self, name):
        def go():
            with self.gate:
                self.passed.append(name)
                assert self.leave.acquire(timeout=10)

        self.threads.append(threading.Thread(target=go))
        self.threads[-1].start()
        time.sleep(0.02)  # so that they stand in line in the order they are sent

    def end(self):
        for _ in self.threads:
            self.leave.release()
        for thread in self.threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in self.threads)


def wait_until(condition):
    until = time.monotonic() + 5
    while not condition() and time.monotonic() < until:
        time.sleep(0.002)
    assert condition()


def test_a_gate_is_wide_open_until_it_is_narrowed():
    crowd = Crowd(Gate())
    for name in range(6):
        crowd.send(name)
    wait_until(lambda: len(crowd.passed) == 6)
    crowd.end()


def test_a_narrow_gate_lets_so_many_in_first_come_first_served():
    gate = Gate()
    gate.narrow(2)
    crowd = Crowd(gate)
    for name in range(6):
        crowd.send(name)
    assert crowd.passed == [0, 1]
    for gone in range(1, 5):
        crowd.leave.release()
        wait_until(lambda gone=gone: len(crowd.passed) == 2 + gone)
        time.sleep(0.02)
        assert crowd.passed == list(range(2 + gone))
    crowd.end()
    with gate, gate:  # all places are free again
        pass


def test_those_inside_when_it_is_narrowed_count():
    gate = Gate()
    crowd = Crowd(gate)
    for name in range(3):
        crowd.send(name)
    gate.narrow(1)
    crowd.send("late")
    for _ in range(2):
        crowd.leave.release()
    time.sleep(0.05)
    assert "late" not in crowd.passed  # one of the three is still inside
    crowd.leave.release()
    wait_until(lambda: "late" in crowd.passed)
    crowd.end()


def test_a_failure_inside_frees_the_place():
    gate = Gate()
    gate.narrow(1)
    for _ in range(2):
        try:
            with gate:
                raise ValueError("inside")
        except ValueError:
            pass
    with gate:
        pass


def test_a_pool_at_a_gate_takes_what_is_most_urgent_when_it_is_let_in():
    gate, order = Gate(), []
    gate.narrow(1)
    pool = Pool(1, gate=gate)
    with gate:
        futures = [pool.submit(PREPARE, lambda: order.append("prepare"))]
        time.sleep(0.05)  # its thread stands at the gate by now
        assert not order
        futures.append(pool.submit(FINISH, lambda: order.append("finish")))
    for future in futures:
        future.result(5)
    assert order == ["finish", "prepare"]
    pool.close()
