"""Draws a run's curves as PNG: `python -m training.plot RUN [RUN...] [-o curves.png]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deblur.errors import DataError, DeblurError, OptionError
from training.watch import read_log


@dataclass(frozen=True)
class Panel:
    """A set of axes: its title, the log's event, and the names of its curves."""

    title: str
    event: str
    names: tuple[str, ...]


PANELS = (
    Panel("losses", "train", ("total", "pixel", "fft", "perceptual", "identity", "adversarial")),
    Panel("discriminator's mean score", "train", ("d_sharp", "d_restored")),
    Panel("learning rate over its peak", "train", ("rate",)),
    Panel("PSNR, dB", "validate", ("psnr", "psnr_blurred")),
    Panel("SSIM", "validate", ("ssim", "ssim_blurred")),
    Panel("faces found", "validate", ("detection_rate", "detection_rate_blurred")),
    Panel("detector's confidence", "validate", ("confidence", "confidence_blurred")),
    Panel("perceptual distance", "validate", ("perceptual", "perceptual_blurred")),
    Panel("images a second", "train", ("img_per_s",)),
)
COLUMNS = 3


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="training.plot", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("-o", "--out", type=Path, help="default: curves.png in the first run")
    parser.add_argument(
        "--against", choices=("step", "minutes", "seen"), default="step", help="what runs along the x axis"
    )
    options = parser.parse_args(arguments)
    out = options.out or options.runs[0] / "curves.png"
    try:
        plot(options.runs, out, options.against)
    except (DeblurError, OSError) as error:
        sys.stderr.write(f"plot: {error}\n")
        return 3
    sys.stdout.write(f"{out}\n")
    return 0


def plot(runs: Sequence[Path], out: Path, against: str = "step") -> None:
    """Writes the curves of one run, or of several over each other.

    Raises:
        DataError: a run has no log, or nothing is in it yet.
        OptionError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise OptionError("plot: matplotlib is not installed; pip install 'face-deblur[train]'") from error
    logs = {_label(run, runs): _entries(run) for run in runs}
    panels = [p for p in PANELS if any(_curve(e, p.event, n, against)[0] for e in logs.values() for n in p.names)]
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5 * columns, 3.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, index + 1, title=panel.title, xlabel=against)
        axes.grid(alpha=0.3)
        for label, entries in logs.items():
            for name in panel.names:
                x, y = _curve(entries, panel.event, name, against)
                if x:
                    axes.plot(x, y, label=f"{label}{name}", linestyle=":" if name.endswith("_blurred") else "-")
        axes.legend(fontsize="small")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)


def _label(run: Path, runs: Sequence[Path]) -> str:
    return f"{run.name}: " if len(runs) > 1 else ""


def _entries(run: Path) -> list[dict[str, Any]]:
    try:
        entries = [e for e in read_log(run) if e.get("event", "train") in ("train", "validate")]
    except OSError as error:
        raise DataError(f"{run}: expected the folder of a run, with a log in it: {error}") from error
    if not entries:
        raise DataError(f"{run}: its log holds no step yet")
    return entries


def _curve(entries: list[dict[str, Any]], event: str, name: str, against: str) -> tuple[list[float], list[float]]:
    key, scale = ("elapsed", 1 / 60) if against == "minutes" else (against, 1.0)
    # Logs of the first version hold steps alone and no event.
    found = [e for e in entries if e.get("event", "train") == event and name in e and key in e]
    return [scale * e[key] for e in found], [e[name] for e in found]


if __name__ == "__main__":
    sys.exit(main())
