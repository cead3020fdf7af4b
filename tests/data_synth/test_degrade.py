import dataclasses
import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_synth import Degrade, DegradeConfig, KernelBank, camera, default, direct, hard, mild, motion, recipe, shen2018
from data_synth.jpeg import jpeg, simulate
from data_synth.streams import derive_seeds
from deblur.errors import OptionError

BLUR_ALONE = DegradeConfig(
    extent_px=(3.0, 15.0),
    sharp_share=0.0,
    rotation_share=0.0,
    subject_share=0.0,
    saturation_share=0.0,
    noise_share=0.0,
    bayer_share=0.0,
    jpeg_share=0.0,
    eight_bit=False,
    bank_size=64,
)


def only(**changes: object) -> Degrade:
    return Degrade(dataclasses.replace(BLUR_ALONE, **changes))


def texture(batch: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(batch, 3, height // 4 + 1, width // 4 + 1, generator=generator)
    return torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic").clamp(0.0, 1.0)


SEEDS = torch.arange(100, 106)
MODES = [{}, {"rotation_share": 1.0}, {"subject_share": 1.0}]


@pytest.mark.parametrize("mode", MODES)
def test_zero_extent_is_the_identity(mode):
    sharp = texture(6, 40, 52)
    blurred, drawn = only(**mode)(sharp, extent_px=torch.zeros(6), seeds=SEEDS)
    torch.testing.assert_close(blurred, sharp, atol=2e-5, rtol=0)
    assert (drawn.extent_px == 0).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("linear", [True, False])
def test_a_flat_picture_stays_flat(mode, linear):
    colour = torch.tensor([33.0, 25.0, 23.0]).view(1, 3, 1, 1) / 255.0
    sharp = colour.expand(6, 3, 33, 47).contiguous()
    blurred, _ = only(linear_light=linear, **mode)(sharp, seeds=SEEDS)
    torch.testing.assert_close(blurred, sharp, atol=1e-4, rtol=0)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**40), extent=st.floats(0.5, 20))
