"""The owner thread, around a real restorer; faults are put in where the device would fail."""

import threading
import time
from concurrent.futures import CancelledError

import pytest
import torch

import deblur
from deblur.errors import OutOfMemory
from serving.batching import Owner, TooOld, least_loaded
from serving.gate import Gate
from serving.streaming import TileStream


class Watched:
    """A real restorer whose batches are recorded, slowed down and made to fail."""

    def __init__(self, restorer):
        self.restorer = restorer
        self.batches = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.fail = lambda inputs: None

    def generate(self, inputs):
        self.entered.set()
        self.gate.wait(10)
        self.batches.append([tuple(i.shape[-2:]) for i in inputs])
        error = self.fail(inputs)
        if error:
            raise error
        return self.restorer.generate(inputs)


@pytest.fixture(scope="module")
def restorer(weights):
    return deblur.load(weights, device="cpu", precision="fp32")


@pytest.fixture
def engine(restorer):
    return Watched(restorer)


@pytest.fixture
def own(engine):
    owners = []

    def make(**changes):
        values = {"max_pixels": 4 * 32 * 32, "wait_s": 0.0, "max_age_s": 30.0, **changes}
        owners.append(Owner(engine, **values))
        return owners[-1]

    yield make
    engine.gate.set()
    for owner in owners:
        owner.close()


def tensor(side=32, value=None, seed=0):
    if value is not None:
        return torch.full((3, side, side), value)
    return torch.rand((3, side, side), generator=torch.Generator().manual_seed(seed))


def held_up(owner, engine):
    """Keeps the owner busy with one small input, so that what comes next queues up."""
    engine.gate.clear()
    engine.entered.clear()
    work = owner.submit([tensor(16)])
    assert engine.entered.wait(5)
    return work


def test_each_request_gets_its_own_outputs_in_order(own, engine, restorer):
    owner = own()
    held_up(owner, engine)
    inputs = [[tensor(32, seed=10 * r + i) for i in range(3)] for r in range(5)]
    works = [owner.submit(request) for request in inputs]
    engine.gate.set()
    for work, request in zip(works, inputs, strict=True):
        for output, expected in zip(work.future.result(10), restorer.generate(request), strict=True):
            assert torch.allclose(output, expected, atol=1e-5)


def test_requests_share_batches_of_one_size_within_the_bound(own, engine):
    owner = own()
    held_up(owner, engine)
    works = [owner.submit([tensor(32)]) for _ in range(6)] + [owner.submit([tensor(48)]) for _ in range(2)]
    engine.gate.set()
    for work in works:
        work.future.result(10)
    assert engine.batches[1:] == [[(32, 32)] * 4, [(32, 32)] * 2, [(48, 48)], [(48, 48)]]


def test_an_input_larger_than_the_bound_goes_alone(own, engine):
    own(max_pixels=10).submit([tensor(64), tensor(64)]).future.result(10)
    assert engine.batches == [[(64, 64)], [(64, 64)]]


def test_no_inputs_are_done_at_once(own):
    assert own().submit([]).future.result(0) == []


def test_a_batch_waits_for_others_who_may_come(own, engine):
    owner = own(wait_s=0.5, expected=lambda: 2)
    first = owner.submit([tensor()])
    time.sleep(0.05)
    assert not first.future.done()
    second = owner.submit([tensor()])
    first.future.result(10)
    second.future.result(10)
    assert engine.batches == [[(32, 32)] * 2]


def test_a_lone_request_does_not_wait(own):
    begun = time.monotonic()
    own(wait_s=5.0, expected=lambda: 1).submit([tensor()]).future.result(10)
    assert time.monotonic() - begun < 2


def test_a_full_batch_does_not_wait(own):
    begun = time.monotonic()
    own(wait_s=5.0, expected=lambda: 9).submit([tensor()] * 4).future.result(10)
    assert time.monotonic() - begun < 2


