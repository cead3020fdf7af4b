"""From records to tables and curves: sums over pictures, with intervals over pictures.

Every figure is a ratio of two sums over pictures (hits over faces, decibels over pictures), so that one
bootstrap serves them all.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deblur.evaluation.measure import Record, agreement
from deblur.metrics import WORSE_DB, DetectionOutcome, bootstrap_interval, judge_detection, mean_confidence

SIDES = ("sharp", "blurred", "restored")
BANDS = (
    ("0", 0.0, 0.5),
    ("1-8", 0.5, 8.5),
    ("9-17", 8.5, 17.5),
    ("18-24", 17.5, 24.5),
    ("25+", 24.5, math.inf),
)
MOST_DISTINCT_EXTENTS = 16
THRESHOLDS = (0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)


@dataclass(frozen=True, kw_only=True)
class Value:
    """A figure with its 95% interval; nan where there is nothing to measure."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Group:
    """The figures of some of the pictures.

    Attributes:
        name: of the group, such as "all", "9-17" or "25".
        kind: "all", "band" or "extent".
        pictures: how many.
        faces: how many reference faces (referenced), or faces found in the blurred pictures.
        figures: by measure and then by side or "gain" (restored less blurred).
    """

    name: str
    kind: str
    pictures: int
    faces: int
    figures: Mapping[str, Mapping[str, Value]]


Column = tuple[list[float], list[float]]  # totals and counts, one a picture


def columns(records: Sequence[Record], threshold: float) -> dict[str, dict[str, Column]]:
    """Totals and counts of every measure and side, one entry a picture."""
    if records and "sharp" in records[0].faces:
        return _referenced(records, threshold)
    return _unreferenced(records, threshold)


def _referenced(records: Sequence[Record], threshold: float) -> dict[str, dict[str, Column]]:
    table: dict[str, dict[str, Column]] = {}
    judged = {side: [outcome_of(record, side, threshold) for record in records] for side in SIDES}
    for side, outcomes in judged.items():
        faces = [float(o.faces) for o in outcomes]
        hits = [float(o.hits) for o in outcomes]
        ones = [1.0] * len(records)
        per_side: dict[str, Column] = {
            "detection_rate": (hits, faces),
            "pictures_with_hit": ([float(h > 0) for h in hits], ones),
            "confidence": ([sum(o.confidences) for o in outcomes], faces),
            "false_positives": ([float(o.false_positives) for o in outcomes], ones),
            "landmark_error": ([sum(o.landmark_errors) for o in outcomes], hits),
        }
        for name, column in per_side.items():
            table.setdefault(name, {})[side] = column
    table["landmark_error_common"] = _common_landmarks(judged["blurred"], judged["restored"])
    for name in ("psnr", "ssim", "lpips", "identity"):
        for side in ("blurred", "restored"):
            values = [record.measures.get(name, {}).get(side) for record in records]
            if any(value is not None for value in values):
                table.setdefault(name, {})[side] = (
                    [v or 0.0 for v in values],
                    [float(v is not None) for v in values],
                )
    worse = [record.measures["psnr"]["restored"] < record.measures["psnr"]["blurred"] - WORSE_DB for record in records]
    table["made_worse"] = {"restored": ([float(w) for w in worse], [1.0] * len(records))}
    return table


def _common_landmarks(blurred: Sequence[DetectionOutcome], restored: Sequence[DetectionOutcome]) -> dict[str, Column]:
    """Landmark errors of the faces found both before and after: a face found anew says nothing about a change."""
    sums: dict[str, list[float]] = {"blurred": [], "restored": []}
    counts = []
    for before, after in zip(blurred, restored, strict=True):
        a, b = _errors_by_face(before), _errors_by_face(after)
        common = a.keys() & b.keys()
        sums["blurred"].append(sum(a[i] for i in common))
        sums["restored"].append(sum(b[i] for i in common))
        counts.append(float(len(common)))
    return {side: (totals, counts) for side, totals in sums.items()}


def _errors_by_face(outcome: DetectionOutcome) -> dict[int, float]:
    found = (index for index, confidence in enumerate(outcome.confidences) if confidence > 0)
    return dict(zip(found, outcome.landmark_errors, strict=True))


def outcome_of(
    record: Record, side: str, threshold: float, reference_threshold: float | None = None
) -> DetectionOutcome:
    """One side of a picture against the faces of the sharp one, which are those at the reference threshold."""
    least = threshold if reference_threshold is None else reference_threshold
    reference = [face for face in record.faces["sharp"] if face.score >= least]
    return judge_detection(record.faces[side], reference, threshold=threshold)


