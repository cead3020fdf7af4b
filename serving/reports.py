"""A restoration as the JSON report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serving.logs import current_request_id
from serving.metrics import mean_confidence
from serving.pipeline import Outcome
from serving.schemas import FaceFound, FaceReport, Mode, ModelReport, PictureReport, Report

if TYPE_CHECKING:
    from deblur.faces import Face


def report_on(outcome: Outcome, mode: Mode, image: str | None) -> Report:
    """The report on one restored picture.

    Args:
        outcome: of the pipeline.
        mode: as asked for.
        image: the picture as a data URL, if it was asked for.
    """
    restoration, model = outcome.restoration, outcome.model
    picture = restoration.picture
    return Report(
        request_id=current_request_id(),
        mode=mode,
        done=restoration.mode,
        kept_original=restoration.kept_original,
        model=ModelReport(name=model.name, version=model.version, sha256=model.sha256),
        picture=PictureReport(
            width=picture.width,
            height=picture.height,
            source_format=picture.format,
            warnings=list(picture.warnings),
        ),
        faces_before=[found for face in restoration.faces_before if (found := _found(face))],
        faces_after=[found for face in restoration.faces_after if (found := _found(face))],
        confidence_before=mean_confidence(restoration.faces_before),
        confidence_after=mean_confidence(restoration.faces_after),
        faces=[
            FaceReport(
                before=_found(face.before),
                after=_found(face.after),
                kept_original=face.kept_original,
                extent_px=face.extent_px,
            )
            for face in restoration.faces
        ],
        timings_ms={name: round(seconds * 1000, 2) for name, seconds in outcome.timings_s.items()},
        image=image,
    )


def _found(face: Face | None) -> FaceFound | None:
    if face is None:
        return None
    landmarks = [(float(x), float(y)) for x, y in face.landmarks]
    return FaceFound(box=_box(face.box), score=min(1.0, max(0.0, float(face.score))), landmarks=landmarks)


def _box(box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = (float(value) for value in box)
    return x0, y0, x1, y1
