"""Trains a generator: `python training/train.py --data FACES --out RUN`."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

# Run as a file, only this folder is on the path; the packages are beside it.
if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from deblur.errors import DataError, DeblurError
from deblur.weights import load_weights, save_weights
from training.config import RECIPES, TrainConfig, load_config, recipe, save_config
from training.data import CropSampler, FaceStore, list_faces
from training.trainer import Trainer, append_log


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    options = parse(arguments)
    try:
        return train(options)
    except DeblurError as error:
        print(f"train: {error}", file=sys.stderr)  # noqa: T201
        return 3


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Command line to options."""
    parser = argparse.ArgumentParser(prog="train", description=__doc__)
    parser.add_argument(
        "--data",
        nargs="+",
        required=True,
        metavar="FACES[=WEIGHT]",
        help="CelebA root, folder, zip or tar of sharp faces; a weight draws its pictures more often",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run's folder")
    parser.add_argument("--recipe", choices=sorted(RECIPES), default="fast")
    parser.add_argument("--config", type=Path, help="start from a run's config.json instead of a recipe")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in RUN")
    parser.add_argument("--init", metavar="WEIGHTS", help="warm start from a bundled name or a weights file")
    parser.add_argument("--perceptual-weights", type=Path, metavar="FILE")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int)
    return parser.parse_args(arguments)


def configure(options: argparse.Namespace) -> TrainConfig:
    """The run's config from a recipe or a file, with the flags on top."""
    config = load_config(options.config) if options.config else recipe(options.recipe)
    changes = {k: getattr(options, k) for k in ("minutes", "steps", "seed") if getattr(options, k) is not None}
    if options.minutes is not None and options.steps is None:
        changes["steps"] = 0
    return dataclasses.replace(config, **changes)


def train(options: argparse.Namespace) -> int:
    """Sets the run up and trains to its end, or to a signal."""
    config = configure(options)
    options.out.mkdir(parents=True, exist_ok=True)
    save_config(config, options.out / "config.json")
    stores, weights = [], []
    for item in options.data:
        path, _, weight = item.partition("=")
        stores.append(FaceStore(list_faces(Path(path)), config.cache_mib // len(options.data)))
        weights.append(float(weight or 1))
    device = (
        torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if options.device == "auto"
        else torch.device(options.device)
    )
    trainer = Trainer(
        config,
        CropSampler(stores, weights, seed=config.seed),
        options.out,
        device,
        options.perceptual_weights,
    )
    if options.init:
        trainer.start_from(load_weights(options.init).generator)
    if options.resume and not trainer.resume():
        raise DataError(f"--resume: expected a checkpoint in {options.out / 'checkpoints'}, found none")
    stop = _stop_on_signals()
    saved, sums, count, shown = time.monotonic(), {}, 0, time.monotonic()
    for losses in trainer.run():
        count += 1
        for k, v in losses.items():
            sums[k] = sums.get(k, 0.0) + v
        if trainer.step % config.log_every == 0:
            entry = {k: round(v / count, 5) for k, v in sums.items()}
            entry |= {
                "step": trainer.step,
                "seen": trainer.seen,
                "elapsed": round(trainer.elapsed, 1),
                "progress": round(trainer.progress, 4),
                "wall": round(time.monotonic() - shown, 2),
            }
            append_log(options.out / "log.jsonl", entry)
            sums, count, shown = {}, 0, time.monotonic()
        if time.monotonic() - saved > config.checkpoint_minutes * 60 or stop:
            trainer.save()
            export(trainer, options.out / "weights.safetensors", options)
            saved = time.monotonic()
        if stop:
            print(f"stopped at step {trainer.step}; go on with --resume", file=sys.stderr)  # noqa: T201
            return 0
    trainer.save()
    export(trainer, options.out / "weights.safetensors", options)
    return 0


def export(trainer: Trainer, path: Path, options: argparse.Namespace) -> None:
    """Writes the averaged weights with what is known of the run."""
    save_weights(
        trainer.ema.module,
        path,
        {
            "recipe": options.recipe,
            "steps": trainer.step,
            "pictures_seen": trainer.seen,
            "minutes": round(trainer.elapsed / 60, 1),
            "training_data": [Path(d.partition("=")[0]).name for d in options.data],
        },
    )


def _stop_on_signals() -> list[int]:
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            os._exit(130)

    signal.signal(signal.SIGINT, note)
    signal.signal(signal.SIGTERM, note)
    return received


if __name__ == "__main__":
    sys.exit(main())
