import pytest
import torch

from serving.fleet import Fleet, processors_of


@pytest.fixture
def four_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("workers", "each"), [(1, 4), (2, 2), (3, 1), (9, 1)])
def test_workers_share_the_processors(four_threads, workers, each):
    assert processors_of(workers) == each


def test_each_worker_has_what_the_environment_says(four_threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert processors_of(2) == 4


def lanes_and_places(settings):
    fleet = Fleet(settings, expected=lambda: 1, on_batch=lambda report: None)
    try:
        fleet.load()
        return [replica.owner.lanes for replica in fleet.replicas], fleet.gate._free
    finally:
        fleet.close()


def test_a_cpu_has_a_lane_and_a_place_at_work_for_each_processor(four_threads, settings_for):
    assert lanes_and_places(settings_for(warm_up=False)) == ([4], 4)


def test_the_number_of_lanes_can_be_set(four_threads, settings_for):
    assert lanes_and_places(settings_for(lanes=3, warm_up=False)) == ([3], 4)


def test_a_backend_with_threads_or_buffers_of_its_own_has_one_lane(four_threads, settings_for):
    assert lanes_and_places(settings_for(backend="graphs", warm_up=False)) == ([1], 4)
