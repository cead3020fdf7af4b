"""An exported generator without PyTorch: needs onnxruntime, NumPy, Pillow and OpenCV.

    python -m deblur.onnx_backend face.onnx PHOTO -o OUT

restores a whole picture, tile by tile. It does not look for faces, so it neither leaves the rest of the picture alone
nor undoes what did harm; for that, `deblur restore --weights face.onnx` uses the same file beside PyTorch's detector.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deblur.errors import DeblurError, OptionError, OutputError, WeightsError
from deblur.images import Picture, decode, encode, output_format
from deblur.images.encoding import family_of
from deblur.tiling import cuts, extended, with_halo

FORMAT = "deblur-generator-onnx-1"
INSTALL = "install the extra face-deblur[onnx], or `pip install onnxruntime`"


class OnnxGenerator:
    """A generator in an ONNX file, run by ONNX Runtime on the CPU in float32.

    Args:
        path: written by `deblur export --onnx`.
        threads: of ONNX Runtime; 0 takes one a core.

    Raises:
        OptionError: onnxruntime is not installed.
        WeightsError: the file is absent, damaged or of another kind.
    """

    def __init__(self, path: Path, threads: int = 0):
        try:
            import onnxruntime
        except ImportError as error:
            raise OptionError(f"{path}: ONNX Runtime is not installed; {INSTALL}") from error
        if not path.is_file():
            raise WeightsError(f"weights {path}: there is no such file; write it by `deblur export --onnx {path}`")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            self.metadata = parsed_metadata(self._session.get_modelmeta().custom_metadata_map)
            self.least_side_px = int(self.metadata["least_side_px"])
        except Exception as error:  # onnxruntime's errors have no common base that it exports
            raise WeightsError(f"weights {path}: expected ONNX of format {FORMAT}; {error}") from error

    def __call__(self, blurred: NDArray[np.float32]) -> NDArray[np.float32]:
        """(B, 3, H, W) float32 in [0, 1], any H, W >= 1, to the same shape, unclipped."""
        height, width = blurred.shape[2:]
        given = np.ascontiguousarray(long_enough(blurred, self.least_side_px))
        (restored,) = self._session.run(None, {"blurred": given})
        return np.asarray(restored[:, :, :height, :width])


def long_enough(blurred: NDArray[np.float32], least_side_px: int) -> NDArray[np.float32]:
    """(B, 3, H, W) with sides that are too short for the file to reflect made longer, as PyTorch's generator does."""
    if min(blurred.shape[2:]) >= least_side_px:
        return blurred
    more = [(0, -side % least_side_px) for side in blurred.shape[2:]]
    return np.pad(blurred, ((0, 0), (0, 0), *more), "reflect")


def restore_whole(picture: Picture, generator: OnnxGenerator) -> Picture:
    """The whole picture restored, tile by tile."""
    levels, peak = np.empty_like(picture.levels), float(picture.max_level)
    for y0, y1 in cuts(picture.height):
        top, bottom = with_halo(y0, y1, picture.height)
        for x0, x1 in cuts(picture.width):
            left, right = with_halo(x0, x1, picture.width)
            more = [(0, extended(end - start) - (end - start)) for start, end in ((top, bottom), (left, right))]
            tile = np.pad(picture.levels[top:bottom, left:right], (*more, (0, 0)), "reflect")
            given = tile.transpose(2, 0, 1)[None].astype(np.float32) / np.float32(peak)
            core = generator(given)[0, :, y0 - top : y1 - top, x0 - left : x1 - left].transpose(1, 2, 0)
            levels[y0:y1, x0:x1] = np.rint(core * peak).clip(0, peak)
    return picture.with_levels(levels)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m deblur.onnx_backend", description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, help="written by `deblur export --onnx`")
    parser.add_argument("photo", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the file to write")
    parser.add_argument("--threads", type=int, default=0, help="0 (default): one a core")
    args = parser.parse_args(arguments)
    try:
        picture = decode(args.photo)
        family = output_format(picture, family_of(args.output.suffix) if args.output.suffix else None)
        if args.output.exists():
            raise OutputError(f"{args.output}: exists already")
        content = encode(restore_whole(picture, OnnxGenerator(args.model, args.threads)), family)
        args.output.write_bytes(content)
    except DeblurError as error:
        sys.stderr.write(f"deblur: error: {error}\n")
        return 2 if isinstance(error, OptionError) else 3
    return 0


def parsed_metadata(texts: dict[str, str]) -> dict[str, Any]:
    """What `deblur export` wrote beside the generator; ValueError where the file is of another kind."""
    if texts.get("format") != FORMAT:
        raise ValueError(f"its format is {texts.get('format')!r}; write it by `deblur export --onnx`")
    return {key: json.loads(text) if text[:1] in "[{" or text.isdigit() else text for key, text in texts.items()}


if __name__ == "__main__":
    sys.exit(main())
