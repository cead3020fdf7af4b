import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from deblur.errors import OptionError, WeightsError
from deblur.faces import Face, identity_network
from deblur.metrics import (
    LpipsNetwork,
    bootstrap_interval,
    detection_rate,
    identity_similarity,
    judge_detection,
    landmark_error,
    load_identity,
    load_lpips,
    lpips,
    mean_confidence,
    psnr,
    ssim,
)


def pair(height=24, width=31, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    sharp = rng.random((2, 3, height, width)) * scale
    restored = np.clip(sharp + rng.normal(0, 0.1 * scale, sharp.shape), 0, scale)
    return torch.from_numpy(restored), torch.from_numpy(sharp)


def face(x0=10.0, y0=10.0, side=40.0, score=0.99):
    marks = [(0.3, 0.4), (0.7, 0.4), (0.5, 0.6), (0.35, 0.8), (0.65, 0.8)]
    points = tuple((x0 + side * x, y0 + side * y) for x, y in marks)
    return Face((x0, y0, x0 + side, y0 + side), score, points)


@pytest.mark.parametrize("data_range", [1.0, 255.0, 65535.0])
def test_psnr_is_that_of_scikit_image(data_range):
    restored, sharp = pair(scale=data_range)
    expected = [
        peak_signal_noise_ratio(s.numpy(), r.numpy(), data_range=data_range)
        for r, s in zip(restored, sharp, strict=True)
    ]
    np.testing.assert_allclose(psnr(restored, sharp, data_range=data_range).numpy(), expected)


def test_psnr_of_equal_pictures_is_infinite():
    _, sharp = pair()
    assert psnr(sharp, sharp, data_range=1.0).tolist() == [math.inf, math.inf]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}),
        (
            {"window_px": 17, "sigma_px": 2.4, "k1": 0.02, "k2": 0.05},
            {"gaussian_weights": True, "sigma": 2.4, "use_sample_covariance": False, "K1": 0.02, "K2": 0.05},
        ),
        (
            {"window_px": 9, "sigma_px": None, "sample_covariance": True},
            {"win_size": 9, "use_sample_covariance": True},
        ),
        (
            {"window_px": 5, "sigma_px": None, "k1": 0.03},
            {"win_size": 5, "use_sample_covariance": False, "K1": 0.03},
        ),
    ],
)
@pytest.mark.parametrize("data_range", [1.0, 255.0])
def test_ssim_is_that_of_scikit_image(ours, theirs, data_range):
    restored, sharp = pair(scale=data_range)
    expected = [
        structural_similarity(r.numpy(), s.numpy(), channel_axis=0, data_range=data_range, **theirs)
        for r, s in zip(restored, sharp, strict=True)
    ]
    np.testing.assert_allclose(ssim(restored, sharp, data_range=data_range, **ours).numpy(), expected)


def test_float32_and_eight_bit_input_measure_like_float64():
    restored, sharp = pair(scale=255.0)
    restored, sharp = restored.round(), sharp.round()
    expected = psnr(restored, sharp, data_range=255), ssim(restored, sharp, data_range=255)
    for dtype in (torch.float32, torch.uint8):
        a, b = restored.to(dtype), sharp.to(dtype)
        torch.testing.assert_close(psnr(a, b, data_range=255), expected[0])
        torch.testing.assert_close(ssim(a, b, data_range=255), expected[1])


@pytest.mark.parametrize("measure", [psnr, ssim])
def test_a_batch_of_two_is_two_batches_of_one(measure):
    restored, sharp = pair()
    alone = torch.cat([measure(restored[i : i + 1], sharp[i : i + 1], data_range=1.0) for i in range(2)])
    torch.testing.assert_close(measure(restored, sharp, data_range=1.0), alone)


