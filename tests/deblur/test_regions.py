import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deblur.faces import Face
from deblur.images import Picture
from deblur.regions import (
    SIDES_PX,
    face_region,
    feather,
    lay_back,
    region_input,
    tiles,
    without_overlap,
)
from deblur.tiling import HALO_PX, TILE_PX

MARKS = ((0.0, 0.0),) * 5


def face(x0: float, y0: float, x1: float, y1: float) -> Face:
    return Face((x0, y0, x1, y1), 0.99, MARKS)


sizes = st.integers(40, 700)
factors = st.floats(1, 4)


@given(height=sizes, width=sizes, x=st.floats(-0.2, 1), y=st.floats(-0.2, 1), size=st.floats(20, 500), scale=factors)
def test_a_face_region_lies_in_the_picture_and_its_input_has_the_side_promised(height, width, x, y, size, scale):
    found = face(x * width, y * height, x * width + 0.8 * size, y * height + size)
    region = face_region(found, 0, height, width, scale)
    x0, y0, x1, y1 = region.box
    assert 0 <= x0 < x1 <= width
    assert 0 <= y0 < y1 <= height
    picture = Picture(levels=np.zeros((height, width, 3), np.uint8))
    assert tuple(region_input(picture, region).shape) == (3, *region.side)
    mask = feather(region)
    assert mask.shape == (y1 - y0, x1 - x0)
    assert 0 <= mask.min() <= mask.max() <= 1


def test_a_face_in_a_large_picture_gets_a_square_from_the_set_at_native_scale():
    region = face_region(face(500, 400, 600, 520), 0, 1000, 2000, 1.0)
    assert region.scale == 1.0
    assert region.side == (256, 256)
    assert region.side[0] in SIDES_PX
    assert region.box[2] - region.box[0] == 256


def test_a_huge_face_is_reduced_to_the_largest_side():
    region = face_region(face(1000, 1000, 2000, 2200), 0, 6000, 8000, 1.0)
    assert region.side == (512, 512)
    assert region.scale == pytest.approx(1200 * 1.9 / 512)


def test_a_picture_that_is_one_face_is_taken_whole():
    region = face_region(face(20, 22, 67, 82), 0, 109, 89, 1.0)
    assert region.box == (0, 0, 89, 109)
    assert feather(region).min() == 1


def test_the_mask_falls_to_nothing_inside_the_picture_and_stays_full_at_its_border():
    inside = feather(face_region(face(500, 400, 600, 520), 0, 1000, 2000, 1.0))
    assert inside[0].max() < 0.01
    assert inside[128, 128] == 1
    at_border = feather(face_region(face(0, 400, 100, 520), 0, 1000, 2000, 1.0))
    assert at_border[128, 0] == 1
    assert at_border[128, -1] < 0.01


@settings(deadline=None, max_examples=20)
@given(height=st.integers(1, 2500), width=st.integers(1, 2500))
def test_the_cores_of_tiles_cover_every_pixel_once(height, width):
    covered = np.zeros((height, width), np.uint8)
    for region in tiles(height, width):
        x0, y0, x1, y1 = region.box
        covered[y0:y1, x0:x1] += feather(region).astype(np.uint8)
        assert max(region.side) <= TILE_PX + 2 * HALO_PX
    assert (covered == 1).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_laying_back_what_was_given_changes_nothing(dtype):
    rng = np.random.default_rng(0)
    levels = rng.integers(0, np.iinfo(dtype).max, (300, 400, 3)).astype(dtype)
    picture = Picture(levels=levels)
    for scale in (1.0, 1.7):
        region = face_region(face(150, 100, 200, 150), 0, 300, 400, scale)
        given = region_input(picture, region)
        changed = levels.copy()
        lay_back(changed, levels, region, given, given.clone(), feather(region))
        assert np.array_equal(changed, levels)


def test_values_beyond_the_range_are_clipped_never_wrapped():
    levels = np.full((128, 128, 3), 250, np.uint8)
    region = face_region(face(30, 30, 90, 100), 0, 128, 128, 1.0)
    given = region_input(Picture(levels=levels), region)
    for shift, expected in ((0.5, 255), (-2.0, 0)):
        changed = levels.copy()
        lay_back(changed, levels, region, given, given + shift, feather(region))
        assert (changed == expected).all()


def test_nothing_outside_the_mask_changes_by_a_byte():
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 256, (600, 800, 3)).astype(np.uint8)
    region = face_region(face(300, 200, 400, 320), 0, 600, 800, 1.0)
    given = region_input(Picture(levels=levels), region)
    changed = levels.copy()
    lay_back(changed, levels, region, given, torch.rand_like(given), feather(region))
    x0, y0, x1, y1 = region.box
    outside = np.ones((600, 800), bool)
    outside[y0:y1, x0:x1] = False
    assert np.array_equal(changed[outside], levels[outside])
    assert not np.array_equal(changed, levels)


def test_two_overlapping_masks_never_add_up_to_more_than_one():
    first = face_region(face(300, 200, 400, 320), 0, 600, 800, 1.0)
    second = face_region(face(380, 220, 480, 340), 1, 600, 800, 1.0)
    total = np.zeros((600, 800), np.float32)
    mask = feather(first)
    total[first.box[1] : first.box[3], first.box[0] : first.box[2]] += mask
    rest = without_overlap(feather(second), second, [(first, mask)])
    total[second.box[1] : second.box[3], second.box[0] : second.box[2]] += rest
    assert total.max() <= 1 + 1e-6
    assert rest.max() == 1
