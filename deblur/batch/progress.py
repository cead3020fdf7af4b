"""What a person or a script sees while a run goes on, and at its end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from deblur.batch.outcome import Outcome
from deblur.batch.runner import Listener, Summary

STYLES = ("auto", "json", "quiet")


def printable(text: object) -> str:
    """Text that is safe on a terminal: control characters and what is no UTF-8 are escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in str(text)
    )


class Progress:
    """Shows a run: a bar on a terminal, a line a picture elsewhere, JSON lines for scripts, or nothing.

    Args:
        style: "auto", "json" or "quiet".
        out: For JSON lines.
        err: For the bar, the lines and the failures.
        on_start: Is given the way to stop the run.
    """

    def __init__(
        self,
        style: str,
        out: TextIO,
        err: TextIO,
        on_start: Callable[[Callable[[], None]], None] = lambda stop: None,
    ):
        self._style = style
        self._out = out
        self._err = err
        self._on_start = on_start
        self._bar: Any = None
        self._total = 0

    def listener(self) -> Listener:
        """To hand to a run."""
        return Listener(started=self._started, done=self._done)

    def _started(self, total: int, stop: Callable[[], None]) -> None:
        self._total = total
        self._on_start(stop)
        if self._style == "auto" and self._err.isatty():
            from tqdm import tqdm

            self.close()
            self._bar = tqdm(total=total, unit="picture", file=self._err, dynamic_ncols=True, smoothing=0.1)

    def _done(self, outcome: Outcome, summary: Summary) -> None:
        entry = outcome.entry
        if self._style == "json":
            self._out.write(json.dumps(_record(outcome)) + "\n")
            self._out.flush()
        if entry is not None and not entry.succeeded and not outcome.skipped:
            self._line(f"failed: {_with_source(entry.source, entry.error)}")
        elif self._style == "auto" and self._bar is None and not outcome.skipped:
            self._line(f"[{summary.seen}/{self._total}] {_sentence(outcome)}")
        if self._bar is not None:
            faces = f"faces {summary.faces_before} -> {summary.faces_after}, failed {len(summary.failed)}"
            self._bar.set_postfix_str(faces, refresh=False)
            self._bar.update()

    def _line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=self._err)
        else:
            self._err.write(text + "\n")
            self._err.flush()

    def close(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _record(outcome: Outcome) -> dict[str, Any]:
    record = {"type": "picture", "source": str(outcome.job.source), "skipped": outcome.skipped}
    if outcome.entry is not None:
        record.update(outcome.entry.to_json())
    return record


def _sentence(outcome: Outcome) -> str:
    entry = outcome.entry
    assert entry is not None
    faces = f"{entry.faces_before} face{'s' if entry.faces_before != 1 else ''}"
    if entry.faces_before or entry.faces_after:
        faces += f" -> {entry.faces_after}, confidence {entry.confidence_before:.2f} -> {entry.confidence_after:.2f}"
    return f"{printable(entry.key)}: {entry.status}, {faces}, {entry.seconds:.2f} s"


def print_summary(summary: Summary, output: Path, style: str, out: TextIO, err: TextIO = sys.stderr) -> None:
    """Prints the end of a run: text, or one JSON object of type "summary"."""
    if style == "json":
        out.write(json.dumps({"type": "summary", "output": str(output), **summary.to_json()}) + "\n")
        return
    lines = _failures(summary)
    if style == "auto":
        lines = _text(summary, output) + lines
    stream = out if style == "auto" else err
    for line in lines:
        stream.write(line + "\n")


def _text(summary: Summary, output: Path) -> list[str]:
    pictures = f"{summary.written} picture{'s' if summary.written != 1 else ''}"
    rate = f" ({summary.written / summary.seconds:.1f} a second)" if summary.seconds and summary.written else ""
    lines = [
        f"{pictures} written in {summary.seconds:.1f} s{rate}: {summary.restored} restored, "
        f"{summary.unchanged} unchanged"
    ]
    if summary.faces_before or summary.faces_after:
        lines.append(
            f"faces: {summary.faces_before} -> {summary.faces_after} found, mean confidence "
            f"{summary.mean_confidence_before:.3f} -> {summary.mean_confidence_after:.3f}"
        )
    elif summary.written:
        lines.append("faces: 0")
    if summary.done_before:
        lines.append(f"passed over: {summary.done_before} done before (--overwrite does them again)")
    if summary.existing:
        lines.append(f"passed over: {summary.existing} whose output exists already (--overwrite replaces it)")
    if summary.ignored:
        parts = ", ".join(f"{count} {why}" for why, count in sorted(summary.ignored.items()))
        lines.append(f"ignored: {parts}")
    lines.append(f"output: {printable(output)}")
    if summary.interrupted:
        lines.append(f"stopped: {summary.left} pictures are left. Run the same command again to go on.")
    return lines


def _with_source(source: str, error: str) -> str:
    return printable(error if source in error else f"{source}: {error}")


def _failures(summary: Summary) -> list[str]:
    if not summary.failed:
        return []
    shown = summary.failed[:20]
    lines = [f"failed: {len(summary.failed)}"]
    for source, error in shown:
        lines.append(f"  {_with_source(source, error)}")
    if len(summary.failed) > len(shown):
        lines.append(f"  and {len(summary.failed) - len(shown)} more; all are in the journal")
    return lines
