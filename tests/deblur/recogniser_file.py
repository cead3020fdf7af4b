"""Writes a face recogniser's weights as dlib does."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from deblur.recognition import FaceRecogniser


def write_recogniser(path: Path, seed: int = 0) -> dict[str, Tensor]:
    """Writes random weights, with what dlib has between its tensors, and returns them by module and part."""
    generator = torch.Generator().manual_seed(seed)
    network, written, parts = FaceRecogniser(), {}, [b"\x01\x06serialization of something\x00"]
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):
            deviation = (2 / module.weight[0].numel()) ** 0.5
            written[f"{name}.kernel"] = deviation * torch.randn(module.weight.shape, generator=generator)
            written[f"{name}.bias"] = 0.1 * torch.randn(module.out_channels, generator=generator)
            written[f"{name}.gain"] = 0.5 + torch.rand(module.out_channels, generator=generator)
            written[f"{name}.shift"] = 0.1 * torch.randn(module.out_channels, generator=generator)
            both = [torch.cat([written[f"{name}.{part}"].flatten() for part in two]) for two in
                    (("kernel", "bias"), ("gain", "shift"))]  # fmt: skip
            parts += [_tensor(both[0], len(both[0]), 1), b"\x01\x05con_4", _tensor(both[1], len(both[1]), 1), b"\x00"]
    shape = network.head.in_features, network.head.out_features
    written["head"] = torch.randn(shape, generator=generator) / shape[0] ** 0.5
    path.write_bytes(b"".join([*parts, _tensor(written["head"], *shape), b"\x02end"]))
    return written


def _tensor(values: Tensor, samples: int, channels: int) -> bytes:
    sizes = b"".join(
        bytes([(size.bit_length() + 7) // 8]) + size.to_bytes((size.bit_length() + 7) // 8, "little")
        for size in (2, samples, channels, 1, 1)
    )
    return sizes + np.ascontiguousarray(values.numpy(), "<f4").tobytes()