def test_light_is_kept_in_linear_light(seed, extent):
    # Dark but for the middle: nothing leaves the picture, nothing comes in from its border.
    sharp = torch.zeros(2, 3, 96, 96)
    sharp[:, :, 36:60, 36:60] = texture(2, 24, 24)
    blurred, _ = only()(sharp, extent_px=torch.full((2,), extent), seeds=torch.tensor([seed, seed + 1]))
    before, after = (camera.to_linear(x).sum((1, 2, 3)) for x in (sharp, blurred))
    torch.testing.assert_close(after, before, rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize("at", [(64, 64), (40, 84)])
@pytest.mark.parametrize(("mode", "allowed_px"), [({}, 0.02), ({"rotation_share": 1.0}, 0.1)])
def test_blurred_and_sharp_stay_registered(mode, allowed_px, at):
    # A point's centroid must not move, whatever the path; a roll's arc has its mean a little inside.
    sharp = torch.zeros(6, 3, 129, 129)
    sharp[:, :, at[0], at[1]] = 0.8
    blurred, _ = only(**mode)(sharp, extent_px=torch.full((6,), 14.0), seeds=SEEDS)
    light = camera.to_linear(blurred).double()
    rows, columns = torch.arange(129.0)[:, None], torch.arange(129.0)[None]
    total = light.sum((2, 3))
    mean_y, mean_x = (light * rows).sum((2, 3)) / total, (light * columns).sum((2, 3)) / total
    assert (mean_y - at[0]).abs().max() < allowed_px
    assert (mean_x - at[1]).abs().max() < allowed_px


def test_rolling_blurs_the_edge_more_than_the_centre():
    sharp = torch.zeros(1, 3, 129, 129)
    sharp[:, :, 64, 64] = sharp[:, :, 64, 120] = 0.9
    roll = torch.linspace(-0.2, 0.2, 256)[None]
    blurred = motion.blur_rolling(sharp, torch.zeros(1, 2, 256), torch.zeros(1), roll)
    assert blurred[0, 0, 60:69, 60:69].max() > 5 * blurred[0, 0, 40:90, 100:129].max()
    column = blurred[0, 0, :, 118:123].sum(1).nonzero()
    # An arc of 0.4 rad at 56 px is 22.4 px long.
    assert abs(int(column.max() - column.min()) - 22.4) < 3


def test_a_moving_subject_leaves_its_background_sharp():
    sharp = texture(3, 96, 96)
    blurred, _ = only(subject_share=1.0)(sharp, extent_px=torch.full((3,), 10.0), seeds=SEEDS[:3])
    corner, middle = (slice(0, 8), slice(0, 8)), (slice(40, 56), slice(40, 56))
    assert (blurred - sharp)[..., corner[0], corner[1]].abs().max() < 1e-3
    assert (blurred - sharp)[..., middle[0], middle[1]].abs().mean() > 0.02


def test_the_blur_is_a_convolution_with_the_kernel_of_the_bank():
    sharp = texture(3, 45, 61)
    degrade = only(linear_light=False)
    extents = torch.tensor([4.0, 9.5, 17.0])
    blurred, drawn = degrade(sharp, extent_px=extents, seeds=SEEDS[:3])
    kernels = degrade.bank.kernels(drawn.path_index, extents)
    for i in range(3):
        kernel = kernels[i].flip(0, 1).numpy()  # filter2D correlates
        picture = sharp[i].permute(1, 2, 0).numpy()
        expected = cv2.filter2D(picture, -1, kernel, borderType=cv2.BORDER_REFLECT_101)
        np.testing.assert_allclose(blurred[i].permute(1, 2, 0).numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("config", [default(), hard(), shen2018(), dataclasses.replace(mild(), bank_size=0)])
def test_a_seed_gives_the_same_picture_in_any_batch(config):
    config = dataclasses.replace(config, bank_size=min(config.bank_size, 64))
    degrade = Degrade(config)
    sharp = texture(12, 48, 40)
    seeds = derive_seeds(9, torch.arange(12))
    together, drawn = degrade(sharp, seeds=seeds)
    order = torch.randperm(12)
    shuffled, _ = degrade(sharp[order], seeds=seeds[order])
    alone = torch.cat([degrade(sharp[i : i + 1], seeds=seeds[i : i + 1])[0] for i in range(12)])
    # Rounding may tip a level over, which JPEG may pass on to its block; most pixels must be equal all the same.
    for other in (shuffled[order.argsort()], alone):
        assert ((together - other).abs() < 1e-4).float().mean() > 0.99
    assert len(set(drawn.seeds.tolist())) == 12
    repeated, _ = degrade(sharp, seeds=seeds)
    assert torch.equal(repeated, together)


def test_a_generator_decides_the_batch():
    degrade, sharp = only(noise_share=1.0), texture(4, 32, 32)
    first, second, other = (degrade(sharp, generator=torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_extents_are_drawn_as_fractions_of_the_side_with_a_share_of_sharp_ones():
    config = dataclasses.replace(BLUR_ALONE, extent_px=None, extent_fraction=(0.1, 0.3), sharp_share=0.25)
    _, drawn = Degrade(config)(torch.zeros(800, 3, 16, 20), seeds=torch.arange(800))
    sharp = drawn.extent_px <= 0.5
    assert float(sharp.float().mean()) == pytest.approx(0.25, abs=0.05)
    assert 1.6 <= float(drawn.extent_px[~sharp].min()) < 1.7
    assert 4.7 < float(drawn.extent_px[~sharp].max()) <= 4.8


@pytest.mark.parametrize("linear", [True, False])
def test_noise_has_the_deviation_asked_for_at_mid_grey(linear):
    degrade = only(noise_share=1.0, noise_sigma=(0.02, 0.02), noise_in_linear_light=linear)
    grey = torch.full((4, 3, 64, 64), 0.5)
    noisy, _ = degrade(grey, extent_px=torch.zeros(4), seeds=SEEDS[:4])
    assert float((noisy - grey).std()) == pytest.approx(0.02, rel=0.05)
    assert float((noisy[0] - noisy[1]).std()) > 0.02  # rows do not share their noise


def test_shot_noise_grows_with_light_and_read_noise_does_not():
    light = torch.tensor([0.05, 0.8]).view(2, 1, 1, 1).expand(2, 3, 80, 80)
    noise = torch.randn(2, 3, 80, 80, generator=torch.Generator().manual_seed(0))
    shot, read = camera.linear_noise_levels(torch.full((2,), 0.02), torch.ones(2))
    assert (read == 0).all()
    deviation = (camera.add_noise(light, shot, read, noise) - light).std((1, 2, 3))
    assert float(deviation[1] / deviation[0]) == pytest.approx(4.0, rel=0.1)  # sqrt(0.8 / 0.05)
    shot, read = camera.linear_noise_levels(torch.full((2,), 0.02), torch.zeros(2))
    deviation = (camera.add_noise(light, shot, read, noise) - light).std((1, 2, 3))
    assert float(deviation[1] / deviation[0]) == pytest.approx(1.0, rel=0.1)


def test_raised_highlights_leave_brighter_streaks_and_never_exceed_white():
    sharp = torch.full((1, 3, 64, 64), 0.1)
    sharp[:, :, 30:33, 30:33] = 1.0
    extent, seeds = torch.full((1,), 20.0), SEEDS[:1]
    plain, _ = only()(sharp, extent_px=extent, seeds=seeds)
    raised, drawn = only(saturation_share=1.0, saturation_gain=(4.0, 4.0))(sharp, extent_px=extent, seeds=seeds)
    assert float(drawn.highlight_gain[0]) == pytest.approx(4.0)
    assert raised.max() <= 1.0
    assert (raised - plain).max() > 0.1
    assert (raised >= plain - 1e-5).all()


def test_curves_are_inverse_and_those_of_srgb():
    stored = torch.linspace(0, 1, 1001)
    linear = camera.to_linear(stored)
    torch.testing.assert_close(camera.to_stored(linear), stored, atol=1e-5, rtol=0)
    known = torch.tensor([0.0, 0.0021246, 0.2140411, 1.0])  # IEC 61966-2-1 at 0, 7/255, 0.5 and 1
    at = torch.tensor([0.0, 7 / 255, 0.5, 1.0])
    torch.testing.assert_close(camera.to_linear(at), known, atol=1e-6, rtol=0)


def test_demosaicing_keeps_flat_colours_and_linear_ramps():
    flat = torch.tensor([0.2, 0.5, 0.8]).view(1, 3, 1, 1).expand(1, 3, 9, 14)
    sites = camera.mosaic_sites(9, 14, flat.device)
    assert torch.equal(sites.sum(0), torch.ones(9, 14))
    torch.testing.assert_close(camera.demosaic(flat * sites), flat.contiguous())
    ramp = torch.arange(14.0).expand(1, 3, 9, 14) / 14
    torch.testing.assert_close(camera.demosaic(ramp * sites)[..., 2:-2, 2:-2], ramp[..., 2:-2, 2:-2])


def test_the_bayer_path_keeps_colours():
    sharp = texture(2, 48, 48)
    through, drawn = only(bayer_share=1.0)(sharp, extent_px=torch.full((2,), 6.0), seeds=SEEDS[:2])
    without, _ = only()(sharp, extent_px=torch.full((2,), 6.0), seeds=SEEDS[:2])
    assert drawn.bayer.all()
    assert (through - without).abs().mean() < 0.02
    assert (through - without).mean((2, 3)).abs().max() < 0.01


@pytest.mark.parametrize("subsample", [True, False])
@pytest.mark.parametrize("size", [(48, 64), (37, 53)])
def test_simulated_jpeg_agrees_with_libjpeg(subsample, size):
    pictures = texture(4, *size)
    quality = torch.tensor([20, 55, 80, 95])
    ours, theirs = simulate(pictures, quality, subsample), jpeg(pictures, quality, subsample)
    assert ours.shape == theirs.shape == pictures.shape
    difference = (ours - theirs).abs().mean((1, 2, 3)) * 255
    damage = (pictures - theirs).abs().mean((1, 2, 3)) * 255
    assert (difference < 2.0).all()
    assert damage[0] > 2.5 * difference[0]  # the test can fail: quality 20 does far more than that
    assert damage[0] > damage[3]


def test_only_the_share_asked_for_is_compressed():
    _, drawn = only(jpeg_share=0.3, jpeg_quality=(60, 70))(torch.zeros(600, 3, 8, 8), seeds=torch.arange(600))
    quality = drawn.jpeg_quality[drawn.jpeg_quality > 0]
    assert len(quality) / 600 == pytest.approx(0.3, abs=0.06)
    assert set(quality.tolist()) == set(range(60, 71))


@pytest.mark.parametrize("name", ["mild", "default", "hard", "shen2018"])
@pytest.mark.parametrize("size", [(64, 64), (1, 1), (8, 8), (12, 200), (31, 33)])
def test_every_recipe_takes_every_size(name, size):
    degrade = Degrade(dataclasses.replace(recipe(name), bank_size=16))
    sharp = texture(8, *size)
    blurred, _ = degrade(sharp, seeds=torch.arange(8))
    assert blurred.shape == sharp.shape
    assert blurred.dtype == torch.float32
    assert torch.isfinite(blurred).all()
    assert blurred.min() >= 0
    assert blurred.max() <= 1


@pytest.mark.parametrize("side", [128, 256, 512])
def test_long_blur_at_large_crops_has_the_extent_asked_for(side):
    sharp = torch.zeros(1, 3, side, side)
    sharp[:, :, side // 2, side // 2] = 1.0
    extent = side * 0.25
    blurred, _ = only(linear_light=False)(sharp, extent_px=torch.tensor([extent]), seeds=SEEDS[:1])
    seen = (blurred[0, 0] > 1e-5).nonzero()
    length = int((seen.amax(0) - seen.amin(0)).max())
    assert abs(length - (extent + 1)) <= 1.5


@pytest.mark.parametrize("name", ["default", "shen2018"])
def test_levels_and_floats_in_either_layout_give_the_same_picture(name):
    degrade = Degrade(dataclasses.replace(recipe(name), bank_size=16, jpeg_share=0.0))
    levels = texture(6, 40, 56).mul(255).round().byte()
    expected, _ = degrade(levels, seeds=SEEDS)
    for sharp in (levels.float() / 255, levels.float().contiguous(memory_format=torch.channels_last) / 255):
        blurred, _ = degrade(sharp, seeds=SEEDS)
        assert ((blurred - expected).abs() < 1e-5).float().mean() > 0.999  # rounding to levels may tip one over
        assert (blurred - expected).abs().max() < 1.5 / 255


@pytest.mark.parametrize("size", [(31, 40), (128, 96)])
@pytest.mark.parametrize("extent", [2.0, 9.0, 24.0, 70.0])
def test_direct_sums_and_fourier_transforms_agree(size, extent):
    picture = texture(1, *size)[0].permute(1, 2, 0).contiguous().numpy()
    kernels = KernelBank(6, seed=2).kernels(torch.arange(6), torch.full((6,), extent))
    middle = kernels.shape[-1] // 2
    for kernel in kernels.numpy():
        top = int(kernel.any(1).argmax())
        mode = cv2.BORDER_REFLECT_101 if middle < min(size) else cv2.BORDER_REPLICATE
        padded = cv2.copyMakeBorder(picture, *[middle] * 4, mode)
        expected = cv2.filter2D(padded, -1, kernel[::-1, ::-1].copy())[middle:-middle, middle:-middle]
        out, twice = np.empty_like(picture), picture.copy()
        direct.convolve(picture, kernel, out)
        if extent < 30:  # beyond, what is reflected and what repeated is decided by the path's own reach
            np.testing.assert_allclose(out, expected, atol=3e-5)
        direct.convolve(picture, kernel, twice, add=True)
        np.testing.assert_allclose(twice, picture + out, atol=1e-5)
        # A kernel off the middle, as the parts of a roll have: the same as shifting the picture.
        shifted = np.zeros_like(kernel)
        shifted[: kernel.shape[0] - top] = kernel[top:]
        direct.convolve(picture, shifted, out)
        rows = slice(min(size[0], 2 * middle), size[0] - min(size[0], 2 * middle))
        np.testing.assert_allclose(out[rows], np.roll(expected, -top, axis=0)[rows], atol=3e-5)


def test_turning_on_the_cpu_agrees_with_tensors():
    pictures = texture(2, 60, 45)
    angles = torch.tensor([0.0, 0.23])
    expected = motion._turn(pictures, angles)
    for picture, angle, there in zip(pictures, angles.tolist(), expected, strict=True):
        here = direct.turn(picture.permute(1, 2, 0).contiguous().numpy(), angle)
        np.testing.assert_allclose(here, there.permute(1, 2, 0).numpy(), atol=0.02)


def test_the_batch_given_is_left_alone():
    sharp = texture(4, 32, 32)
    copy = sharp.clone()
    Degrade(dataclasses.replace(hard(), bank_size=16))(sharp, seeds=SEEDS[:4])
    assert torch.equal(sharp, copy)


def test_shen2018_is_the_protocol_of_the_literature():
    config = shen2018()
    _, drawn = Degrade(dataclasses.replace(config, bank_size=32))(torch.zeros(300, 3, 32, 32), seeds=torch.arange(300))
    assert float(drawn.extent_px.min()) >= 13
    assert float(drawn.extent_px.max()) <= 27
    torch.testing.assert_close(drawn.noise_sigma, torch.full((300,), 0.01))
    assert not config.linear_light
    assert (drawn.mode == 0).all()


@pytest.mark.parametrize(
    "values",
    [
        {"jpeg_share": 1.5},
        {"extent_fraction": (0.3, 0.1)},
        {"extent_px": (-1.0, 5.0)},
        {"noise_sigma": (0.0, 0.1)},
        {"jpeg_quality": (0, 90)},
        {"rotation_share": 0.7, "subject_share": 0.7},
        {"saturation_start": 1.0},
        {"shot_share": (0.5, 1.5)},
        {"mix": (0.0, 0.0, 0.0)},
        {"white_balance_gain": (0.5, 2.0)},
        {"saturation_gain": (0.5, 2.0)},
        {"bank_size": -1},
    ],
)
def test_a_config_out_of_range_is_refused(values):
    with pytest.raises(OptionError):
        DegradeConfig(**values)


def test_configs_are_frozen_and_recipes_named():
    with pytest.raises(dataclasses.FrozenInstanceError):
        default().jpeg_share = 0.1  # type: ignore[misc]
    assert recipe("hard") == hard()
    with pytest.raises(OptionError, match="mild, default, hard, shen2018"):
        recipe("nope")


@pytest.mark.parametrize(
    "call",
    [
        lambda d: d(torch.zeros(3, 32, 32)),
        lambda d: d(torch.zeros(1, 3, 32, 32, dtype=torch.int32)),
        lambda d: d(torch.zeros(1, 1, 32, 32, dtype=torch.uint8)),
        lambda d: d(torch.zeros(2, 3, 32, 32), extent_px=torch.zeros(3)),
        lambda d: d(torch.zeros(2, 3, 32, 32), extent_px=torch.tensor([1.0, -1.0])),
        lambda d: d(torch.zeros(2, 3, 32, 32), extent_px=torch.tensor([1.0, float("nan")])),
        lambda d: d(torch.zeros(2, 3, 32, 32), seeds=torch.zeros(1, dtype=torch.int64)),
    ],
)
def test_a_batch_of_the_wrong_form_is_refused(call):
    with pytest.raises(OptionError):
        call(only())


def test_an_empty_batch_comes_back_empty():
    blurred, drawn = only()(torch.zeros(0, 3, 16, 16))
    assert blurred.shape == (0, 3, 16, 16)
    assert len(drawn.seeds) == 0


def test_importing_the_package_does_not_import_albumentations():
    code = "import sys, data_synth; sys.exit('albumentations' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_batch_stays_on_its_device_and_agrees_with_the_cpu():
    config = dataclasses.replace(default(), bank_size=64, jpeg_share=0.0)
    sharp, seeds = texture(8, 64, 64), torch.arange(8)
    here, _ = Degrade(config)(sharp, seeds=seeds)
    there, drawn = Degrade(config).cuda()(sharp.cuda(), seeds=seeds)
    assert there.is_cuda
    assert drawn.extent_px.is_cuda
    assert ((here - there.cpu()).abs() < 1.5 / 255).float().mean() > 0.99
