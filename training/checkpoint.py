"""Checkpoints: written whole or not at all, the last few kept, read without unpickling code."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deblur.errors import DataError, OutputError
from deblur.generator import GeneratorConfig, build
from deblur.weights import load_weights


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Writes `step-N.pt` and removes all but the last `keep`.

    Raises:
        OutputError: it cannot be written; the older ones are left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:08d}.pt"
    temporary = folder / f".{path.name}.partial"
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        temporary.unlink(missing_ok=True)
        raise OutputError(f"checkpoint {path}: cannot be written: {error}") from error
    for old in checkpoints(folder)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints in a folder, oldest first."""
    return sorted(folder.glob("step-*.pt"))


def newest_checkpoint(run: Path) -> dict[str, Any] | None:
    """The state of a run's newest checkpoint that can be read; None where the run has none yet.

    Raises:
        DataError: there are checkpoints, and none can be read.
    """
    problem: DataError | None = None
    for path in reversed(checkpoints(run / "checkpoints")):
        try:
            return load_checkpoint(path)
        except DataError as error:
            problem = problem or error
    if problem:
        raise problem
    return None


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a checkpoint; only tensors and plain values are accepted.

    Raises:
        DataError: the file is absent, damaged, or holds anything else.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises nearly anything on a damaged file, with advice not to be followed
        reason = error if isinstance(error, OSError) else type(error).__name__
        raise DataError(f"checkpoint {path}: expected one written by a training run; {reason}") from error
    if not isinstance(state, dict) or "step" not in state:
        raise DataError(f"checkpoint {path}: expected one written by a training run; it has no step")
    return state


def load_generator(source: str) -> nn.Module:
    """The averaged generator of a run, a checkpoint or a weights file, in float32 on the CPU.

    Args:
        source: a run's folder (its newest checkpoint), a checkpoint, a weights file, or a bundled name.

    Raises:
        DataError: the run or checkpoint is absent, damaged, or does not say what generator it is of.
        WeightsError: the weights file is not usable.
        OptionError: the name is not known.
    """
    path = Path(source)
    if not path.is_dir() and path.suffix != ".pt":
        return load_weights(source).generator
    return averaged(*read_state(path))


def read_state(path: Path) -> tuple[dict[str, Any], Path]:
    """The state of a run's newest checkpoint, or of a checkpoint, and the run's folder.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    if not path.is_dir():
        return load_checkpoint(path), path.resolve().parent.parent
    state = newest_checkpoint(path)
    if state is None:
        raise DataError(f"run {path}: expected checkpoints/step-*.pt in it, found none")
    return state, path


def averaged(state: dict[str, Any], run: Path) -> nn.Module:
    """The averaged generator of a checkpoint's state.

    Raises:
        DataError: neither the checkpoint nor the run's config.json says what generator it is of, or it does not fit.
    """
    try:
        described = state.get("generator_config")
        if described is None:  # checkpoints of earlier versions leave that to the run's config
            described = json.loads((run / "config.json").read_text(encoding="utf-8"))["generator"]
        generator = build(GeneratorConfig.from_dict(described))
        generator.load_state_dict(state["ema"])
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(f"run {run}: expected a checkpoint and its generator's config; {error}") from error
    return generator.eval().requires_grad_(False)