@pytest.mark.parametrize("measure", [psnr, ssim])
def test_shapes_and_ranges_that_do_not_fit_are_refused(measure):
    restored, sharp = pair()
    with pytest.raises(OptionError, match="one shape"):
        measure(restored[..., 1:], sharp, data_range=1.0)
    with pytest.raises(OptionError, match="one shape"):
        measure(restored[0], sharp[0], data_range=1.0)
    with pytest.raises(OptionError, match="positive"):
        measure(restored, sharp, data_range=0.0)


@pytest.mark.parametrize("window_px", [10, 25])
def test_a_window_that_does_not_fit_is_refused(window_px):
    restored, sharp = pair()
    with pytest.raises(OptionError, match="window_px"):
        ssim(restored, sharp, data_range=1.0, window_px=window_px)


@pytest.fixture
def backbone(tmp_path):
    torch.manual_seed(3)
    state = {k: v.clone() for k, v in LpipsNetwork().state_dict().items() if k.startswith("features.")}
    path = tmp_path / "alexnet.safetensors"
    save_file(state, path)
    return path


@pytest.mark.filterwarnings("ignore::UserWarning")  # the package names torchvision's options in their old form
@pytest.mark.parametrize("size", [(64, 64), (73, 131)])
def test_lpips_is_that_of_the_lpips_package(backbone, size):
    package = pytest.importorskip("lpips").LPIPS(net="alex", pnet_rand=True, verbose=False)
    network = load_lpips(backbone)
    names = [f"slice{s}.{i}" for s, i in ((1, 0), (2, 3), (3, 6), (4, 8), (5, 10))]
    for name, i in zip(names, (0, 3, 6, 8, 10), strict=True):
        package.net.get_submodule(name).load_state_dict(network.features[i].state_dict())
    restored, sharp = (picture.float() for picture in pair(*size, scale=255.0))
    with torch.no_grad():
        expected = package(restored / 255, sharp / 255, normalize=True).flatten()
        ours = lpips(restored, sharp, network, data_range=255)
    torch.testing.assert_close(ours, expected)
    assert (ours > 0.01).all()
    assert lpips(sharp, sharp, network, data_range=255).tolist() == [0.0, 0.0]


def test_lpips_runs_at_its_least_size_and_names_it_below(backbone):
    network = load_lpips(backbone)
    restored, sharp = pair(31, 31)
    assert torch.isfinite(lpips(restored, sharp, network, data_range=1.0)).all()
    with pytest.raises(OptionError, match="31 px"):
        lpips(restored[..., 1:], sharp[..., 1:], network, data_range=1.0)


def test_a_backbone_of_another_kind_is_named(tmp_path):
    page = tmp_path / "alexnet.safetensors"
    page.write_text("<html>quota exceeded</html>")
    with pytest.raises(WeightsError, match=r"alexnet\.safetensors.*AlexNet"):
        load_lpips(page)
    save_file({"features.0.weight": torch.zeros(1)}, page)
    with pytest.raises(WeightsError, match=r"features\.10\.bias"):
        load_lpips(page)
    with pytest.raises(WeightsError, match="absent"):
        load_lpips(tmp_path / "absent.safetensors")


def test_without_the_lpips_package_the_extra_is_named(backbone, monkeypatch):
    monkeypatch.setattr("deblur.metrics.find_spec", lambda name: None)
    with pytest.raises(WeightsError, match="metrics"):
        load_lpips(backbone)


@pytest.fixture(scope="module")
def recogniser():
    torch.manual_seed(0)
    return identity_network()


def test_identity_of_a_picture_with_itself_is_one_and_less_with_another(recogniser):
    sharp = pair(64, 64)[1].float()
    boxes = [(8.2, 9.1, 50.0, 60.5), (-5.0, -5.0, 70.0, 40.0)]
    torch.testing.assert_close(identity_similarity(sharp, sharp, boxes, recogniser, data_range=1.0), torch.ones(2))
    other = identity_similarity(1 - sharp**4, sharp, boxes, recogniser, data_range=1.0)
    assert (other < 0.9999).all()
    assert identity_similarity(sharp[:0], sharp[:0], [], recogniser, data_range=1.0).shape == (0,)


