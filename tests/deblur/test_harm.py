import numpy as np
import pytest

from deblur.faces import Face
from deblur.harm import Limits, colour_shift, harm_done, landmark_shift

MARKS = ((30.0, 40.0), (70.0, 40.0), (50.0, 60.0), (35.0, 80.0), (65.0, 80.0))
BEFORE = Face((10.0, 10.0, 90.0, 100.0), 0.95, MARKS)
GREY = np.full((64, 64, 3), 100, np.uint8)
MASK = np.ones((64, 64), np.float32)


def judged(after, restored=GREY):
    return harm_done(Limits(), BEFORE, after, GREY, restored, MASK)


def test_an_equal_face_is_no_harm():
    assert judged(BEFORE) is None


def test_a_better_face_is_no_harm():
    assert judged(Face(BEFORE.box, 0.999, MARKS)) is None


def test_a_lost_face_is_harm():
    assert "no longer" in judged(None)


def test_a_fallen_confidence_is_harm():
    assert "confidence" in judged(Face(BEFORE.box, 0.9, MARKS))


def test_moved_landmarks_are_harm():
    moved = tuple((x + 24, y) for x, y in MARKS)
    assert landmark_shift(BEFORE, Face(BEFORE.box, 0.99, moved)) == pytest.approx(24 / 40)
    assert "landmarks" in judged(Face(BEFORE.box, 0.99, moved))


def test_a_colour_shift_is_harm():
    tinted = GREY.copy()
    tinted[..., 0] += 30
    assert colour_shift(GREY, tinted, MASK) == pytest.approx(30 / 255)
    assert "colour" in judged(BEFORE, tinted)
