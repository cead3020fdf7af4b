"""The report: what was found, and its four forms on disk (JSON, CSV, PNG plots, one HTML page)."""

import csv
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deblur.errors import OutputError
from deblur.evaluation.measure import Record
from deblur.evaluation.tables import SIDES, Group, outcome_of
from deblur.metrics import mean_confidence


@dataclass(frozen=True, kw_only=True)
class Negatives:
    """Faces seen in pictures without a face: every one is false.

    Attributes:
        pictures: how many pictures.
        blurred: false faces per blurred picture.
        restored: false faces per restored picture.
        hallucinated: pictures that show a face only after the restoration.
    """

    pictures: int
    blurred: float
    restored: float
    hallucinated: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that an evaluation found.

    Attributes:
        referenced: whether there were sharp pictures.
        about: what was evaluated: folders, weights, versions, detector setting, unit of the extents.
        groups: all pictures, bands of blur extent, single extents.
        curve: rates over the detector's threshold (referenced only).
        records: one a picture.
        extents: of each record, in the report's unit.
        extent_error: error of the blur estimate where the extents are known, else empty.
        negatives: or None.
        absent: reasons why a measure is not there.
        problems: pictures that could not be paired.
    """

    referenced: bool
    about: Mapping[str, Any]
    groups: Sequence[Group]
    curve: Sequence[Mapping[str, float]]
    records: Sequence[Record]
    extents: Sequence[float]
    extent_error: Mapping[str, float] = field(default_factory=dict)
    negatives: Negatives | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    problems: Sequence[str] = ()

    def group(self, name: str) -> Group:
        """The first group of that name: "all", a band such as "9-17", or an extent such as "25".

        Raises:
            KeyError: there is none.
        """
        for one in self.groups:
            if one.name == name:
                return one
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; figures that do not exist become null."""
        content = {
            "protocol": "referenced" if self.referenced else "unreferenced",
            "about": dict(self.about),
            "groups": [dataclasses.asdict(one) for one in self.groups],
            "threshold_curve": [dict(point) for point in self.curve],
            "extent_estimate": dict(self.extent_error),
            "negatives": dataclasses.asdict(self.negatives) if self.negatives else None,
            "absent": dict(self.absent),
            "problems": list(self.problems),
            "pictures": self.rows(),
        }
        return _jsonable(content)

    def rows(self) -> list[dict[str, Any]]:
        """One flat row a picture, as in the CSV."""
        threshold = float(self.about["threshold"])
        return [_row(record, extent, threshold) for record, extent in zip(self.records, self.extents, strict=True)]

    def write(self, folder: Path) -> None:
        """Write report.json, pictures.csv, the plots and index.html.

        Args:
            folder: made when absent; files of these names are replaced.

        Raises:
            OutputError: the folder cannot be written.
        """
        from deblur.evaluation.page import page
        from deblur.evaluation.plots import draw_plots

        try:
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
            (folder / "report.json").write_text(text + "\n", encoding="utf-8")
            rows = _jsonable(self.rows())
            names = list(dict.fromkeys(key for row in rows for key in row))
            with (folder / "pictures.csv").open("w", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, names, restval="")
                writer.writeheader()
                writer.writerows(rows)
            plots = draw_plots(self)
            for name, data in plots.items():
                (folder / f"{name}.png").write_bytes(data)
            (folder / "index.html").write_text(page(self, plots), encoding="utf-8")
        except OSError as error:
            raise OutputError(f"{folder}: the report cannot be written: {error.strerror}") from error

    def summary(self) -> str:
        """A plain-text table of the bands of blur extent, for the terminal."""
        kind = "referenced" if self.referenced else "UNREFERENCED"
        lines = [f"{self.about['pictures']} pictures, {kind}; blur extent in {self.about['extent_unit']}"]
        shown = [one for one in self.groups if one.kind != "extent"]
        for measure, figures in shown[0].figures.items():
            sides = [side for side in (*SIDES, "gain") if side in figures]
            lines += ["", f"{measure:<20}" + "".join(f"{side:>26}" for side in sides)]
            for one in shown:
                cells = [_cell(one.figures.get(measure, {}).get(side)) for side in sides]
                lines.append(f"  {one.name:<12}{one.pictures:>5} " + "".join(f"{cell:>26}" for cell in cells))
        lines += ["", *(f"{name}: absent, {reason}" for name, reason in self.absent.items())]
        return "\n".join(lines).rstrip()


def _cell(value: Any) -> str:
    if value is None or math.isnan(value.value):
        return "-"
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]"


def _row(record: Record, extent: float, threshold: float) -> dict[str, Any]:
    row: dict[str, Any] = {
        "file": record.pair.name,
        "width_px": record.size_px[1],
        "height_px": record.size_px[0],
        "extent": extent,
        "estimated_extent_px": round(record.estimated_extent_px, 3),
    }
    if record.pair.known:
        notes = record.pair.known.notes.items()
        row |= {key: note for key, note in notes if isinstance(note, (str, int, float)) and key not in row}
    for side, faces in record.faces.items():
        counted = [face for face in faces if face.score >= threshold]
        row[f"{side}_faces"] = len(counted)
        row[f"{side}_mean_confidence"] = round(mean_confidence(counted), 6)
        if "sharp" in record.faces:
            outcome = outcome_of(record, side, threshold)
            row[f"{side}_hits"] = outcome.hits
            row[f"{side}_false_positives"] = outcome.false_positives
            row[f"{side}_landmark_error"] = (
                round(sum(outcome.landmark_errors) / outcome.hits, 6) if outcome.hits else None
            )
    for name, sides in record.measures.items():
        for side, value in sides.items():
            row[f"{side}_{name}"] = round(value, 6)
    return row


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
