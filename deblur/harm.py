"""Do no harm: tells when a restored face is worse than the face that was given."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from deblur.boxes import Face


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Beyond these a face is left as it was. `python -m scripts.harm_curve` shows what each value costs and saves.

    Attributes:
        least_extent: estimated blur extent over the face's width below which a face counts as sharp.
        confidence_drop: largest fall of the detector's score.
        landmark_shift: largest mean movement of the five landmarks, over the distance between the eyes.
        colour_shift: largest change of a channel's mean over the face's region, of full scale.
    """

    least_extent: float = 0.03
    confidence_drop: float = 0.02
    landmark_shift: float = 0.5
    colour_shift: float = 0.08


def harm_done(
    limits: Limits,
    before: Face,
    after: Face | None,
    given: np.ndarray,
    restored: np.ndarray,
    mask: np.ndarray,
) -> str | None:
    """Why a restored face is to be left as it was, or None.

    Args:
        limits: what is allowed.
        before: the face in the picture given.
        after: the same face in the restored picture; None where it is no longer found.
        given: (h, w, 3) integer levels of its region as given.
        restored: (h, w, 3) integer levels of its region as restored.
        mask: (h, w) weight that the restoration was laid back with.
    """
    if after is None:
        return "the detector no longer finds it"
    if after.score < before.score - limits.confidence_drop:
        return f"confidence fell from {before.score:.3f} to {after.score:.3f}"
    shift = landmark_shift(before, after)
    if shift > limits.landmark_shift:
        return f"landmarks moved by {shift:.2f} of the eye distance"
    colour = colour_shift(given, restored, mask)
    if colour > limits.colour_shift:
        return f"mean colour moved by {100 * colour:.1f}% of full scale"
    return None


def landmark_shift(before: Face, after: Face) -> float:
    """Mean movement of the landmarks over the distance between the eyes before."""
    moves = [math.dist(a, b) for a, b in zip(before.landmarks, after.landmarks, strict=True)]
    return sum(moves) / len(moves) / max(before.eye_distance_px, 1e-6)


def colour_shift(given: np.ndarray, restored: np.ndarray, mask: np.ndarray) -> float:
    """Largest change of a channel's weighted mean, as a fraction of full scale."""
    total = float(mask.sum())
    if total == 0:
        return 0.0
    difference = restored.astype(np.float32) - given
    means = (difference * mask[..., None]).sum(axis=(0, 1)) / total
    return float(np.abs(means).max()) / float(np.iinfo(given.dtype).max)
