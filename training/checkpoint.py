"""Checkpoints: written whole or not at all, the last few kept, read without unpickling code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from deblur.errors import DataError


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Writes `step-N.pt` and removes all but the last `keep`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:08d}.pt"
    temporary = folder / f".{path.name}.partial"
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    for old in checkpoints(folder)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints in a folder, oldest first."""
    return sorted(folder.glob("step-*.pt"))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a checkpoint; only tensors and plain values are accepted.

    Raises:
        DataError: the file is absent, damaged, or holds anything else.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises nearly anything on a damaged file
        raise DataError(f"checkpoint {path}: expected one written by a training run; {error}") from error
    if not isinstance(state, dict) or "step" not in state:
        raise DataError(f"checkpoint {path}: expected one written by a training run; it has no step")
    return state