def test_a_small_request_is_not_held_up_by_a_large_one(own, engine):
    owner = own(max_pixels=2 * 32 * 32)
    owner._pixels_per_s = 1e4  # each of the large request's tensors counts for a tenth of a second
    held_up(owner, engine)
    large = owner.submit([tensor(32)] * 40)
    time.sleep(0.01)
    small = owner.submit([tensor(32)])
    engine.gate.set()
    small.future.result(10)
    assert not large.future.done()
    assert len(engine.batches) < 10
    assert len(large.future.result(10)) == 40


def test_a_dropped_request_is_not_computed(own, engine):
    owner = own()
    held_up(owner, engine)
    dropped, kept = owner.submit([tensor(48)]), owner.submit([tensor(32)])
    assert dropped.future.cancel()
    engine.gate.set()
    kept.future.result(10)
    assert (48, 48) not in [size for batch in engine.batches for size in batch]


def test_a_request_dropped_while_it_is_computed_does_no_harm(own, engine):
    owner = own()
    work = held_up(owner, engine)
    assert work.future.cancel()
    engine.gate.set()
    assert len(owner.submit([tensor()]).future.result(10)) == 1


def test_only_the_request_that_breaks_a_batch_fails(own, engine):
    engine.fail = lambda inputs: ValueError("poison") if any(float(i.max()) > 1.5 for i in inputs) else None
    owner = own()
    held_up(owner, engine)
    good, bad, fine = (owner.submit([tensor(32, value)]) for value in (0.25, 2.0, 0.75))
    engine.gate.set()
    assert len(good.future.result(10)) == len(fine.future.result(10)) == 1
    with pytest.raises(ValueError, match="poison"):
        bad.future.result(10)


def test_out_of_memory_fails_the_batch_and_makes_the_next_smaller(own, engine):
    engine.fail = lambda inputs: OutOfMemory("full") if len(inputs) > 2 else None
    owner = own()
    held_up(owner, engine)
    first = [owner.submit([tensor(32, 0.5)]) for _ in range(4)]
    engine.gate.set()
    for work in first:
        with pytest.raises(OutOfMemory):
            work.future.result(10)
    held_up(owner, engine)
    later = [owner.submit([tensor(32, 0.5)]) for _ in range(4)]
    engine.gate.set()
    for work in later:
        work.future.result(10)
    assert max(len(batch) for batch in engine.batches[2:]) == 2


def test_work_that_waited_too_long_fails_and_the_rest_goes_on(own, engine):
    owner = own(max_age_s=0.15)
    held_up(owner, engine)
    old = owner.submit([tensor(32)])
    time.sleep(0.2)
    assert owner.oldest_wait_s() > 0.15
    young = owner.submit([tensor(32)])
    engine.gate.set()
    assert len(young.future.result(10)) == 1
    with pytest.raises(TooOld):
        old.future.result(10)
    assert owner.oldest_wait_s() == 0


def test_reports_count_items_requests_pixels_and_waits(own, engine):
    reports = []
    owner = own(on_batch=reports.append)
    held_up(owner, engine)
    works = [owner.submit([tensor(32), tensor(32)]), owner.submit([tensor(32)])]
    assert owner.waiting() == 3
    engine.gate.set()
    for work in works:
        work.future.result(10)
    time.sleep(0.05)
    report = reports[-1]
    assert (report.items, report.requests, report.pixels) == (3, 2, 3 * 32 * 32)
    assert report.infer_s > 0
    assert len(report.waits_s) == 3


def test_closing_fails_what_waits_and_refuses_more(own, engine):
    owner = own()
    held_up(owner, engine)
    waiting = owner.submit([tensor(32)])
    threading.Timer(0.05, engine.gate.set).start()
    owner.close()
    with pytest.raises(RuntimeError):
        waiting.future.result(0)
    with pytest.raises(RuntimeError):
        owner.submit([tensor()])


