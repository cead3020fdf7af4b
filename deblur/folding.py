"""The gated generator with its scales multiplied into its weights: the same function, for inference alone."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from deblur.generator import GatedBlock, GatedUNet


class FoldedBlock(nn.Module):
    """A gated block for inference: its scale multiplied into the convolution once, and the sum done in place."""

    def __init__(self, block: GatedBlock):
        super().__init__()
        self.norm, self.expand, self.project = block.norm, block.expand, block.project
        assert self.project.bias is not None
        with torch.no_grad():
            self.project.weight.mul_(block.scale[..., None])
            self.project.bias.mul_(block.scale.flatten())

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        a, b = self.expand(self.norm(x)).chunk(2, dim=1)
        return self.project(a * b).add_(x)


def folded(generator: GatedUNet, dtype: torch.dtype) -> GatedUNet:
    """A copy for inference alone, with all weights in `dtype`; the given module stays as it is."""
    made = copy.deepcopy(generator).requires_grad_(False)
    for stage in (*made.encoders, *made.decoders):
        assert isinstance(stage, nn.Sequential)
        for index, block in enumerate(stage):
            assert isinstance(block, GatedBlock)
            stage[index] = FoldedBlock(block)
    return made.to(dtype=dtype).to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
