"""The report's curves as PNG."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deblur.errors import DeblurError
from deblur.evaluation.tables import SIDES, Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from deblur.evaluation.report import Report

# Okabe and Ito's colours, told apart by colour-blind eyes; markers differ as well.
STYLES: Mapping[str, Mapping[str, Any]] = {
    "sharp": {"color": "#009E73", "marker": "^"},
    "blurred": {"color": "#E69F00", "marker": "s"},
    "restored": {"color": "#0072B2", "marker": "o"},
}
LABELS = {
    "detection_rate": "share of faces found",
    "confidence": "mean detection confidence (missed = 0)",
    "false_positives": "false faces per picture",
    "landmark_error": "landmark error / eye distance",
    "psnr": "PSNR, dB",
    "ssim": "SSIM",
    "lpips": "LPIPS (lower is closer)",
    "identity": "identity similarity",
    "faces_found": "faces found per picture",
    "pictures_with_face": "share of pictures with a face",
}


def draw_plots(report: "Report") -> dict[str, bytes]:
    """PNG files by name: curves over the blur extent, and over the detector's threshold where referenced.

    Raises:
        DeblurError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DeblurError("the report's plots need matplotlib: pip install 'face-deblur[metrics]'") from error

    plots = {}
    groups = [one for one in report.groups if one.kind == "extent"]
    if len(groups) < 2:
        groups = [one for one in report.groups if one.kind == "band"]
    for measure in LABELS:
        if groups and measure in report.groups[0].figures:
            figure = Figure(figsize=(6.4, 4.2), dpi=110, layout="constrained")
            _over_extent(figure.subplots(), groups, measure, str(report.about["extent_unit"]))
            plots[f"{measure}_by_extent"] = _png(figure)
    if report.curve:
        figure = Figure(figsize=(6.4, 4.2), dpi=110, layout="constrained")
        _over_threshold(figure.subplots(), report.curve, "rate", "share of faces found")
        plots["detection_rate_by_threshold"] = _png(figure)
        figure = Figure(figsize=(6.4, 4.2), dpi=110, layout="constrained")
        _over_threshold(figure.subplots(), report.curve, "false_positives", "false faces per picture")
        plots["false_positives_by_threshold"] = _png(figure)
    return plots


def _over_extent(axes: "Axes", groups: Sequence[Group], measure: str, unit: str) -> None:
    for side in SIDES:
        values = [one.figures.get(measure, {}).get(side) for one in groups]
        points = [(i, v) for i, v in enumerate(values) if v is not None and not math.isnan(v.value)]
        if not points:
            continue
        where = [i for i, _ in points]
        style = STYLES[side]
        axes.plot(where, [v.value for _, v in points], label=side, **style)
        axes.fill_between(
            where, [v.low for _, v in points], [v.high for _, v in points], alpha=0.18, color=style["color"], lw=0
        )
    axes.set_xticks(range(len(groups)), [f"{one.name}\n{one.pictures}" for one in groups])
    axes.set_xlabel(f"blur extent ({unit}); below: pictures")
    axes.set_ylabel(LABELS[measure])
    _finish(axes)


def _over_threshold(axes: "Axes", curve: Sequence[Mapping[str, float]], kind: str, label: str) -> None:
    thresholds = [point["threshold"] for point in curve]
    for side in SIDES:
        axes.plot(thresholds, [point[f"{side}_{kind}"] for point in curve], label=side, **STYLES[side])
    axes.set_xlabel("detection threshold (the reference stays at the frozen one)")
    axes.set_ylabel(label)
    _finish(axes)


def _finish(axes: "Axes") -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def _png(figure: "Figure") -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()
