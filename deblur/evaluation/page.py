"""The report as one HTML page that needs no other file."""

import base64
import html
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from deblur.evaluation.measure import Record
from deblur.evaluation.tables import SIDES, Group, Value
from deblur.images import decode
from deblur.metrics import mean_confidence

if TYPE_CHECKING:
    from deblur.evaluation.report import Report

STRIP_PX = 192
TITLES = {
    "detection_rate": "Faces found (share of the reference faces)",
    "pictures_with_hit": "Pictures in which a reference face is found",
    "confidence": "Mean confidence (missed faces count 0)",
    "false_positives": "False faces per picture",
    "landmark_error": "Landmark error over eye distance (found faces only)",
    "landmark_error_common": "Landmark error (faces found both before and after)",
    "psnr": "PSNR, dB",
    "ssim": "SSIM",
    "lpips": "LPIPS (lower is closer)",
    "identity": "Identity similarity (cosine)",
    "made_worse": "Pictures made worse by more than 0.05 dB",
    "faces_found": "Faces found per picture",
    "pictures_with_face": "Pictures with a face",
    "box_agreement": "Overlap of the boxes before and after",
}
# Columns left out of the table at a glance: what follows from the others or is the same by definition.
DULL = frozenset(
    {
        ("pictures_with_hit", "blurred"),
        ("pictures_with_hit", "restored"),
        ("pictures_with_hit", "gain"),
        ("detection_rate", "gain"),
        ("confidence", "sharp"),
        ("confidence", "gain"),
        ("false_positives", "sharp"),
        ("false_positives", "gain"),
        ("landmark_error", "sharp"),
        ("landmark_error", "blurred"),
        ("landmark_error", "restored"),
        ("landmark_error_common", "gain"),
        ("psnr", "blurred"),
        ("ssim", "gain"),
        ("lpips", "gain"),
        ("identity", "gain"),
    }
)
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; display: block; overflow-x: auto; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
th { font-size: 12px; vertical-align: bottom; white-space: normal; min-width: 4rem; }
th:first-child, td:first-child { text-align: left; }
tr.all, tr.band { background: var(--soft); }
small { opacity: .65; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; }
.plots img { width: calc(50% - .5rem); min-width: 20rem; background: white; }
.strips { display: flex; flex-wrap: wrap; gap: 1rem; }
details { margin: .4rem 0; } summary { cursor: pointer; }
figure { margin: 0; } figure img { display: block; max-width: 100%; }
figcaption { font-size: 12px; overflow-wrap: anywhere; max-width: 36rem; }
.note { border-left: 4px solid #E69F00; padding: .4rem 1rem; background: var(--soft); }
"""


def page(report: "Report", plots: Mapping[str, bytes]) -> str:
    """The whole page.

    Args:
        report: what to show.
        plots: PNG files by name, shown in place.
    """
    kind = "" if report.referenced else " (unreferenced)"
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Restoration report{kind}</title><style>{STYLE}</style><body>",
        f"<h1>Restoration report{kind}</h1>",
        _introduction(report),
        _glance(report.groups),
        _negatives(report),
        "<h2>Curves</h2><div class='plots'>",
        *(f"<img alt='{html.escape(name)}' src='{_data_url(data, 'png')}'>" for name, data in plots.items()),
        "</div>",
        *_strips(report),
        "<h2>Every figure with its interval</h2>",
        *(_table(report.groups, measure) for measure in report.groups[0].figures),
        _about(report),
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part)


def _introduction(report: "Report") -> str:
    threshold, overlap = report.about["threshold"], report.about["least_iou"]
    if report.referenced:
        text = (
            f"The reference faces are those found on the sharp pictures with a score of at least {threshold}. A hit "
            f"overlaps its reference by IoU {overlap} or more, one to one; a missed face counts as confidence 0. Sharp "
            "is the ceiling. On small aligned crops the detection rate saturates: read it beside the other figures. "
            "Brackets hold 95% bootstrap intervals over pictures; where all pictures agree, they have no width. "
            "PSNR is cut at 100 dB, which stands for equal pictures."
        )
    else:
        text = (
            "There were no sharp pictures, so nothing here says whether a face that was found is the right one or "
            f"where it should be: these are counts of faces with a score of at least {threshold}, before and after. "
            "Brackets hold 95% bootstrap intervals over pictures."
        )
    notes = [f"{name}: not measured. {reason}" for name, reason in report.absent.items()]
    notes += [f"not paired: {problem}" for problem in report.problems]
    if report.extent_error:
        error = report.extent_error
        notes.append(
            f"estimate of the blur extent against the known one: mean absolute error "
            f"{error['mean_absolute_error_px']:.2f} px, rank correlation {error['rank_correlation']:.2f}"
        )
    elif "estimated" in str(report.about["extent_unit"]):
        notes.append("no manifest was found: blur extents are estimates")
    shown = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return f"<p>{html.escape(text)}</p>" + (f"<ul class='note'>{shown}</ul>" if shown else "")


def _glance(groups: Sequence[Group]) -> str:
    """One table of everything, without intervals."""
    shown = [(name, side) for name, sides in groups[0].figures.items() for side in sides if (name, side) not in DULL]
    titles = "".join(f"<th>{TITLES[name].split(' (')[0]}<br>{side}</th>" for name, side in shown)
    rows = []
    for one in groups:
        cells = "".join(f"<td>{_short(one.figures.get(name, {}).get(side))}</td>" for name, side in shown)
        rows.append(f"<tr class='{one.kind}'><td>{html.escape(one.name)}</td><td>{one.pictures}</td>{cells}</tr>")
    return f"<h2>At a glance</h2><table><tr><th>extent</th><th>pictures</th>{titles}</tr>{''.join(rows)}</table>"


def _short(value: Value | None) -> str:
    return "&ndash;" if value is None or math.isnan(value.value) else f"{value.value:.3g}"


def _table(groups: Sequence[Group], measure: str) -> str:
    sides = [side for side in (*SIDES, "gain") if side in groups[0].figures[measure]]
    head = "".join(f"<th>{side}</th>" for side in ("extent", "pictures", "faces", *sides))
    rows = []
    for one in groups:
        figures = one.figures.get(measure, {})
        cells = "".join(f"<td>{_figure(figures.get(side))}</td>" for side in sides)
        name = html.escape(one.name)
        rows.append(f"<tr class='{one.kind}'><td>{name}</td><td>{one.pictures}</td><td>{one.faces}</td>{cells}</tr>")
    table = f"<table><tr>{head}</tr>{''.join(rows)}</table>"
    return f"<details><summary>{TITLES[measure]}</summary>{table}</details>"


def _figure(value: Value | None) -> str:
    if value is None or math.isnan(value.value):
        return "&ndash;"
    return f"{value.value:.3f} <small>[{value.low:.3f}, {value.high:.3f}]</small>"


def _negatives(report: "Report") -> str:
    if report.negatives is None:
        return ""
    found = report.negatives
    names = "".join(f"<li>{html.escape(name)}</li>" for name in found.hallucinated)
    return (
        f"<h2>Pictures without a face</h2><p>{found.pictures} pictures: {found.blurred:.3f} false faces per blurred "
        f"picture, {found.restored:.3f} per restored picture. More faces after the restoration than before in "
        f"{len(found.hallucinated)}.</p><ul>{names}</ul>"
    )


def _strips(report: "Report") -> list[str]:
    count = min(int(report.about["strips"]), len(report.records))
    if not count:
        return []
    gains = [_gain(record, float(report.about["threshold"])) for record in report.records]
    order = sorted(range(len(gains)), key=lambda i: (-gains[i], report.records[i].pair.name))
    start = (len(order) - count) // 2
    unit = "dB" if report.referenced else "of confidence"
    sections = []
    for title, chosen in (
        ("Best", order[:count]), ("Median", order[start : start + count]), ("Worst", order[::-1][:count]),
    ):  # fmt: skip
        figures = "".join(_strip(report.records[i], report.extents[i], gains[i], unit) for i in chosen)
        sections.append(f"<h2>{title} {count}</h2><div class='strips'>{figures}</div>")
    return sections


def _gain(record: Record, threshold: float) -> float:
    if "psnr" in record.measures:
        return record.measures["psnr"]["restored"] - record.measures["psnr"]["blurred"]
    before, after = (
        mean_confidence([face for face in record.faces[side] if face.score >= threshold])
        for side in ("blurred", "restored")
    )
    return after - before


def _strip(record: Record, extent: float, gain: float, unit: str) -> str:
    pair = record.pair
    paths = [("blurred", pair.blurred), ("restored", pair.restored), ("sharp", pair.sharp)]
    shown = [(side, path) for side, path in paths if path is not None]
    picture = np.concatenate([_thumbnail(path) for _, path in shown], axis=1)
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "JPEG", quality=92, subsampling=0)
    caption = html.escape(f"{pair.name}: extent {extent:g}, {gain:+.2f} {unit}; {', '.join(side for side, _ in shown)}")
    source = _data_url(stream.getvalue(), "jpeg")
    return f"<figure><img alt='{caption}' src='{source}'><figcaption>{caption}</figcaption></figure>"


def _thumbnail(path: Path) -> np.ndarray:
    """8-bit levels at 1:1 where they fit, else shrunk to STRIP_PX."""
    levels = decode(path).levels
    if levels.dtype == np.uint16:
        levels = (levels // 257).astype(np.uint8)
    image = Image.fromarray(levels)
    image.thumbnail((STRIP_PX, STRIP_PX), Image.Resampling.LANCZOS)
    return np.asarray(image)


def _about(report: "Report") -> str:
    rows = "".join(
        f"<tr><td>{html.escape(key)}</td><td>{html.escape(str(value))}</td></tr>"
        for key, value in report.about.items()
        if value is not None
    )
    return f"<h2>About</h2><table>{rows}</table>"


def _data_url(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
