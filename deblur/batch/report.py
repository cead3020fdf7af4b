"""A report of a run: one self-contained HTML page, or JSON."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path

from deblur.batch.compare import small_rgb
from deblur.batch.files import write_atomically
from deblur.batch.journal import Entry
from deblur.batch.runner import Summary
from deblur.errors import ImageError, OptionError
from deblur.images import decode, encode

_PICTURES_SHOWN = 60
_ROWS_SHOWN = 5000
_THUMBNAIL_PX = 320
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .3rem .6rem; }
tr { border-bottom: 1px solid #8884; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
figure { margin: 1.5rem 0; } figure img { max-width: 49%; vertical-align: top; border-radius: 4px; }
.failed { color: #c22; } .numbers { display: flex; flex-wrap: wrap; gap: 2rem; padding: 0; list-style: none; }
.numbers b { display: block; font-size: 1.6rem; }
"""


def report_path(value: str, output: Path) -> Path:
    """Where a report goes: "html" or "json" for a file in the output folder, or a path that ends so.

    Raises:
        OptionError: Another ending.
    """
    if value in ("html", "json"):
        return output / f"deblur-report.{value}"
    path = Path(value)
    if path.suffix.lower() not in (".html", ".htm", ".json"):
        raise OptionError(f"report: expected html, json or a path that ends in .html or .json, got {value!r}")
    return path


def write_report(path: Path, summary: Summary, entries: Sequence[Entry], output: Path) -> None:
    """Writes the report.

    Args:
        path: Its ending tells JSON from HTML.
        summary: Of the run.
        entries: Latest journal line of each picture of the run, in order.
        output: Output folder.

    Raises:
        OutputError: It cannot be written.
    """
    if path.suffix.lower() == ".json":
        content = {"summary": summary.to_json(), "pictures": [entry.to_json() for entry in entries]}
        text = json.dumps(content, indent=1, ensure_ascii=True)
    else:
        text = _page(summary, entries, output)
    write_atomically(path, text.encode("utf-8", "replace"))


def _page(summary: Summary, entries: Sequence[Entry], output: Path) -> str:
    numbers = [
        (summary.restored, "restored"),
        (summary.unchanged, "unchanged"),
        (summary.done_before + summary.existing, "passed over"),
        (len(summary.failed), "failed"),
        (f"{summary.faces_before} → {summary.faces_after}", "faces found"),
        (f"{summary.mean_confidence_before:.3f} → {summary.mean_confidence_after:.3f}", "mean confidence"),
        (f"{summary.seconds:.1f} s", "time"),
    ]
    items = "".join(f"<li><b>{html.escape(str(value))}</b>{name}</li>" for value, name in numbers)
    rows = "".join(_row(entry) for entry in entries[:_ROWS_SHOWN])
    more = f"<p>{len(entries) - _ROWS_SHOWN} more in the journal.</p>" if len(entries) > _ROWS_SHOWN else ""
    shown = [entry for entry in entries if entry.status == "restored"][:_PICTURES_SHOWN]
    figures = "".join(_figure(entry, output) for entry in shown)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>deblur report</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f'<h1>deblur report</h1><ul class="numbers">{items}</ul>'
        f"<table><thead><tr><th>picture<th>result<th>faces<th>confidence<th>seconds</tr></thead>"
        f"<tbody>{rows}</tbody></table>{more}<h2>Before and after</h2>{figures or '<p>None was restored.</p>'}</html>"
    )


def _row(entry: Entry) -> str:
    result = html.escape(entry.error or entry.status, quote=True)
    notes = "".join(f"<br><small>{html.escape(note)}</small>" for note in entry.warnings)
    return (
        f'<tr><td>{_text(entry.key)}{notes}<td class="{entry.status}">{result}'
        f'<td class="n">{entry.faces_before} → {entry.faces_after}'
        f'<td class="n">{entry.confidence_before:.3f} → {entry.confidence_after:.3f}'
        f'<td class="n">{entry.seconds:.2f}</tr>\n'
    )


def _figure(entry: Entry, output: Path) -> str:
    try:
        pictures = [_thumbnail(Path(entry.source)), _thumbnail(output / entry.output)]
    except ImageError:
        return ""
    images = "".join(
        f'<img src="data:image/jpeg;base64,{data}" alt="{when}">'
        for data, when in zip(pictures, ("before", "after"), strict=True)
    )
    return f"<figure>{images}<figcaption>{_text(entry.key)}</figcaption></figure>\n"


def _thumbnail(path: Path) -> str:
    import numpy as np

    image = small_rgb(decode(path), _THUMBNAIL_PX)
    return base64.b64encode(encode(decode(np.asarray(image)), "JPEG", 85)).decode("ascii")


def _text(name: str) -> str:
    return html.escape(name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
