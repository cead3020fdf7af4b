"""Layers of MTCNN's networks that give what PyTorch's own give, sooner where channels are few and lie innermost."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Scanner(nn.Module):
    """PNet with its two heads as one convolution, which reads the picture once.

    Args:
        pnet: the network, whose layers it takes.
    """

    def __init__(self, pnet: nn.Module):
        super().__init__()
        names = ("conv1", "prelu1", "pool1", "conv2", "prelu2", "conv3", "prelu3")
        self.body = nn.Sequential(*(pnet.get_submodule(name) for name in names))
        heads = pnet.get_submodule("conv4_2"), pnet.get_submodule("conv4_1")
        self.heads = nn.Conv2d(32, 6, 1)
        with torch.no_grad():
            self.heads.weight.copy_(torch.cat([head.get_parameter("weight") for head in heads]))
            self.heads.bias.copy_(torch.cat([head.get_parameter("bias") for head in heads]))  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) to offsets (B, 4, h, w) and probabilities (B, 2, h, w)."""
        offsets, scores = self.heads(self.body(x)).split((4, 2), dim=1)
        return offsets, scores.softmax(dim=1)


class PReLU(nn.Module):
    """A slope for each channel below zero.

    Where channels lie innermost, PyTorch's own works through ten of them at a time; here a row of pixels is one.
    """

    def __init__(self, slopes: Tensor):
        super().__init__()
        self.weight = nn.Parameter(slopes.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """(B, C) or (B, C, H, W) to the same shape."""
        if x.dim() != 4 or not x.is_contiguous(memory_format=torch.channels_last):
            return F.prelu(x, self.weight)
        pixels = x.permute(0, 2, 3, 1)  # (B, H, W, C), without a gap
        rows = F.prelu(pixels.reshape(-1, x.shape[3] * x.shape[1]), self.weight.repeat(x.shape[3]))
        return rows.view(pixels.shape).permute(0, 3, 1, 2)


class MaxPool(nn.Module):
    """The networks' pooling over 2x2 or 3x3 at every second pixel, incomplete windows included.

    PyTorch's own also writes down where each maximum was, and takes twice as long.
    """

    def __init__(self, side_px: int):
        super().__init__()
        self.side_px = side_px

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, h, w)."""
        for axis in (2, 3):
            first, second, third = (x[(slice(None),) * axis + (slice(start, None, 2),)] for start in range(3))
            count = second.shape[axis]
            largest = torch.maximum(first.narrow(axis, 0, count), second)
            if self.side_px == 3:
                complete = largest.narrow(axis, 0, third.shape[axis])
                torch.maximum(complete, third, out=complete)
            elif count < first.shape[axis]:
                largest = torch.cat([largest, first.narrow(axis, count, 1)], dim=axis)
            x = largest
        return x
