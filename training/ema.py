"""The exponential moving average of the weights: what is validated and exported."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class Ema:
    """Averaged copy of a module's parameters and buffers.

    The decay warms up as min(decay, (1 + n) / (10 + n)) over n updates, so that the first, far-off weights are soon
    forgotten.

    Attributes:
        module: the averaged copy, in eval mode, without gradients.
        updates: number of updates so far.
    """

    def __init__(self, module: nn.Module, decay: float):
        self.module = copy.deepcopy(module).eval().requires_grad_(False)
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Moves the average towards a module's weights."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        averaged: list[Tensor] = list(self.module.parameters())
        current: list[Tensor] = list(module.parameters())
        torch._foreach_lerp_(averaged, current, 1 - decay)
        for kept, new in zip(self.module.buffers(), module.buffers(), strict=True):
            kept.copy_(new)
