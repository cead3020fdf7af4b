"""One command on one device, from one packed file to weights: `python -m training.single PACK.tar OUT --minutes N`.

For a machine that is lent for minutes: no network, and no package beyond torch, torchvision, NumPy, OpenCV, Pillow and
safetensors. OUT receives `weights.safetensors`, `best.safetensors`, `log.jsonl`, `config.json` and `sheet.png`; the
checkpoints, which are large, stay in the work folder.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch

from deblur.devices import resolve_device
from deblur.errors import DataError, DeblurError, OutputError
from deblur.recognition import PACKAGE
from training import train as command
from training.pack import INIT, PERCEPTUAL, read_along
from training.recipes import RECIPES, recipe
from training.start import train
from training.watch import LOG_NAME, PICTURES

MAX_WEIGHTS_MIB = 16
GPU_BATCH_SCALE = 4.0  # recipes are sized for a CPU
KEPT = ("weights.safetensors", "best.safetensors", LOG_NAME, "config.json")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="training.single", description=__doc__, epilog="Other options go to training.train."
    )
    parser.add_argument("pack", type=Path, metavar="PACK.tar", help="from training.pack")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--recipe", choices=sorted(RECIPES), help="default: fast, with weights to start from finetune")
    parser.add_argument("--init", metavar="WEIGHTS", help="default: those packed along, if any")
    parser.add_argument("--perceptual-weights", metavar="FILE", help="default: those packed along, if any")
    parser.add_argument("--identity-weights", metavar="FILE", help="default: those of face_recognition_models, if any")
    parser.add_argument("--batch-scale", type=float, help=f"default: {GPU_BATCH_SCALE:g} on a GPU, 1 on a CPU")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work", type=Path, help="work folder, kept; by default a temporary one")
    options, more = parser.parse_known_args(arguments)
    try:
        return single(options, more)
    except DeblurError as error:
        sys.stderr.write(f"single: {error}\n")
        return 3


def single(options: argparse.Namespace, more: list[str]) -> int:
    """Trains and puts the results into OUT.

    Args:
        options: those of this command.
        more: those that go to training.train.

    Raises:
        DeblurError: the pack is not usable, or training came to nothing.
    """
    if not options.pack.is_file():
        raise DataError(f"{options.pack}: expected a file that training.pack wrote; it is not there")
    work = options.work or Path(tempfile.mkdtemp(prefix="training-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        train(command.parser().parse_args([*train_arguments(options, work), *more]))
    finally:
        if (work / "run" / KEPT[0]).is_file():  # what a run that broke off had reached is worth keeping
            collect(work / "run", options.out)
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)
    return 0


def train_arguments(options: argparse.Namespace, work: Path) -> list[str]:
    """The command line of the training proper."""
    device = resolve_device(options.device)
    scale = options.batch_scale or (GPU_BATCH_SCALE if device.type == "cuda" else 1.0)
    init = options.init or _unpacked(options.pack, INIT, work)
    chosen = options.recipe or ("finetune" if init else "fast")
    arguments = ["--data", str(options.pack), "--out", str(work / "run"), "--resume"]
    arguments += ["--recipe", chosen, "--minutes", str(options.minutes), "--device", str(device)]
    arguments += ["--batch-scale", str(scale), "--no-tensorboard"]
    arguments += ["--init", str(init)] if init else []
    return [*arguments, *_perceptual(options, chosen, work), *_identity(options, chosen)]


def _perceptual(options: argparse.Namespace, chosen: str, work: Path) -> list[str]:
    loss = recipe(chosen).loss
    if not loss.perceptual_weight:
        return []
    weights = options.perceptual_weights or _unpacked(options.pack, PERCEPTUAL, work)
    if weights:
        return ["--perceptual-weights", str(weights)]
    cache = Path(torch.hub.get_dir()) / "checkpoints"
    if any(cache.glob(f"{loss.perceptual_net}-*.pth")):
        return []
    # Such a machine has no network to fetch them over, and its minutes should not be lost.
    sys.stderr.write(
        f"single: WITHOUT the perceptual loss: no {loss.perceptual_net} weights in {options.pack.name}, in {cache}\n"
        "or by --perceptual-weights; `python -m training.pack --perceptual-weights FILE ...` packs them along\n"
    )
    return ["--perceptual", "0"]


def _identity(options: argparse.Namespace, chosen: str) -> list[str]:
    if not recipe(chosen).loss.identity_weight:
        return []
    given = ["--identity-weights", options.identity_weights] if options.identity_weights else []
    needed = {"facenet-pytorch": "facenet_pytorch"} | ({} if given else {PACKAGE: PACKAGE})
    absent = [name for name, module in needed.items() if find_spec(module) is None]
    if not absent:
        return given
    sys.stderr.write(f"single: WITHOUT the identity loss: not installed: {', '.join(absent)}\n")
    return ["--identity", "0"]


def _unpacked(pack: Path, name: str, work: Path) -> Path | None:
    content = read_along(pack, name)
    if content is None:
        return None
    path = work / name
    path.write_bytes(content)
    return path


def collect(run: Path, out: Path) -> None:
    """Copies what a run is for.

    Raises:
        OutputError: OUT cannot be written, or the weights are larger than can be bundled.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            if (run / name).is_file():
                shutil.copy2(run / name, out / name)
        sheets = sorted((run / PICTURES).glob("*.png"))
        if sheets:
            shutil.copy2(sheets[-1], out / "sheet.png")
    except OSError as error:
        raise OutputError(f"{out}: cannot be written: {error}") from error
    size = (out / "weights.safetensors").stat().st_size / 2**20
    if size > MAX_WEIGHTS_MIB:
        raise OutputError(f"{out}/weights.safetensors: {size:.1f} MiB, expected at most {MAX_WEIGHTS_MIB} MiB")
    sys.stdout.write(f"{out}: weights of {size:.2f} MiB, log and sheet\n")


if __name__ == "__main__":
    sys.exit(main())
