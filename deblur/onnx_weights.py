"""An ONNX file in the place of weights: another program then runs the generator, PyTorch the rest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from deblur.onnx_backend import OnnxGenerator
from deblur.openvino_backend import OpenVinoGenerator
from deblur.weights import Weights


class OnnxModule(nn.Module):
    """Looks like a generator; what it is given does the work, on the CPU."""

    def __init__(self, generator: Callable[[NDArray[np.float32]], NDArray[np.float32]]):
        super().__init__()
        self._generator = generator

    def forward(self, blurred: Tensor) -> Tensor:
        """(B, 3, H, W) float in [0, 1] to the same shape, unclipped."""
        restored = self._generator(blurred.float().cpu().contiguous().numpy())
        return torch.from_numpy(restored).to(blurred.device)


def load_onnx(path: Path, backend: str = "onnx", precision: str = "fp32") -> Weights:
    """Loads what `deblur export --onnx` wrote.

    Args:
        path: the file.
        backend: `onnx` for ONNX Runtime or `openvino`; PyTorch's number of threads is theirs.
        precision: `fp32`, or with `openvino` also `bf16`.

    Raises:
        OptionError: onnxruntime or openvino is not installed.
        WeightsError: the file is absent, damaged or of another kind.
    """
    threads = torch.get_num_threads()
    generator: OnnxGenerator | OpenVinoGenerator
    if backend == "openvino":
        generator = OpenVinoGenerator(path, threads, precision)
    else:
        generator = OnnxGenerator(path, threads)
    return Weights(
        generator=OnnxModule(generator).eval(),
        name=path.stem,
        path=path,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        metadata=generator.metadata,
    )
