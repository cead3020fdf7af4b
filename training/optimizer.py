"""Optimizers and the learning rate over a run."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from training.config import OptimizerConfig


def build_optimizer(module: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The generator's optimizer; norms, biases and scales are not decayed."""
    if config.kind == "muon":
        return Muon(module.parameters(), config)
    decayed = [p for p in module.parameters() if p.ndim > 1 and min(p.shape[:2]) > 1]
    plain = [p for p in module.parameters() if not (p.ndim > 1 and min(p.shape[:2]) > 1)]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    kind = torch.optim.AdamW if config.kind == "adamw" else torch.optim.Adam
    return kind(groups, lr=config.learning_rate, betas=config.betas, fused=True)


def rate_at(config: OptimizerConfig, step: int, progress: float) -> float:
    """Learning rate over its peak: linear warm-up by steps, then the schedule over the run's progress in 0..1."""
    warm = min(1.0, (step + 1) / max(1, config.warmup_steps))
    progress = min(1.0, progress)
    fall = 0.5 * (1 + math.cos(math.pi * progress)) if config.schedule == "cosine" else min(1.0, 2 * (1 - progress))
    return warm * (config.final_rate + (1 - config.final_rate) * fall)


def set_rate(optimizer: torch.optim.Optimizer, peak: float, factor: float) -> None:
    """Sets every group's learning rate to its own peak (or the one given) times a factor."""
    for group in optimizer.param_groups:
        group["lr"] = group.get("peak", peak) * factor


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal for each convolution (Jordan et al. 2024); AdamW for everything else.

    A convolution (O, I, kh, kw) is taken as an O x (I kh kw) matrix. Each group's `lr` is set from outside; Muon's is
    `muon_rate` times the schedule.
    """

    STEPS = 5
    COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # quintic Newton-Schulz iteration, from the same source

    def __init__(self, parameters: Iterable[nn.Parameter], config: OptimizerConfig):
        every = list(parameters)
        matrices = [p for p in every if p.ndim == 4 and min(p.shape[:2]) > 12]
        chosen = {id(p) for p in matrices}
        rest = [p for p in every if id(p) not in chosen]
        self.config = config
        groups = [
            {"params": matrices, "muon": True, "lr": config.muon_rate, "peak": config.muon_rate},
            {"params": rest, "muon": False, "lr": config.learning_rate, "peak": config.learning_rate},
        ]
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Moves every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    (self._orthogonal if group["muon"] else self._adamw)(parameter, group["lr"])

    def _orthogonal(self, parameter: Tensor, rate: float) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum = state["momentum"].lerp_(gradient, 0.05)
        update = orthogonalise(gradient.lerp(momentum, 0.95).flatten(1), self.COEFFICIENTS, self.STEPS)
        # The factor keeps the update's size per entry alike for wide and tall matrices.
        size = max(1.0, update.shape[0] / update.shape[1]) ** 0.5
        parameter.mul_(1 - rate * self.config.weight_decay)
        parameter.add_(update.view_as(parameter).to(parameter.dtype), alpha=-rate * size)

    def _adamw(self, parameter: Tensor, rate: float) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if "first" not in state:
            state["first"], state["second"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            state["count"] = torch.zeros(())
        state["count"] += 1
        count, (b1, b2) = float(state["count"]), self.config.betas
        state["first"].lerp_(gradient, 1 - b1)
        state["second"].lerp_(gradient.square(), 1 - b2)
        size = (state["second"] / (1 - b2**count)).sqrt_().add_(1e-8)
        parameter.addcdiv_(state["first"], size, value=-rate / (1 - b1**count))


def orthogonalise(matrix: Tensor, coefficients: tuple[float, float, float], steps: int) -> Tensor:
    """Nearly the closest semi-orthogonal matrix: all singular values are pulled towards 1."""
    a, b, c = coefficients
    x = matrix.bfloat16()
    tall = x.shape[0] > x.shape[1]
    x = (x.T if tall else x) / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