def run_from(owner):
    """A request of one tensor; its batch has begun when this returns."""
    work = owner.submit([tensor()])
    until = time.monotonic() + 5
    while work.began is None and time.monotonic() < until:
        time.sleep(0.002)
    assert work.began is not None
    return work


def test_lanes_work_on_batches_at_the_same_time(own, engine):
    engine.gate.clear()
    owner = own(lanes=2)
    works = [run_from(owner), run_from(owner)]  # the second begins although the first has not ended
    third = owner.submit([tensor()])
    time.sleep(0.05)
    assert third.began is None
    engine.gate.set()
    for work in (*works, third):
        work.future.result(10)


def test_lanes_give_each_request_its_own_outputs(own, restorer):
    owner = own(lanes=3, max_pixels=2 * 32 * 32, torch_threads=1)
    inputs = [[tensor(32 + 16 * (r % 2), seed=10 * r + i) for i in range(1 + r % 4)] for r in range(24)]
    works = [owner.submit(request) for request in inputs]
    for work, request in zip(works, inputs, strict=True):
        for output, expected in zip(work.future.result(20), restorer.generate(request), strict=True):
            assert torch.allclose(output, expected, atol=1e-5)
    assert owner.waiting() == 0


@pytest.mark.parametrize(("inside", "each"), [(1, [6]), (2, [3, 3]), (9, [2, 2, 2])])
def test_lanes_share_the_processors_and_a_lone_request_has_all(own, engine, inside, each):
    seen = []
    engine.fail = lambda inputs: seen.append(torch.get_num_threads())
    engine.gate.clear()
    owner = own(lanes=3, torch_threads=6, expected=lambda: inside)
    works = [run_from(owner) for _ in each]
    engine.gate.set()
    for work in works:
        work.future.result(10)
    assert seen == each


def test_a_second_batch_of_a_lone_request_gets_its_share(own, engine):
    seen = []
    engine.fail = lambda inputs: seen.append((len(seen), torch.get_num_threads()))
    owner = own(lanes=2, torch_threads=4, max_pixels=32 * 32, expected=lambda: 1)
    owner.submit([tensor(seed=i) for i in range(6)]).future.result(10)
    assert [threads for _, threads in seen][:5] == [2] * 5  # others of its tensors wait or are under way


def test_what_comes_while_a_lane_is_held_up_at_the_gate_joins_its_batch(own, engine):
    gate = Gate()
    gate.narrow(1)
    owner = own(lanes=2, gate=gate)
    with gate:
        works = [owner.submit([tensor()])]
        time.sleep(0.05)  # a lane stands at the gate by now
        works += [owner.submit([tensor()]) for _ in range(3)]
        assert engine.batches == []
    for work in works:
        work.future.result(10)
    assert engine.batches == [[(32, 32)] * 4]


def test_closing_ends_every_lane(own):
    owner = own(lanes=3)
    owner.close()
    assert not any(thread.is_alive() for thread in owner._threads)


def test_least_loaded_takes_the_fewest_pixels(own):
    first, second = own(), own()
    assert least_loaded([first, second]) is first
    first.load_pixels = 100
    assert least_loaded([first, second]) is second


def test_a_stream_gives_all_outputs_with_few_in_flight(own, engine, restorer):
    inputs = [tensor(32, seed=i) for i in range(11)]
    owner = own(max_pixels=2 * 32 * 32)
    outputs = list(TileStream(owner, inputs))
    for output, expected in zip(outputs, restorer.generate(inputs), strict=True):
        assert torch.allclose(output, expected, atol=1e-5)
    assert max(len(batch) for batch in engine.batches) <= 2


def test_a_dropped_stream_ends_at_its_next_step(own, engine):
    stream = TileStream(own(), [tensor(32, seed=i) for i in range(20)])
    seen = []

    def consume():
        for output in stream:
            seen.append(output)
            if len(seen) == 2:
                stream.drop()

    with pytest.raises(CancelledError):
        consume()
    assert len(seen) <= 6
