"""What the generator gets is cut once, and only so much of it is kept."""

from pathlib import Path

import numpy as np
import pytest
import torch

import deblur.planning
from deblur.images import Picture, decode
from deblur.planning import Inputs, Plan
from deblur.regions import region_input, tiles
from deblur.restoration import Restorer
from deblur.weights import load_weights

GROUP = Path(__file__).parents[2] / "samples" / "blurred" / "group.jpg"


@pytest.fixture(scope="module")
def restorer() -> Restorer:
    return Restorer(load_weights(), device="cpu")


@pytest.fixture
def cuts(monkeypatch) -> list:
    """The regions that were cut, in order."""
    made = []

    def cut(picture, region):
        made.append(region)
        return region_input(picture, region)

    monkeypatch.setattr(deblur.planning, "region_input", cut)
    return made


def test_every_face_is_cut_once_from_plan_to_result(restorer, cuts):
    for steps in (restorer.stream, restorer.generate):
        cuts.clear()
        plan = restorer.plan(decode(GROUP))
        result = restorer.finish(plan, steps(plan.inputs))
        assert sum(face.restored for face in result.faces) >= 2
        assert cuts == plan.regions


def test_an_input_is_the_same_whether_kept_or_cut_again(restorer):
    picture = decode(GROUP)
    regions = restorer.plan(picture).regions
    inputs = Inputs(picture, regions)
    assert inputs[-1] is inputs[len(inputs) - 1]
    assert torch.equal(inputs.take(0), region_input(picture, regions[0]))  # not kept: it was not asked for yet
    first = inputs[0]
    assert inputs.take(0) is first
    assert torch.equal(inputs.take(0), first)  # taken before: cut again
    assert [given.shape for given in inputs[:2]] == [inputs[0].shape, inputs[1].shape]


def test_more_than_the_limit_is_cut_again_and_what_is_taken_makes_room(cuts):
    picture = Picture(levels=np.random.default_rng(0).integers(0, 255, (300, 200, 3), np.uint8))
    region = next(tiles(300, 200))
    pixels = region.side[0] * region.side[1]
    inputs = Inputs(picture, [region] * 3, kept_px=2 * pixels)
    for _ in range(2):
        list(inputs)
    assert len(cuts) == 4  # each once, and the last, which is not kept, again
    inputs.take(0)
    for _ in range(2):
        assert torch.equal(inputs[2], region_input(picture, region))
    assert len(cuts) == 5


def test_a_plan_holds_on_to_its_inputs():
    plan = Plan(picture=decode(GROUP), mode="whole", regions=list(tiles(40, 40)))
    assert plan.inputs is plan.inputs
