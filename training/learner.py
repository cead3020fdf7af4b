"""One network and its optimizer: backward, average over processes, clip, and a step only if all is finite."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from training.distributed import Group


class Learner:
    """A network that learns.

    Attributes:
        module: the network.
        optimizer: its optimizer.
        steps: steps that were taken (not those that were skipped).

    Args:
        module: the network.
        optimizer: over its parameters.
        group: the processes that share its gradients.
        clip_norm: gradients are scaled down to this norm; 0 leaves them.
        scaled: scale the loss, as float16 needs.
        device: where the network is.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        group: Group,
        *,
        clip_norm: float,
        scaled: bool,
        device: torch.device,
    ):
        self.module, self.optimizer, self.group = module, optimizer, group
        self.steps = 0
        self._clip = clip_norm or math.inf
        # A low start: each halving on the way down costs a skipped step.
        self.scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12, enabled=scaled)

    def clear(self) -> None:
        """Forgets the gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor) -> None:
        """Adds a loss's gradients."""
        self.scaler.scale(loss).backward()

    def step(self, loss: Tensor) -> bool:
        """Moves the weights, unless the loss or a gradient is not finite.

        Args:
            loss: the loss whose gradients were gathered, a scalar.

        Returns:
            Whether the weights moved; the same in every process.
        """
        parameters = list(self.module.parameters())
        loss = self.group.average_gradients(parameters, loss.detach())
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(parameters, self._clip)
        finite = bool(torch.isfinite(norm + loss))
        if finite:
            self.scaler.step(self.optimizer)
            self.steps += 1
        self.scaler.update()
        return finite

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes back, beside the module's and the optimizer's own."""
        return {"steps": self.steps, "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a saved state."""
        self.steps = state["steps"]
        if state["scaler"] and self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
