import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_synth import KernelBank, sample_kernels, sample_trajectories
from data_synth.streams import Streams, derive_seeds
from data_synth.trajectory import FAMILIES, STEPS
from deblur.errors import OptionError

SEEDS = derive_seeds(5, torch.arange(64))
few = settings(max_examples=25, deadline=None)


def centroids(kernels: torch.Tensor) -> torch.Tensor:
    """(n, 2) offsets of the centroid from the middle pixel, x then y, px."""
    middle = kernels.shape[-1] // 2
    axis = torch.arange(kernels.shape[-1], dtype=torch.float64) - middle
    kernels = kernels.double()
    return torch.stack([(kernels * axis).sum((1, 2)), (kernels * axis[:, None]).sum((1, 2))], 1)


@few
@given(seed=st.integers(-(2**70), 2**70), extent=st.floats(0, 60), family=st.integers(0, 2))
def test_every_kernel_has_mass_one_no_negative_and_its_centroid_in_the_middle(seed, extent, family):
    kernels = sample_kernels(4, extent, seed=seed, mix=tuple(float(i == family) for i in range(3)))
    assert kernels.shape[1] == kernels.shape[2]
    assert kernels.shape[1] % 2 == 1
    assert (kernels >= 0).all()
    torch.testing.assert_close(kernels.sum((1, 2)), torch.ones(4), atol=1e-5, rtol=0)
    assert centroids(kernels).abs().max() < 1e-3


@few
@given(seed=st.integers(0, 2**40), extent=st.floats(0.5, 100), family=st.integers(0, 2))
def test_the_support_is_as_long_as_asked_within_a_pixel(seed, extent, family):
    kernel = sample_kernels(1, extent, seed=seed, mix=tuple(float(i == family) for i in range(3)))[0]
    rows, columns = (kernel.sum(axis).nonzero() for axis in (1, 0))
    # Its ends lie between pixels: from outermost pixel to outermost pixel there is up to one more at each.
    longer = max(int(rows.max() - rows.min()), int(columns.max() - columns.min()))
    assert abs(longer - (extent + 1)) <= 1.0 + 1e-3


def test_zero_extent_is_the_identity_kernel():
    kernels = sample_kernels(16, 0.0, seed=1, size=5)
    expected = torch.zeros(16, 5, 5)
    expected[:, 2, 2] = 1.0
    torch.testing.assert_close(kernels, expected, atol=1e-6, rtol=0)


def test_a_straight_path_at_known_extent_spreads_evenly_along_its_length():
    kernel = sample_kernels(40, 20.0, seed=2, mix=(0, 0, 1))
    second_moment = centroids(kernel.double() * 0 + kernel)  # centred, see above
    assert second_moment.abs().max() < 1e-3
    middle = kernel.shape[-1] // 2
    axis = torch.arange(kernel.shape[-1]) - middle
    variance = (kernel * axis**2).sum((1, 2)) + (kernel * axis[:, None] ** 2).sum((1, 2))
    # Length between 20 (along an axis) and 20 sqrt 2; uniform variance L^2 / 12, acceleration shifts it some.
    assert (variance > 20**2 / 12 * 0.75).all()
    assert (variance < 2 * 20**2 / 12 * 1.3).all()


def test_paths_have_unit_extent_and_mean_zero_in_every_family():
    for family in range(3):
        drawn = sample_trajectories(SEEDS, tuple(float(i == family) for i in range(3)))
        assert drawn.paths.shape == (64, 2, STEPS)
        assert (drawn.family == family).all()
        box = (drawn.paths.amax(2) - drawn.paths.amin(2)).amax(1)
        torch.testing.assert_close(box, torch.ones(64), atol=1e-4, rtol=0)
        assert drawn.paths.mean(2).abs().max() < 1e-5


def test_families_come_in_the_mix_asked_for():
    drawn = sample_trajectories(derive_seeds(0, torch.arange(4000)), (1.0, 2.0, 1.0))
    share = torch.bincount(drawn.family, minlength=3) / 4000
    torch.testing.assert_close(share, torch.tensor([0.25, 0.5, 0.25]), atol=0.03, rtol=0)
    assert len(FAMILIES) == 3


