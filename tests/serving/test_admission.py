import asyncio
from concurrent.futures import Future

import pytest

from serving.admission import Admission, Bounds
from serving.errors import Problem


class Queue:
    """An Admission with what it was told and what it told."""

    def __init__(self, **bounds):
        self.age_s = 0.0
        self.rejected = []
        values = {"requests": 3, "bytes": 100, "pixels": 1000, "age_s": 5.0, **bounds}
        self.admission = Admission(Bounds(**values), oldest_wait_s=lambda: self.age_s, on_reject=self.rejected.append)


def refusal(call, *args):
    with pytest.raises(Problem) as caught:
        call(*args)
    assert caught.value.status == 503
    assert int(caught.value.headers["Retry-After"]) >= 1
    return caught.value


def test_requests_are_bounded_and_leaving_frees_the_place():
    queue = Queue()
    tickets = [queue.admission.enter() for _ in range(3)]
    assert queue.admission.full
    refusal(queue.admission.enter)
    tickets[0].release()
    tickets[0].release()  # twice does no harm
    queue.admission.enter()
    refusal(queue.admission.enter)
    assert queue.rejected == ["requests", "requests"]


def test_pixels_are_bounded_but_a_lone_picture_gets_in():
    queue = Queue()
    big, small = queue.admission.enter(), queue.admission.enter()
    big.claim(5000)
    refusal(small.claim, 1)
    refusal(queue.admission.enter)  # full is known before the body is read
    big.release()
    small.claim(400)
    other = queue.admission.enter()
    other.claim(600)
    assert queue.admission.pixels == 1000
    assert queue.rejected == ["pixels", "pixels"]


def test_bytes_are_bounded_across_requests():
    queue = Queue()
    first, second = queue.admission.enter(), queue.admission.enter()
    first.add_bytes(60)
    second.add_bytes(40)
    refusal(second.add_bytes, 1)
    first.release()
    second.add_bytes(60)
    assert queue.admission.bytes == 100


def test_age_is_bounded():
    queue = Queue()
    ticket = queue.admission.enter()
    queue.age_s = 5.1
    assert queue.admission.full
    refusal(ticket.claim, 1)
    assert queue.rejected == ["age"]


def test_draining_refuses_and_says_so():
    queue = Queue()
    queue.admission.draining = True
    assert refusal(queue.admission.enter).code == "draining"


def test_everything_is_given_back():
    queue = Queue()
    for _ in range(10):
        ticket = queue.admission.enter()
        ticket.add_bytes(50)
        ticket.claim(500)
        ticket.release(completed=True)
    assert (queue.admission.requests, queue.admission.bytes, queue.admission.pixels) == (0, 0, 0)


def test_retry_after_follows_the_backlog_and_the_rate(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("serving.admission.time.monotonic", lambda: clock[0])
    queue = Queue(pixels=10_000_000)
    for _ in range(11):  # 1000 pixels a second
        ticket = queue.admission.enter()
        ticket.claim(1000)
        ticket.release(completed=True)
        clock[0] += 1
    for pixels, expected in ((500, 1), (20_000, 11), (9_000_000, 60)):
        ticket = queue.admission.enter()
        ticket.claim(pixels)
        assert queue.admission.retry_after_s() == pytest.approx(expected, abs=1)
        ticket.release()


def test_a_dropped_request_keeps_its_place_until_its_thread_is_done():
    async def run():
        queue = Queue()
        ticket = queue.admission.enter()
        ticket.claim(1000)
        ticket.working = Future()
        ticket.working.set_running_or_notify_cancel()
        ticket.release_when_idle()
        assert queue.admission.pixels == 1000
        ticket.working.set_result(None)
        await asyncio.sleep(0)
        assert queue.admission.pixels == 0

    asyncio.run(run())


def test_a_dropped_request_that_has_not_started_frees_its_place_at_once():
    async def run():
        queue = Queue()
        ticket = queue.admission.enter()
        ticket.working = Future()
        ticket.release_when_idle()
        assert queue.admission.requests == 0
        assert ticket.working.cancelled()

    asyncio.run(run())
