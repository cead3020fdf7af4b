"""A second face recogniser, to judge what was trained with the first: the FaceRes of the npm package @vladmandic/human.

`npm pack @vladmandic/human` and unpack it: `package/models/faceres.json` and the `.bin` beside it. It is a MobileNet
(Howard et al. 2017) trained on VGGFace2's people (Savchenko 2019), stored for TensorFlow.js; what its average pooling
gives, at unit length, is the embedding.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deblur.errors import WeightsError

SIDE_PX = 224
_STRIDED = (2, 4, 6, 12)  # blocks whose depthwise convolution halves the side
_KINDS = {"float16": "<f2", "float32": "<f4", "int32": "<i4"}


class FaceRes(nn.Module):
    """Upright faces (B, 3, 224, 224) in [0, 1] to embeddings (B, 1024) of unit length.

    Args:
        manifest: the file `faceres.json`.

    Raises:
        WeightsError: the files are absent or of another network.
    """

    def __init__(self, manifest: Path):
        super().__init__()
        try:
            tensors = _read(manifest)
            self.kernels, self.biases, self.strides = _layers(tensors)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise WeightsError(
                f"{manifest}: expected faceres.json of the npm package @vladmandic/human and its .bin beside it; "
                f"{error!r}"
            ) from error
        self.mean = torch.tensor([103.939, 116.779, 123.68]).view(3, 1, 1)  # blue first, as it was trained

    def forward(self, upright: Tensor) -> Tensor:
        """Embeddings."""
        x = upright.flip(1) * 255 - self.mean
        for kernel, bias, stride in zip(self.kernels, self.biases, self.strides, strict=True):
            if kernel.shape[-1] == 3:  # TensorFlow pads even sides at the end alone
                x = F.pad(x, (1, 1, 1, 1) if stride == 1 else (0, 1, 0, 1))
            x = F.relu6(F.conv2d(x, kernel, bias, stride, groups=x.shape[1] // kernel.shape[1]))
        return F.normalize(x.mean(dim=(2, 3)), dim=1)


def _read(manifest: Path) -> dict[str, Tensor]:
    content, position = manifest.with_suffix(".bin").read_bytes(), 0
    tensors = {}
    for entry in json.loads(manifest.read_text(encoding="utf-8"))["weightsManifest"][0]["weights"]:
        kind = _KINDS[entry.get("quantization", entry)["dtype"]]
        values = np.frombuffer(content, kind, math.prod(entry["shape"]), position)
        position += values.nbytes
        tensors[entry["name"]] = torch.from_numpy(values.astype(np.float32).reshape(entry["shape"]))
    return tensors


def _layers(tensors: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor], list[int]]:
    """Kernels as PyTorch has them, biases and strides: the stem, then 13 depthwise and pointwise pairs."""
    kernels = [tensors["conv1/convolution/merged_input"].permute(3, 2, 0, 1)]
    biases, strides = [tensors["conv1_bn/batchnorm_1/sub"]], [2]
    for block in range(1, 14):
        depthwise = tensors[f"conv_dw_{block}/depthwise_kernel"].permute(2, 3, 0, 1)
        gain = tensors[f"conv_dw_{block}_bn/batchnorm_1/mul"].view(-1, 1, 1, 1)
        kernels += [depthwise * gain, tensors[f"conv_pw_{block}/convolution/merged_input"].permute(3, 2, 0, 1)]
        biases += [tensors[f"conv_{part}_{block}_bn/batchnorm_1/sub"] for part in ("dw", "pw")]
        strides += [2 if block in _STRIDED else 1, 1]
    return [kernel.contiguous() for kernel in kernels], [bias.flatten() for bias in biases], strides