def test_families_differ_in_shape():
    def straightness(family: int) -> float:
        paths = sample_trajectories(SEEDS, tuple(float(i == family) for i in range(3))).paths
        chord = (paths[..., -1] - paths[..., 0]).norm(dim=1)
        return float((chord / paths.diff(dim=2).norm(dim=1).sum(1)).mean())

    assert straightness(2) == pytest.approx(1.0, abs=1e-3)
    assert 0.2 < straightness(0) < 0.9
    assert 0.2 < straightness(1) < 0.9


def test_a_path_depends_on_its_own_seed_alone():
    together = sample_trajectories(SEEDS).paths
    alone = torch.cat([sample_trajectories(SEEDS[i : i + 1]).paths for i in range(20)])
    torch.testing.assert_close(together[:20], alone, atol=1e-5, rtol=0)
    assert (together[0] - together[1]).abs().max() > 0.05


def test_kernels_of_a_bank_are_those_of_its_paths_and_it_repeats():
    bank, again = KernelBank(50, seed=3), KernelBank(50, seed=3)
    other = KernelBank(50, seed=4)
    index, extents = torch.tensor([1, 7, 7]), torch.tensor([5.0, 12.0, 30.0])
    kernels = bank.kernels(index, extents, size=63)
    assert torch.equal(kernels, again.kernels(index, extents, size=63))
    assert not torch.equal(kernels, other.kernels(index, extents, size=63))
    assert len(bank) == 50
    torch.testing.assert_close(kernels.sum((1, 2)), torch.ones(3))


@pytest.mark.parametrize(
    "call",
    [
        lambda: sample_kernels(2, 9.0, size=10),
        lambda: sample_kernels(2, 9.0, size=3),
        lambda: sample_kernels(2, -1.0),
        lambda: sample_kernels(2, 9.0, mix=(0.0, 0.0, 0.0)),
        lambda: sample_kernels(2, 9.0, mix=(1.0, -1.0, 1.0)),
        lambda: KernelBank(0),
    ],
)
def test_values_that_make_no_kernel_are_refused(call):
    with pytest.raises(OptionError):
        call()


def test_streams_are_uniform_normal_and_uncorrelated_between_neighbouring_seeds():
    draws = Streams(torch.arange(200)).uniform(500)
    assert 0 < float(draws.min()) < float(draws.max()) < 1
    assert float(draws.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(draws.var()) == pytest.approx(1 / 12, abs=0.001)
    assert np.abs(np.corrcoef(draws[:40].numpy()) - np.eye(40)).max() < 0.25
    normal = Streams(torch.arange(200)).normal(500)
    assert float(normal.mean()) == pytest.approx(0.0, abs=0.02)
    assert float(normal.std()) == pytest.approx(1.0, abs=0.02)
    increments = torch.cat(list(Streams(torch.arange(200)).increments(500, torch.full((200,), 3.0))), 1) / 3
    assert increments.shape == (2, 500, 200)
    assert float(increments.std()) == pytest.approx(1.0, abs=0.02)
    assert float(increments.sum(1).var()) == pytest.approx(500, rel=0.15)
    assert float((increments[0] * increments[1]).mean()) == pytest.approx(0.0, abs=0.02)


def test_streams_of_other_purposes_and_later_draws_differ():
    seeds = torch.arange(8)
    streams = Streams(seeds)
    first, second = streams.uniform(4), streams.uniform(4)
    assert not torch.equal(first, second)
    assert not torch.equal(first, Streams(seeds, purpose=1).uniform(4))
    assert torch.equal(first, Streams(seeds).uniform(4))
    one_by_one, at_once = Streams(seeds), Streams(seeds, ahead=3)
    assert all(torch.equal(one_by_one.uniform(), at_once.uniform()) for _ in range(5))
    bounded = Streams(torch.arange(500)).log_between((0.01, 1.0))
    assert float(bounded.min()) >= 0.01
    assert float(bounded.log().mean()) == pytest.approx(math.log(0.1), abs=0.15)