def test_identity_looks_only_inside_the_box(recogniser):
    _, sharp = pair(64, 64)
    changed = sharp.clone()
    changed[..., :10] = 0
    box = [(12.0, 12.0, 50.0, 60.0)] * 2
    torch.testing.assert_close(
        identity_similarity(changed.float(), sharp.float(), box, recogniser, data_range=1.0), torch.ones(2)
    )


def test_identity_weights_are_read_from_both_kinds_of_file(tmp_path, recogniser):
    state = recogniser.state_dict() | {"logits.weight": torch.zeros(2, 512)}
    save_file(state, tmp_path / "identity.safetensors")
    torch.save(state, tmp_path / "identity.pt")
    for name in ("identity.safetensors", "identity.pt"):
        loaded = load_identity(tmp_path / name).state_dict()
        assert all(torch.equal(loaded[key], value) for key, value in recogniser.state_dict().items())


def test_identity_weights_that_are_not_there_are_named(tmp_path):
    with pytest.raises(WeightsError, match=r"absent\.pt"):
        load_identity(tmp_path / "absent.pt")
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(WeightsError, match=r"other\.pt"):
        load_identity(tmp_path / "other.pt")


def test_a_missed_face_counts_as_zero_and_stays():
    outcome = judge_detection([face(10)], [face(10), face(200)])
    assert outcome.confidences == (0.99, 0.0)
    assert (outcome.faces, outcome.hits, outcome.false_positives) == (2, 1, 0)
    assert detection_rate([outcome]) == 0.5


def test_a_face_elsewhere_is_a_false_positive_and_no_hit():
    outcome = judge_detection([face(100)], [face(10)])
    assert (outcome.hits, outcome.false_positives) == (0, 1)


def test_a_second_box_on_the_same_face_is_a_false_positive():
    outcome = judge_detection([face(10), face(12, score=0.95)], [face(10)])
    assert (outcome.hits, outcome.false_positives) == (1, 1)


def test_a_weak_detection_neither_hits_nor_counts_as_false():
    outcome = judge_detection([face(10, score=0.89)], [face(10)])
    assert (outcome.hits, outcome.false_positives, outcome.confidences) == (0, 0, (0.0,))
    assert judge_detection([face(10, score=0.89)], [face(10)], threshold=0.8).hits == 1


def test_rate_without_any_reference_face_is_not_a_number():
    assert math.isnan(detection_rate([]))
    assert math.isnan(detection_rate([judge_detection([face()], [])]))


def test_landmark_error_is_a_share_of_the_eye_distance():
    truth = face(10, 10, side=100)
    moved = Face(truth.box, 0.9, tuple((x + 3, y + 4) for x, y in truth.landmarks))
    assert landmark_error(moved, truth) == pytest.approx(5 / 40)
    assert judge_detection([moved], [truth]).landmark_errors == pytest.approx((5 / 40,))


def test_mean_confidence_of_no_face_is_zero():
    assert mean_confidence([]) == 0.0
    assert mean_confidence([face(score=0.9), face(score=1.0)]) == pytest.approx(0.95)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30))
def test_the_bootstrap_interval_lies_within_the_values_and_repeats(values):
    low, high = bootstrap_interval(values, resamples=200)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9
    assert bootstrap_interval(values, resamples=200) == (low, high)


def test_the_bootstrap_interval_of_a_mean_is_that_of_the_normal_law():
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    low, high = bootstrap_interval(values)
    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.04)
    assert high == pytest.approx(values.mean() + half, abs=0.04)


def test_the_bootstrap_resamples_pictures_not_faces():
    hits, faces = [10, 0, 0, 0], [10, 1, 1, 1]
    low, high = bootstrap_interval(hits, faces)
    assert low == 0.0
    assert 0.9 < high <= 1.0
    assert all(math.isnan(v) for v in bootstrap_interval([0.0], [0.0]))
