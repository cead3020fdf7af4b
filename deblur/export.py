"""The command `deblur export`: the generator as an ONNX file."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deblur.errors import OptionError, OutputError

if TYPE_CHECKING:
    from torch import nn

    from deblur.weights import Weights

OPSET = 20
_EPILOG = """
The file takes `blurred`, (batch, 3, height, width) float32 RGB in [0, 1], and gives `restored` of the same shape,
not clipped. Batch, height and width are free; sides must be at least `least_side_px` of the file's metadata.
`deblur restore --weights OUT [--backend openvino]` and `python -m deblur.onnx_backend OUT PHOTO -o RESTORED` use it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `deblur export`."""
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--onnx", required=True, type=Path, metavar="OUT", help="the .onnx file to write")
    parser.add_argument("--weights", default="default", metavar="NAME|FILE", help="bundled weights, or a file")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it is there")


def run(args: argparse.Namespace) -> int:
    """Runs `deblur export`; returns the exit code.

    Raises:
        DeblurError: nothing was written.
    """
    from deblur.weights import load_weights

    if args.onnx.suffix != ".onnx":
        raise OptionError(f"--onnx: expected a name that ends in .onnx, got {args.onnx}")
    if args.onnx.exists() and not args.overwrite:
        raise OutputError(f"{args.onnx}: exists already; --overwrite replaces it")
    try:
        args.onnx.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{args.onnx.parent}: cannot be made: {error.strerror}") from error
    weights = load_weights(args.weights)
    export_onnx(weights, args.onnx)
    size = args.onnx.stat().st_size / 2**20
    sys.stdout.write(f"{args.onnx}: {size:.1f} MiB, opset {OPSET}, from {weights.name} {weights.sha256[:12]}\n")
    sys.stdout.write(f"largest difference to PyTorch: {difference(weights, args.onnx)}\n")
    return 0


def export_onnx(weights: Weights, path: Path) -> None:
    """Writes a generator as ONNX, float32, opset 20, with free batch, height and width; whole or not at all.

    Args:
        weights: what to export.
        path: where to; replaced if it is there.

    Raises:
        OptionError: the packages of the extra are not installed, or the weights are ONNX already.
        OutputError: the file cannot be written.
    """
    import torch

    from deblur.folding import folded
    from deblur.generator import GatedUNet, ResnetGenerator

    generator = weights.generator
    if not isinstance(generator, (GatedUNet, ResnetGenerator)):
        raise OptionError(f"export: expected weights of a gated or resnet generator, got {weights.path}")
    inner = folded(generator, torch.float32) if isinstance(generator, GatedUNet) else generator
    least = generator.config.least_side_px
    texts = {
        **weights.metadata,
        "format": _format(),
        "least_side_px": least,
        "weights_sha256": weights.sha256,
        "opset": OPSET,
    }
    model = _to_onnx(_any_size(inner.eval()), least)
    del model.metadata_props[:]
    for key, value in texts.items():
        model.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.write_bytes(model.SerializeToString())
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def difference(weights: Weights, path: Path) -> str:
    """How far the exported file is from PyTorch, in levels of 0 to 255, or why that cannot be told."""
    import torch

    from deblur.onnx_weights import load_onnx

    try:
        exported = load_onnx(path).generator
    except OptionError as error:
        return f"not measured ({error})"
    worst, rng = 0.0, torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for count, height, width in ((1, 128, 128), (2, 131, 257), (1, 7, 40)):
            given = torch.rand(count, 3, height, width, generator=rng)
            worst = max(worst, float((exported(given) - weights.generator(given)).abs().max()))
    return f"{255 * worst:.4f} levels of 255"


def _format() -> str:
    from deblur.onnx_backend import FORMAT

    return FORMAT


def _any_size(generator: Any) -> nn.Module:
    import torch.nn.functional as F
    from torch import Tensor, nn

    class AnySize(nn.Module):
        """Pads without a loop, so that the sides can be symbols; enough for sides of `least_side_px` and more."""

        def __init__(self) -> None:
            super().__init__()
            self.generator = generator

        def forward(self, blurred: Tensor) -> Tensor:
            height, width = blurred.shape[-2:]
            multiple = generator.config.multiple
            padded = F.pad(blurred, (0, -width % multiple, 0, -height % multiple), "reflect")
            return self.generator.on_grid(padded)[..., :height, :width]

    return AnySize().eval()


def _to_onnx(module: nn.Module, least: int) -> Any:
    import torch
    from torch.export import Dim

    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise OptionError("export needs onnx and onnxscript; install the extra face-deblur[onnx]") from error
    # Odd sides that are no multiples, so that nothing of the example is taken for a rule.
    example = torch.rand(2, 3, 4 * least + 3, 5 * least + 7)
    quiet = logging.getLogger("torch.onnx"), logging.getLogger("onnxscript")
    levels = [logger.level for logger in quiet]
    try:
        for logger in quiet:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")  # of the exporter, about itself
            program = torch.onnx.export(
                module,
                (example,),
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=({0: Dim("batch"), 2: Dim.DYNAMIC, 3: Dim.DYNAMIC},),
                input_names=["blurred"],
                output_names=["restored"],
                verbose=False,
            )
    finally:
        for logger, level in zip(quiet, levels, strict=True):
            logger.setLevel(level)
    assert program is not None
    return program.model_proto
