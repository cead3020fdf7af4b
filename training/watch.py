"""What a run tells: a JSON-lines log, a progress bar or lines, and TensorBoard where it is installed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from deblur.errors import OptionError

LOG_NAME = "log.jsonl"
PICTURES = "pictures"


class Means:
    """Means of named scalars between two reports, summed on the device so that no step waits for a number."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Adds one step's scalars; numbers that are not finite are left out of the means."""
        for name, value in values.items():
            value = value.detach().float()
            if name != "skipped":
                value = torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] = self._counts.get(name, 0) + 1

    def take(self) -> dict[str, float]:
        """The means since the last time; `skipped` is a count."""
        means = {n: float(s) / (1 if n == "skipped" else self._counts[n]) for n, s in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means


class Log:
    """The run's log.jsonl: one JSON object a line, with an `event` of `start`, `train`, `validate` or `end`."""

    def __init__(self, run: Path, resumed_at: int | None = None):
        self.path = run / LOG_NAME
        if resumed_at is not None:
            self._drop_after(resumed_at)

    def write(self, event: str, entry: Mapping[str, Any]) -> None:
        """Adds one line."""
        rounded = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in entry.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **rounded}) + "\n")

    def _drop_after(self, step: int) -> None:
        # Steps that were taken after the checkpoint and lost are taken again.
        entries = read_log(self.path.parent) if self.path.is_file() else []
        kept = [e for e in entries if e.get("step", 0) <= step]
        temporary = self.path.with_suffix(".partial")
        temporary.write_text("".join(json.dumps(e) + "\n" for e in kept), encoding="utf-8")
        temporary.replace(self.path)


def read_log(run: Path) -> list[dict[str, Any]]:
    """The entries of a run's log; a line that was cut off is left out."""
    entries = []
    for line in (run / LOG_NAME).read_text(encoding="utf-8").splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return entries


class Progress(Protocol):
    """Shows how far a run is."""

    def show(self, entry: Mapping[str, Any]) -> None:
        """Shows the newest report."""

    def say(self, line: str) -> None:
        """Shows a line of its own."""

    def close(self) -> None:
        """Ends the display."""


class Silent:
    """Shows nothing: what processes other than the first show."""

    def show(self, entry: Mapping[str, Any]) -> None:
        """Nothing."""

    def say(self, line: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Lines:
    """A line for each report, at most one every few seconds."""

    def __init__(self, every_seconds: float = 5.0):
        self._every, self._shown = every_seconds, -1e9

    def show(self, entry: Mapping[str, Any]) -> None:
        """A line, if the last is some time ago."""
        if time.monotonic() - self._shown >= self._every:
            self._shown = time.monotonic()
            self.say(described(entry))

    def say(self, line: str) -> None:
        """A line."""
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Nothing to end."""


class Bar:
    """tqdm's bar over a run's progress in percent."""

    def __init__(self) -> None:
        from tqdm import tqdm

        self._tqdm = tqdm
        self._bar = tqdm(total=100.0, bar_format="{percentage:5.1f}% |{bar}| {postfix}", file=sys.stderr)

    def show(self, entry: Mapping[str, Any]) -> None:
        """Moves the bar."""
        self._bar.n = 100.0 * entry["progress"]
        self._bar.set_postfix_str(described(entry))

    def say(self, line: str) -> None:
        """A line above the bar."""
        self._tqdm.write(line, file=sys.stderr)

    def close(self) -> None:
        """Leaves the bar as it is."""
        self._bar.close()


def progress_display(first: bool) -> Progress:
    """A bar on a terminal with tqdm installed, lines otherwise; nothing in processes other than the first."""
    if not first:
        return Silent()
    return Bar() if sys.stderr.isatty() and find_spec("tqdm") else Lines()


def described(entry: Mapping[str, Any]) -> str:
    """One line of a report: step, speed, time left, the losses."""
    shown = ("total", "pixel", "fft", "perceptual", "identity", "adversarial", "discriminator", "d_sharp", "d_restored")
    losses = " ".join(f"{name} {entry[name]:.4g}" for name in shown if name in entry)
    skipped = f" skipped {entry['skipped']:g}" if entry.get("skipped") else ""
    speed = f"{entry['img_per_s']:.1f} img/s" if "img_per_s" in entry else ""
    return f"step {entry['step']} {speed}, {duration(entry['eta_s'])} left, {losses}{skipped}"


def duration(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


class Board:
    """TensorBoard, or nothing where it is not wanted or not installed.

    Args:
        run: the run's folder; curves go to `tensorboard/` in it.
        wanted: True insists, False leaves it out, None takes it if it is installed.

    Raises:
        OptionError: it is insisted on and not installed.
    """

    def __init__(self, run: Path, wanted: bool | None):
        self.installed = find_spec("tensorboard") is not None
        if wanted and not self.installed:
            raise OptionError("--tensorboard: TensorBoard is not installed; pip install 'face-deblur[train]'")
        self._writer: Any = None
        if self.installed and wanted is not False:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(run / "tensorboard"))

    def scalars(self, event: str, entry: Mapping[str, Any], step: int) -> None:
        """Adds a point to the curve of every number."""
        if self._writer is not None:
            for name, value in entry.items():
                if isinstance(value, (int, float)) and name not in ("step", "event"):
                    self._writer.add_scalar(f"{event}/{name}", value, step)

    def picture(self, sheet: np.ndarray, step: int) -> None:
        """Adds the sheet (H, W, 3) uint8."""
        if self._writer is not None:
            self._writer.add_image("blurred_restored_sharp", sheet, step, dataformats="HWC")

    def close(self) -> None:
        """Writes what is left."""
        if self._writer is not None:
            self._writer.close()
