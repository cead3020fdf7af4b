import cv2
import numpy as np
import pytest
from skimage.data import astronaut

import deblur.blur
from deblur.blur import SIDE_PX, estimate_extent, estimate_extents, look
from deblur.errors import UnsupportedImage, WeightsError

BOX = (181.0, 62.0, 268.0, 172.0)


def line_kernel(extent, angle_deg):
    """A straight path whose bounding box has `extent` as its larger side, drawn eight times finer."""
    fine = 8 * (int(extent) + 5)
    kernel = np.zeros((fine, fine), np.float32)
    along = np.array([np.cos(np.deg2rad(angle_deg)), np.sin(np.deg2rad(angle_deg))])
    along *= 4 * extent / np.abs(along).max()
    a, b = (tuple(int(v) for v in fine / 2 + sign * along) for sign in (-1, 1))
    cv2.line(kernel, a, b, 1.0, 8)
    kernel = cv2.resize(kernel, None, fx=1 / 8, fy=1 / 8, interpolation=cv2.INTER_AREA)
    return kernel / kernel.sum()


@pytest.mark.parametrize("angle_deg", [0, 30, 90, 135])
def test_the_estimate_grows_with_the_blur_whatever_its_direction(angle_deg):
    picture = astronaut()
    estimates = [
        estimate_extent(cv2.filter2D(picture, -1, line_kernel(extent, angle_deg)), BOX) for extent in (1, 12, 32)
    ]
    assert estimates == sorted(estimates)
    assert estimates[1] > estimates[0] + 3
    assert estimates[2] > estimates[1] + 6


def test_a_sharp_face_is_told_from_a_blurred_one():
    sharp = estimate_extent(astronaut(), BOX) / 110
    blurred = estimate_extent(cv2.filter2D(astronaut(), -1, line_kernel(14, 20)), BOX) / 110
    assert sharp < 0.035
    assert blurred > 0.06


def test_the_estimate_is_in_pixels_of_the_picture():
    blurred = cv2.filter2D(astronaut(), -1, line_kernel(16, 0))
    twice = cv2.resize(blurred, None, fx=2, fy=2, interpolation=cv2.INTER_CUBIC)
    once = estimate_extent(blurred, BOX)
    assert estimate_extent(twice, [2 * v for v in BOX]) == pytest.approx(2 * once, rel=0.25)


def test_depth_and_channels_do_not_change_the_estimate():
    grey = cv2.cvtColor(astronaut(), cv2.COLOR_RGB2GRAY)
    expected = estimate_extent(grey, BOX)
    assert estimate_extent(grey[:, :, None], BOX) == expected
    assert estimate_extent(np.repeat(grey[:, :, None], 3, axis=2), BOX) == pytest.approx(expected, rel=1e-3)
    assert estimate_extent(grey.astype(np.uint16) * 257, BOX) == pytest.approx(expected, rel=1e-3)
    with_alpha = np.dstack([grey, grey, grey, np.full_like(grey, 7)])
    assert estimate_extent(with_alpha, BOX) == pytest.approx(expected, rel=1e-3)


def test_several_faces_are_estimated_as_one_by_one():
    picture = astronaut()
    flat = np.full((50, 50, 3), 90, np.uint8)
    boxes = [BOX, None, (100.0, 50.0, 300.0, 250.0)]
    together = estimate_extents([picture, flat, picture], boxes)
    alone = [estimate_extent(p, box) for p, box in zip([picture, flat, picture], boxes, strict=True)]
    assert together == pytest.approx(alone, rel=1e-4)
    assert together[1] == 0.0
    assert estimate_extents([], []) == []


@pytest.mark.parametrize("shape", [(1, 1, 3), (3, 200), (19, 19, 3)])
def test_tiny_pictures_have_an_answer(shape):
    levels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    assert np.isfinite(estimate_extent(levels))


@pytest.mark.parametrize("box", [(-50, -20, 60, 90), (480, 480, 700, 700), (600, 600, 700, 700), (10, 10, 10, 10)])
def test_a_box_beyond_the_border_has_an_answer(box):
    assert np.isfinite(estimate_extent(astronaut(), box))


def test_the_view_has_mean_zero_and_deviation_one():
    view, side = look(astronaut(), BOX)
    assert view.shape == (2, SIDE_PX, SIDE_PX)
    assert side == 110
    assert view[0].mean() == pytest.approx(0, abs=1e-4)
    assert view[0].std() == pytest.approx(1, abs=1e-4)
    assert look(np.zeros((40, 40, 3), np.uint8)) is None


@pytest.mark.parametrize(
    "levels", [np.zeros((8, 8, 3), np.float32), np.zeros((8, 8, 2), np.uint8), np.zeros(8, np.uint8)]
)
def test_other_arrays_are_refused(levels):
    with pytest.raises(UnsupportedImage, match="expected"):
        estimate_extent(levels)


def test_a_damaged_estimator_is_named(tmp_path, monkeypatch):
    path = tmp_path / "estimator.safetensors"
    path.write_bytes(b"nothing")
    monkeypatch.setattr(deblur.blur, "ESTIMATOR", path)
    deblur.blur._estimator.cache_clear()
    try:
        with pytest.raises(WeightsError, match=r"estimator\.safetensors"):
            estimate_extent(astronaut(), BOX)
    finally:
        deblur.blur._estimator.cache_clear()