def _unreferenced(records: Sequence[Record], threshold: float) -> dict[str, dict[str, Column]]:
    ones = [1.0] * len(records)
    found = {
        side: [[face for face in record.faces[side] if face.score >= threshold] for record in records]
        for side in ("blurred", "restored")
    }
    table: dict[str, dict[str, Column]] = {}
    for side, faces in found.items():
        table.setdefault("faces_found", {})[side] = ([float(len(f)) for f in faces], ones)
        table.setdefault("pictures_with_face", {})[side] = ([float(bool(f)) for f in faces], ones)
        table.setdefault("confidence", {})[side] = ([mean_confidence(f) for f in faces], ones)
    overlaps = [agreement(a, b) for a, b in zip(found["blurred"], found["restored"], strict=True)]
    known = [float(not math.isnan(overlap)) for overlap in overlaps]
    table["box_agreement"] = {"restored": ([0.0 if math.isnan(o) else o for o in overlaps], known)}
    return table


def group(
    name: str,
    kind: str,
    table: Mapping[str, Mapping[str, Column]],
    chosen: Sequence[int],
    resamples: int,
    seed: int,
) -> Group:
    """The figures of the chosen pictures."""
    figures: dict[str, dict[str, Value]] = {}
    for measure, sides in table.items():
        picked = {side: _pick(column, chosen) for side, column in sides.items()}
        figures[measure] = {side: _value(*column, resamples, seed) for side, column in picked.items()}
        if "blurred" in picked and "restored" in picked:
            before, after = picked["blurred"], picked["restored"]
            if before[1] == after[1]:  # the same divisor, so the gain is a paired figure of its own
                difference = [b - a for a, b in zip(before[0], after[0], strict=True)]
                figures[measure]["gain"] = _value(difference, after[1], resamples, seed)
    counts = table.get("detection_rate", {}).get("sharp") or table["faces_found"]["blurred"]
    faces = _pick(counts, chosen)[1 if "detection_rate" in table else 0]
    return Group(name=name, kind=kind, pictures=len(chosen), faces=int(sum(faces)), figures=figures)


def _pick(column: Column, chosen: Sequence[int]) -> Column:
    return [column[0][i] for i in chosen], [column[1][i] for i in chosen]


def _value(totals: Sequence[float], counts: Sequence[float], resamples: int, seed: int) -> Value:
    divisor = sum(counts)
    low, high = bootstrap_interval(totals, counts, resamples=resamples, seed=seed)
    return Value(value=sum(totals) / divisor if divisor else math.nan, low=low, high=high)


def groups(
    records: Sequence[Record], extents: Sequence[float], threshold: float, resamples: int, seed: int
) -> list[Group]:
    """All pictures, then bands of blur extent, then each extent where there are few.

    Args:
        records: the pictures.
        extents: of their blur, in the report's unit.
        threshold: least score of a face.
        resamples: of the bootstrap.
        seed: of the bootstrap.
    """
    table = columns(records, threshold)
    made = [group("all", "all", table, range(len(records)), resamples, seed)]

    chosen = [(name, "band", [low <= e < high for e in extents]) for name, low, high in BANDS]
    distinct = sorted(set(extents))
    if len(distinct) <= MOST_DISTINCT_EXTENTS:
        chosen += [(f"{value:g}", "extent", [e == value for e in extents]) for value in distinct]
    for name, kind, belongs in chosen:
        if any(belongs):
            indices = [i for i, yes in enumerate(belongs) if yes]
            made.append(group(name, kind, table, indices, resamples, seed))
    return made


def threshold_curve(records: Sequence[Record], reference_threshold: float) -> list[dict[str, float]]:
    """Detection rate and false positives of each side over the detector's threshold; the reference stays as it is."""
    curve = []
    for threshold in THRESHOLDS:
        point = {"threshold": threshold}
        for side in SIDES:
            outcomes = [outcome_of(record, side, threshold, reference_threshold) for record in records]
            faces = sum(o.faces for o in outcomes)
            point[f"{side}_rate"] = sum(o.hits for o in outcomes) / faces if faces else math.nan
            point[f"{side}_false_positives"] = sum(o.false_positives for o in outcomes) / max(1, len(outcomes))
        curve.append(point)
    return curve


def extent_error(known: Sequence[float], estimated: Sequence[float]) -> dict[str, float]:
    """How far the estimate of the blur is from the known extents, both in pixels of the picture."""
    a, b = np.asarray(known, float), np.asarray(estimated, float)
    return {
        "pictures": len(a),
        "mean_absolute_error_px": float(np.abs(a - b).mean()),
        "mean_error_px": float((b - a).mean()),
        "rank_correlation": rank_correlation(a, b),
    }


def rank_correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Spearman's correlation, ties sharing their mean rank; nan where one side does not vary."""
    x, y = _ranks(a), _ranks(b)
    spread = float(x.std() * y.std())
    return float(((x - x.mean()) * (y - y.mean())).mean() / spread) if spread > 0 else math.nan


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]
