"""The step: blurred pairs -> discriminator steps -> generator step -> average; and the state of a run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deblur.devices import resolve_precision
from deblur.errors import DataError
from deblur.generator import build
from training.config import TrainConfig
from training.data import Pair
from training.discriminator import build_discriminator
from training.distributed import Group
from training.ema import Ema
from training.learner import Learner
from training.losses import GeneratorLoss, adversarial_loss, discriminator_loss, gradient_penalty
from training.optimizer import build_optimizer, rate_at, set_rate


class Trainer:
    """A run's networks, optimizers and counts.

    Attributes:
        step: generator steps so far, the skipped ones included.
        elapsed: seconds so far.
        seen: samples so far, over all processes.
        skipped: steps in which a network did not move, because a number was not finite.
        best: best validation measure so far, or None.

    Args:
        config: the run.
        device: where to train.
        group: the processes of the run.
    """

    def __init__(self, config: TrainConfig, device: torch.device, group: Group | None = None):
        self.config, self.device, self.group = config, device, group or Group()
        self.dtype = resolve_precision(config.precision, device)
        torch.manual_seed(config.seed)
        generator = build(config.generator).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.generator = self._learner(generator, build_optimizer(generator, config.optimizer))
        self.ema = Ema(generator, config.ema_decay)
        vgg, recogniser = (
            Path(name) if name else None for name in (config.perceptual_weights, config.identity_weights)
        )
        self.loss = GeneratorLoss(config.loss, vgg, recogniser, self.dtype).to(device)
        self.discriminator: Learner | None = None
        if config.adversarial:
            self.discriminator = self._build_discriminator()
        # Not dynamic: a run has a handful of crop sizes, and each is faster compiled on its own.
        self.forward = torch.compile(generator, dynamic=False) if config.compile else generator
        self.step, self.elapsed, self.seen, self.skipped = 0, 0.0, 0, 0
        self.best: float | None = None
        self._bad_in_row = 0

    def _build_discriminator(self) -> Learner:
        config = self.config
        module = build_discriminator(config.discriminator).to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        rate, betas = config.optimizer.discriminator_rate, config.optimizer.discriminator_betas
        return self._learner(module, torch.optim.Adam(module.parameters(), lr=rate, betas=betas, fused=True))

    def _learner(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Learner:
        clip, scaled = self.config.optimizer.clip_norm, self.dtype == torch.float16
        return Learner(module, optimizer, self.group, clip_norm=clip, scaled=scaled, device=self.device)

    def progress_at(self, step: int) -> float:
        """How far the run is before a step, in 0..1: by steps, by minutes, or by whichever ends first."""
        config = self.config
        by_steps = step / config.steps if config.steps else 0.0
        by_minutes = self.elapsed / 60 / config.minutes if config.minutes else 0.0
        return min(1.0, max(by_steps, by_minutes))

    @property
    def progress(self) -> float:
        """How far the run is now, in 0..1."""
        return self.progress_at(self.step)

    def train_step(self, pairs: list[Pair]) -> dict[str, Tensor]:
        """One generator step on as many pairs of batches as are accumulated.

        Returns:
            The losses as scalars on the device, unweighted by the number of batches; `rate` and `skipped` among them.

        Raises:
            DataError: too many steps in a row were not finite.
        """
        config, progress = self.config, self.progress
        rate = rate_at(config.optimizer, self.step, progress)
        set_rate(self.generator.optimizer, config.optimizer.learning_rate, rate)
        # With one batch the discriminator judges what the generator's own step will use; with several, keeping them
        # all would undo what accumulation saves.
        restored = [self.restore(pairs[0][0])] if len(pairs) == 1 else []
        losses: dict[str, Tensor] = {}
        trouble = ""
        if self.discriminator is not None and progress >= config.loss.adversarial_from:
            set_rate(self.discriminator.optimizer, config.optimizer.discriminator_rate, rate)
            found, finite = self._discriminator_steps(pairs, [r.detach() for r in restored])
            losses |= found
            trouble = "" if finite else "discriminator"
        found, finite = self._generator_step(pairs, restored, progress)
        losses |= found
        if finite:
            self.ema.update(self.generator.module)
        else:
            trouble = "generator"
        self.step += 1
        self.seen += sum(len(sharp) for _, sharp in pairs) * self.group.world
        self._count(trouble)
        return losses | {"rate": torch.tensor(rate), "skipped": torch.tensor(float(bool(trouble)))}

    def restore(self, blurred: Tensor) -> Tensor:
        """The generator's answer, float32."""
        with self._autocast():
            return self.forward(blurred).float()

    def _generator_step(
        self, pairs: list[Pair], restored: list[Tensor], progress: float
    ) -> tuple[dict[str, Tensor], bool]:
        self.generator.clear()
        sums: dict[str, Tensor] = {}
        for index, (blurred, sharp) in enumerate(pairs):
            answer = restored[index] if restored else self.restore(blurred)
            terms = self.loss_terms(answer, sharp, progress)
            terms["total"] = torch.stack(list(terms.values())).sum()
            self.generator.backward(terms["total"] / len(pairs))
            for name, term in terms.items():
                sums[name] = sums.get(name, 0) + term.detach() / len(pairs)
        return sums, self.generator.step(sums["total"])

    def loss_terms(self, restored: Tensor, sharp: Tensor, progress: float = 1.0) -> dict[str, Tensor]:
        """The generator's weighted losses, the adversarial one included once the discriminator has warmed up."""
        terms = self.loss(restored, sharp, progress)
        config, judge = self.config.loss, self.discriminator
        if judge is None or progress < config.adversarial_from or judge.steps <= config.discriminator_warmup:
            return terms
        judge.module.requires_grad_(False)
        with self._autocast():
            on_restored = judge.module(restored)
            on_sharp = judge.module(sharp) if config.adversarial == "ralsgan" else on_restored.detach()
        judge.module.requires_grad_(True)
        term = adversarial_loss(config.adversarial, on_restored.float(), on_sharp.float())
        return terms | {"adversarial": config.adversarial_weight * term}

    def _discriminator_steps(self, pairs: list[Pair], restored: list[Tensor]) -> tuple[dict[str, Tensor], bool]:
        assert self.discriminator is not None
        all_finite = True
        for k in range(self.config.loss.critic_steps):
            self.discriminator.clear()
            sums: dict[str, Tensor] = {}
            for index, (blurred, sharp) in enumerate(pairs):
                answer = restored[index] if restored else self._restore_without_gradient(blurred)
                terms = self.discriminator_terms(sharp, answer, draw=(self.step, k, index))
                self.discriminator.backward(terms["discriminator"] / len(pairs))
                for name, term in terms.items():
                    sums[name] = sums.get(name, 0) + term.detach() / len(pairs)
            all_finite &= self.discriminator.step(sums["discriminator"])
        return sums, all_finite

    @torch.no_grad()
    def _restore_without_gradient(self, blurred: Tensor) -> Tensor:
        return self.restore(blurred)

    def discriminator_terms(self, sharp: Tensor, restored: Tensor, draw: tuple[int, ...]) -> dict[str, Tensor]:
        """The discriminator's loss, and its mean scores.

        Args:
            sharp: (B, 3, H, W).
            restored: the same shape, without a graph.
            draw: what the points of the gradient penalty are drawn by.
        """
        assert self.discriminator is not None
        config, module = self.config.loss, self.discriminator.module
        with self._autocast():
            on_sharp, on_restored = module(torch.cat([sharp, restored])).float().chunk(2)
        terms = {
            "discriminator": discriminator_loss(config.adversarial, on_sharp, on_restored),
            "d_sharp": on_sharp.mean(),
            "d_restored": on_restored.mean(),
        }
        if config.adversarial == "wgan-gp":
            seed = hash((self.config.seed, self.group.rank, *draw)) % 2**31
            mix = torch.rand(len(sharp), 1, 1, 1, generator=torch.Generator().manual_seed(seed)).to(self.device)
            terms["penalty"] = config.gradient_penalty * gradient_penalty(module, sharp, restored, mix)
            terms["discriminator"] = terms["discriminator"] + terms["penalty"]
        return terms

    def _count(self, trouble: str) -> None:
        self._bad_in_row = self._bad_in_row + 1 if trouble else 0
        self.skipped += bool(trouble)
        if self._bad_in_row >= self.config.bad_steps:
            raise DataError(
                f"training stopped: in {self._bad_in_row} steps in a row the {trouble}'s loss or gradient was not "
                f"finite (the last at step {self.step}); no weight was moved by them. Resume from the last checkpoint "
                "with a lower learning rate (--rate), or train in fp32 (--precision fp32)"
            )

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on as if there had been no break.

        Random numbers are functions of (seed, step, process), so that there is no generator's state to keep.
        """
        state: dict[str, Any] = {
            "step": self.step,
            "elapsed": self.elapsed,
            "seen": self.seen,
            "skipped": self.skipped,
            "bad_in_row": self._bad_in_row,
            "best": self.best,
            "generator": self.generator.module.state_dict(),
            "generator_config": self.config.generator.to_dict(),
            "ema": self.ema.module.state_dict(),
            "ema_updates": self.ema.updates,
            "optimizer": self.generator.optimizer.state_dict(),
            "learner": self.generator.state_dict(),
        }
        if self.discriminator is not None:
            state["discriminator"] = self.discriminator.module.state_dict()
            state["d_optimizer"] = self.discriminator.optimizer.state_dict()
            state["d_learner"] = self.discriminator.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint.

        Raises:
            DataError: the checkpoint is of other networks.
        """
        try:
            self.step, self.elapsed, self.seen = state["step"], state["elapsed"], state["seen"]
            self.skipped, self._bad_in_row = state["skipped"], state.get("bad_in_row", 0)
            self.best = state.get("best")
            self.ema.module.load_state_dict(state["ema"])
            self.ema.updates = state["ema_updates"]
            _restore(self.generator, state["generator"], state["optimizer"], state.get("learner"))
            if self.discriminator is not None and "discriminator" in state:
                _restore(self.discriminator, state["discriminator"], state["d_optimizer"], state.get("d_learner"))
        except (RuntimeError, KeyError, ValueError) as error:
            raise DataError(
                f"checkpoint of step {state.get('step')}: it does not fit this run's config: {error}"
            ) from error

    def start_from(self, generator: nn.Module) -> None:
        """Takes the weights of a generator of the same config (a warm start).

        Raises:
            DataError: it has another config.
        """
        try:
            self.generator.module.load_state_dict(generator.state_dict())
        except RuntimeError as error:
            raise DataError(f"--init: the weights do not fit this run's generator: {error}") from error
        self.ema = Ema(self.generator.module, self.config.ema_decay)


def _restore(learner: Learner, module: dict, optimizer: dict, rest: dict | None) -> None:
    learner.module.load_state_dict(module)
    learner.optimizer.load_state_dict(optimizer)
    if rest is not None:
        learner.load_state_dict(rest)
