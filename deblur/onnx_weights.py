"""An ONNX file in the place of weights: the restorer's generator then runs in ONNX Runtime, the rest in PyTorch."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn

from deblur.onnx_backend import OnnxGenerator
from deblur.weights import Weights


class OnnxModule(nn.Module):
    """Looks like a generator; ONNX Runtime does the work, on the CPU and in float32."""

    def __init__(self, generator: OnnxGenerator):
        super().__init__()
        self._generator = generator

    def forward(self, blurred: Tensor) -> Tensor:
        """(B, 3, H, W) float in [0, 1] to the same shape, unclipped."""
        restored = self._generator(blurred.float().cpu().contiguous().numpy())
        return torch.from_numpy(restored).to(blurred.device)


def load_onnx(path: Path) -> Weights:
    """Loads what `deblur export --onnx` wrote.

    Raises:
        OptionError: onnxruntime is not installed.
        WeightsError: the file is absent, damaged or of another kind.
    """
    generator = OnnxGenerator(path, threads=torch.get_num_threads())
    return Weights(
        generator=OnnxModule(generator).eval(),
        name=path.stem,
        path=path,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        metadata=generator.metadata,
    )
