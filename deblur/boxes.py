"""A face as box, score and landmarks; overlap, order and pairs of such. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Face:
    """One detected face.

    Attributes:
        box: x0, y0, x1, y1 in pixels of the picture; may reach beyond its border.
        score: the last network's probability, 0 to 1.
        landmarks: five (x, y) in pixels: left eye, right eye, nose, left and right corner of the mouth,
            left and right as the viewer sees them.
    """

    box: tuple[float, float, float, float]
    score: float
    landmarks: tuple[tuple[float, float], ...] = field(default=())

    @property
    def width_px(self) -> float:
        """Width of the box in pixels."""
        return self.box[2] - self.box[0]

    @property
    def height_px(self) -> float:
        """Height of the box in pixels."""
        return self.box[3] - self.box[1]

    @property
    def eye_distance_px(self) -> float:
        """Distance between the eyes in pixels; needs landmarks."""
        (x0, y0), (x1, y1) = self.landmarks[:2]
        return math.hypot(x1 - x0, y1 - y0)


def sorted_faces(faces: Iterable[Face]) -> list[Face]:
    """Faces with the best score first, ties by box."""
    return sorted(faces, key=lambda face: (-face.score, face.box))


def iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two XYXY boxes, 0 to 1; 0 when either is empty."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union


def match_faces(
    found: Sequence[Face], reference: Sequence[Face], least_iou: float = 0.5
) -> list[tuple[Face, Face | None]]:
    """Pair every reference face with at most one found face, and every found face with at most one reference.

    The pairs of highest overlap are taken first, so the order of the inputs does not matter.

    Args:
        found: detections to be judged.
        reference: the faces that are there.
        least_iou: the overlap that counts as the same face.

    Returns:
        One pair for each reference face, in order: the reference and its match, or None when it was missed.
    """
    overlaps = [
        (iou(face.box, truth.box), -face.score, i, j)
        for i, face in enumerate(found)
        for j, truth in enumerate(reference)
    ]
    matches: dict[int, int] = {}
    used: set[int] = set()
    for overlap, _, i, j in sorted(overlaps, key=lambda item: (-item[0], *item[1:])):
        if overlap >= least_iou and i not in used and j not in matches:
            matches[j] = i
            used.add(i)
    return [(truth, found[matches[j]] if j in matches else None) for j, truth in enumerate(reference)]


def without_contained(faces: list[Face], limit: float = 0.7) -> list[Face]:
    """Sorted faces without those of which more than `limit` of the smaller box overlaps a better face."""
    kept: list[Face] = []
    for face in sorted_faces(faces):
        if all(_overlap_of_smaller(face.box, better.box) <= limit for better in kept):
            kept.append(face)
    return kept


def moved(face: Face, x: float, y: float) -> Face:
    """A face with its box and landmarks moved by x and y pixels."""
    x0, y0, x1, y1 = face.box
    marks = tuple((a + x, b + y) for a, b in face.landmarks)
    return Face((x0 + x, y0 + y, x1 + x, y1 + y), face.score, marks)


def turned_back(face: Face, turn: int, height: int, width: int) -> Face:
    """A face found after `turn` quarter turns counter-clockwise, in the pixels of the picture before them."""

    def back(point: Sequence[float]) -> tuple[float, float]:
        x, y = point
        return {0: (x, y), 1: (width - y, x), 2: (width - x, height - y), 3: (y, height - x)}[turn]

    (ax, ay), (bx, by) = back(face.box[:2]), back(face.box[2:])
    box = min(ax, bx), min(ay, by), max(ax, bx), max(ay, by)
    return Face(box, face.score, tuple(back(mark) for mark in face.landmarks))


def _overlap_of_smaller(a: Sequence[float], b: Sequence[float]) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]) + 1)
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]) + 1)
    smaller = min((box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (a, b))
    return width * height / smaller
