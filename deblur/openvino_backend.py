"""An exported generator in OpenVINO, on the CPU: with single faces faster than PyTorch where there are matrix units."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deblur.errors import OptionError, WeightsError
from deblur.onnx_backend import FORMAT, long_enough, parsed_metadata

INSTALL = "install the extra face-deblur[openvino], or `pip install openvino`"
SIZES_KEPT = 16  # each holds the weights in an order of its own, about 30 MB


class OpenVinoGenerator:
    """A generator in an ONNX file, compiled by OpenVINO for each size it meets: a second each, then it is kept.

    Batches are filled up to a power of two to share what is compiled. Safe to share between threads, one of which works
    at a time.

    Args:
        path: written by `deblur export --onnx`.
        threads: of OpenVINO; 0 takes one a core.
        precision: `bf16`, or `fp32`, which is also what answers where bfloat16 gives values that are not finite.

    Raises:
        OptionError: openvino is not installed.
        WeightsError: the file is absent, damaged or of another kind.
    """

    def __init__(self, path: Path, threads: int = 0, precision: str = "fp32"):
        try:
            import openvino
        except ImportError as error:
            raise OptionError(f"{path}: OpenVINO is not installed; {INSTALL}") from error
        if not path.is_file():
            raise WeightsError(f"weights {path}: there is no such file; write it by `deblur export --onnx {path}`")
        self._precision = {"fp32": "f32", "bf16": "bf16"}[precision]
        self._options = {"PERFORMANCE_HINT": "LATENCY", **({"INFERENCE_NUM_THREADS": threads} if threads else {})}
        self._core = openvino.Core()
        try:
            self._model = self._core.read_model(path)
            texts = self._model.get_rt_info(["framework"]).astype(dict)
            self.metadata = parsed_metadata({key: value.astype(str) for key, value in texts.items()})
            self.least_side_px = int(self.metadata["least_side_px"])
        except Exception as error:  # openvino's errors have no common base of their own
            raise WeightsError(f"weights {path}: expected ONNX of format {FORMAT}; {error}") from error
        self._compiled: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, blurred: NDArray[np.float32]) -> NDArray[np.float32]:
        """(B, 3, H, W) float32 in [0, 1], any H, W >= 1, to the same shape, unclipped."""
        count, _, height, width = blurred.shape
        given = long_enough(blurred, self.least_side_px)
        more = (1 << (count - 1).bit_length()) - count
        filled = np.ascontiguousarray(np.pad(given, ((0, more), (0, 0), (0, 0), (0, 0))) if more else given)
        with self._lock:
            restored = self._run(filled, self._precision)
            if self._precision != "f32" and not np.isfinite(restored).all():
                restored = self._run(filled, "f32")
        return restored[:count, :, :height, :width]

    def _run(self, given: NDArray[np.float32], precision: str) -> NDArray[np.float32]:
        key = (given.shape, precision)
        compiled = self._compiled.get(key)
        if compiled is None:
            while len(self._compiled) >= SIZES_KEPT:
                self._compiled.popitem(last=False)
            model = self._model.clone()
            model.reshape(list(given.shape))  # it is half as fast again at a size that it knows
            options = {**self._options, "INFERENCE_PRECISION_HINT": precision}
            compiled = self._compiled[key] = self._core.compile_model(model, "CPU", options)
        self._compiled.move_to_end(key)
        return np.asarray(compiled(given, share_outputs=False)[0])  # not of memory that the next call writes into
