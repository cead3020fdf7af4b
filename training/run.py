"""A run from its first step to its last, or to a signal: trains, validates, logs, writes checkpoints."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_synth import Degrade
from deblur.weights import save_weights
from training.checkpoint import save_checkpoint
from training.config import TrainConfig
from training.data import Batches, CropSampler, parse_source
from training.sheet import make_sheet, pick
from training.trainer import Trainer
from training.validation import Validation, better, made_pairs, read_pairs
from training.watch import PICTURES, Board, Log, Means, Progress

SHEET_PAIRS = 12


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Where a run's outputs go.

    Attributes:
        folder: the run's folder.
        log: its log.
        board: TensorBoard.
        progress: what is shown on the terminal.
    """

    folder: Path
    log: Log
    board: Board
    progress: Progress


class Run:
    """One run in this process.

    Args:
        config: the run.
        trainer: its networks.
        batches: its data.
        validation: what to measure, in the first process; None leaves it out.
        outputs: where everything goes.
    """

    def __init__(
        self,
        config: TrainConfig,
        trainer: Trainer,
        batches: Batches,
        validation: Validation | None,
        outputs: Outputs,
    ):
        self.config, self.trainer, self.batches = config, trainer, batches
        self.validation, self.outputs = validation, outputs
        self.group = trainer.group
        self._means = Means()
        self._reported_at, self._reported_seen, self._reported_step = time.monotonic(), trainer.seen, trainer.step

    def train(self, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Trains to the end, or until told to stop after the step at hand.

        Returns:
            Whether the run is finished.
        """
        trainer, config = self.trainer, self.config
        began, before = time.monotonic(), trainer.elapsed
        saved = began
        stop = False
        while trainer.progress < 1.0 and not stop:
            self._means.add(trainer.train_step(self.batches.get(trainer.step)))
            if trainer.step % config.log_every == 0:
                self._report()
            if config.validate_every and trainer.step % config.validate_every == 0:
                self.validate()
            # One clock and one decision for all processes: they must leave the loop after the same step.
            elapsed, save, wish = self.group.largest(
                [
                    before + time.monotonic() - began,
                    float(time.monotonic() - saved > config.checkpoint_minutes * 60),
                    float(stopped()),
                ],
                trainer.device,
            )
            trainer.elapsed, stop = elapsed, bool(wish)
            if save and not stop:
                self.save()
                saved = time.monotonic()
        finished = trainer.progress >= 1.0
        if trainer.step > self._reported_step:
            self._report()
        if finished and config.validate_every and trainer.step % config.validate_every:
            self.validate()
        self.save()
        return finished

    def _report(self) -> None:
        trainer, now = self.trainer, time.monotonic()
        seconds = max(now - self._reported_at, 1e-9)
        entry: dict[str, Any] = self._means.take()
        entry |= self._position()
        entry["img_per_s"] = (trainer.seen - self._reported_seen) / seconds
        entry["wall"] = seconds
        self._reported_at, self._reported_seen, self._reported_step = now, trainer.seen, trainer.step
        if self.group.first:
            self.outputs.log.write("train", entry)
            self.outputs.board.scalars("train", entry, trainer.step)
            self.outputs.progress.show(entry)

    def _position(self) -> dict[str, Any]:
        trainer = self.trainer
        progress = trainer.progress
        left = trainer.elapsed * (1 - progress) / progress if progress else 0.0
        return {
            "step": trainer.step,
            "seen": trainer.seen,
            "elapsed": trainer.elapsed,
            "progress": progress,
            "eta_s": left,
        }

    def validate(self) -> None:
        """Measures the averaged weights in the first process; the others wait for it."""
        if self.group.first and self.validation is not None:
            measures, restored = self.validation.measure(self.averaged_restore)
            entry = self._position() | measures
            self.outputs.log.write("validate", entry)
            self.outputs.board.scalars("validate", entry, self.trainer.step)
            self.outputs.progress.say(validation_line(entry))
            self._keep_best(measures)
            self._show(restored)
        self.group.wait()
        self._reported_at = time.monotonic()

    def averaged_restore(self, blurred: Tensor) -> Tensor:
        """What the averaged weights make of a batch, float32."""
        trainer = self.trainer
        with torch.autocast(trainer.device.type, trainer.dtype, enabled=trainer.dtype != torch.float32):
            return trainer.ema.module(blurred).float()

    def _keep_best(self, measures: Mapping[str, float]) -> None:
        measure = self.config.best_by if self.config.best_by in measures else "psnr"
        if better(measure, measures[measure], self.trainer.best):
            self.trainer.best = measures[measure]
            self.export(self.outputs.folder / "best.safetensors", {measure: measures[measure]})

    def _show(self, restored: list[Tensor]) -> None:
        assert self.validation is not None
        pairs = self.validation.pairs
        chosen = pick(len(pairs), SHEET_PAIRS)
        sheet = make_sheet(
            [pairs.blurred[i] for i in chosen], [restored[i] for i in chosen], [pairs.sharp[i] for i in chosen]
        )
        write_picture(self.outputs.folder / PICTURES / f"step-{self.trainer.step:08d}.png", sheet)
        self.outputs.board.picture(sheet, self.trainer.step)

    def save(self) -> None:
        """Writes a checkpoint and the averaged weights, in the first process."""
        if self.group.first:
            state = self.trainer.state_dict()
            save_checkpoint(self.outputs.folder / "checkpoints", self.trainer.step, state, self.config.keep)
            self.export(self.outputs.folder / "weights.safetensors", {})
        self.group.wait()

    def export(self, path: Path, more: Mapping[str, Any]) -> None:
        """Writes the averaged weights with what is known of the run."""
        trainer = self.trainer
        metadata = weights_metadata(self.config, trainer.step, trainer.seen, trainer.elapsed)
        save_weights(trainer.ema.module, path, metadata | dict(more))


def weights_metadata(config: TrainConfig, step: int, seen: int, elapsed: float) -> dict[str, Any]:
    """What a weights file tells of the run that it comes from; no path, only the names of the data sets."""
    return {
        "recipe": config.recipe,
        "steps": step,
        "pictures_seen": seen,
        "minutes": round(elapsed / 60, 1),
        "training_data": [parse_source(d)[0].name for d in config.data],
        "losses": {name: value for name, value in vars(config.loss).items() if name.endswith("_weight") and value > 0},
    }


def validation_line(entry: Mapping[str, Any]) -> str:
    """One line of a validation."""
    parts = [f"validation at step {entry['step']}: PSNR {entry['psnr']:.2f} dB ({entry['psnr_blurred']:.2f} blurred)"]
    if "ssim" in entry:
        parts.append(f"SSIM {entry['ssim']:.4f} ({entry['ssim_blurred']:.4f})")
    if "detection_rate" in entry:
        parts.append(f"faces found {entry['detection_rate']:.3f} ({entry['detection_rate_blurred']:.3f})")
    if "perceptual" in entry:
        parts.append(f"perceptual {entry['perceptual']:.4f} ({entry['perceptual_blurred']:.4f})")
    return ", ".join([*parts, f"{entry['worse']:.1%} worse than their input"])


def write_picture(path: Path, levels: np.ndarray) -> None:
    """Writes (H, W, 3) uint8 as PNG."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(levels).save(path)


def build_validation(
    config: TrainConfig, sampler: CropSampler | None, degrade: Degrade, trainer: Trainer
) -> Validation | None:
    """The run's validation: a folder of pairs, or pairs made from held-out faces; None where it is off."""
    if not config.validate_every or not config.validation_count or not trainer.group.first:
        return None
    if config.validate:
        pairs = read_pairs(Path(config.validate))
    elif sampler is not None:
        pairs = made_pairs(config, sampler, degrade)
    else:
        return None
    return Validation(pairs, trainer.device, detect=config.detect, perceptual=trainer.loss.perceptual)


class Signals:
    """Notes SIGINT and SIGTERM inside its `with`; a second one, seconds later, ends the process at once."""

    PATIENCE_S = 3.0  # torchrun passes on what the terminal has sent to every process already

    def __init__(self) -> None:
        self._first = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *problem: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first and now - self._first > self.PATIENCE_S:
            os._exit(128 + number)
        self._first = self._first or now

    def __call__(self) -> bool:
        """Whether one came."""
        return bool(self._first)
