"""The loop: sharp crops -> blurred pairs -> generator step (and discriminator steps) -> average -> checkpoint."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from data_synth import Degrade
from deblur.devices import resolve_precision
from deblur.errors import DataError
from deblur.generator import build
from training.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from training.config import TrainConfig
from training.data import CropSampler
from training.discriminator import build_discriminator
from training.ema import Ema
from training.losses import GeneratorLoss, adversarial_loss, discriminator_loss, gradient_penalty
from training.optimizer import build_optimizer, rate_at


class Trainer:
    """A run: its networks, optimizers and step count.

    Args:
        config: the run.
        sampler: where sharp crops come from.
        out: the run's folder.
        device: where to train.
        perceptual_weights: local file for the perceptual loss.
    """

    def __init__(
        self,
        config: TrainConfig,
        sampler: CropSampler,
        out: Path,
        device: torch.device,
        perceptual_weights: Path | None = None,
    ):
        self.config, self.sampler, self.out, self.device = config, sampler, out, device
        torch.manual_seed(config.seed)
        self.generator = build(config.generator).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.ema = Ema(self.generator, config.ema_decay)
        self.degrade = Degrade(config.degrade).to(device)
        self.loss = GeneratorLoss(config.loss, perceptual_weights).to(device)
        self.optimizer = build_optimizer(self.generator, config.optimizer, config.optimizer.learning_rate)
        self.discriminator: nn.Module | None = None
        if config.adversarial:
            self.discriminator = build_discriminator(config.discriminator).to(device)
            self.d_optimizer = torch.optim.Adam(
                self.discriminator.parameters(), lr=config.optimizer.discriminator_rate, betas=(0.5, 0.99)
            )
        self.forward = torch.compile(self.generator) if config.compile else self.generator
        self.dtype = resolve_precision(config.precision, device)
        self.step, self.elapsed, self.skipped, self.bad_in_row = 0, 0.0, 0, 0
        self.seen = 0

    @property
    def progress(self) -> float:
        """How far the run is, in 0..1: by steps, by minutes, or by whichever ends first."""
        config = self.config
        parts = [self.step / config.steps if config.steps else 0.0]
        parts.append(self.elapsed / 60 / config.minutes if config.minutes else 0.0)
        return min(1.0, max(parts))

    def run(self) -> Iterator[dict[str, float]]:
        """Trains to the end of the run, yielding the losses of each step."""
        while self.progress < 1.0:
            started = time.monotonic()
            losses = self.train_step()
            self.elapsed += time.monotonic() - started
            yield losses

    def train_step(self) -> dict[str, float]:
        """One generator step, with its discriminator steps; counts and skips a step that is not finite."""
        rate = rate_at(self.config.optimizer, self.step, self.progress)
        for group in self.optimizer.param_groups:
            group["lr"] = group.get("peak", self.config.optimizer.learning_rate) * rate
        blurred, sharp = self.pair(self.step)
        losses: dict[str, Tensor] = {}
        with self._autocast():
            restored = self.forward(blurred)
        restored = restored.float()
        if self.discriminator is not None:
            losses |= self._train_discriminator(sharp, restored.detach())
        generator_losses = self.loss_terms(restored, sharp)
        total = torch.stack(list(generator_losses.values())).sum()
        losses |= generator_losses | {"total": total.detach()}
        finite = self._update(total)
        self.step += 1
        self.seen += len(sharp)
        self._count_bad(finite)
        return {k: float(v.detach()) for k, v in losses.items()} | {"rate": rate}

    def pair(self, step: int) -> tuple[Tensor, Tensor]:
        """The step's blurred and sharp batch, (B, 3, H, W)."""
        bucket = self.sampler.bucket(step, self.config.buckets_at(self.progress))
        sharp, seeds = self.sampler.batch(step, bucket)
        sharp = sharp.to(self.device, memory_format=torch.channels_last)
        blurred, _ = self.degrade(sharp, seeds=seeds.to(self.device))
        return blurred.contiguous(memory_format=torch.channels_last), sharp

    def loss_terms(self, restored: Tensor, sharp: Tensor) -> dict[str, Tensor]:
        """The generator's weighted losses, the adversarial one included."""
        with self._autocast():
            terms = self.loss(restored, sharp)
        if self.discriminator is not None:
            config = self.config.loss
            self.discriminator.requires_grad_(False)
            with self._autocast():
                on_restored = self.discriminator(restored)
                on_sharp = self.discriminator(sharp) if config.adversarial == "ralsgan" else on_restored
            self.discriminator.requires_grad_(True)
            term = adversarial_loss(
                config.adversarial,
                on_restored.float(),
                on_sharp.float().detach() if on_sharp is not on_restored else on_sharp.float(),
            )
            terms["adversarial"] = config.adversarial_weight * term
        return terms

    def _train_discriminator(self, sharp: Tensor, restored: Tensor) -> dict[str, Tensor]:
        assert self.discriminator is not None
        config = self.config.loss
        for k in range(config.critic_steps):
            with self._autocast():
                on_sharp, on_restored = self.discriminator(torch.cat([sharp, restored])).float().chunk(2)
            loss = discriminator_loss(config.adversarial, on_sharp, on_restored)
            if config.adversarial == "wgan-gp":
                rng = torch.Generator().manual_seed(hash((self.config.seed, 3, self.step, k)) % 2**31)
                mix = torch.rand(len(sharp), 1, 1, 1, generator=rng).to(self.device)
                loss = loss + config.gradient_penalty * gradient_penalty(self.discriminator, sharp, restored, mix)
            self.d_optimizer.zero_grad(set_to_none=True)
            if torch.isfinite(loss):
                loss.backward()
                self.d_optimizer.step()
        return {
            "discriminator": loss.detach(),
            "d_sharp": on_sharp.mean().detach(),
            "d_restored": on_restored.mean().detach(),
        }

    def _update(self, total: Tensor) -> bool:
        self.optimizer.zero_grad(set_to_none=True)
        if not torch.isfinite(total):
            return False
        total.backward()
        clip = self.config.optimizer.clip_norm or math.inf
        norm = nn.utils.clip_grad_norm_(self.generator.parameters(), clip)
        if not torch.isfinite(norm):
            return False
        self.optimizer.step()
        self.ema.update(self.generator)
        return True

    def _count_bad(self, finite: bool) -> None:
        self.bad_in_row = 0 if finite else self.bad_in_row + 1
        self.skipped += not finite
        if self.bad_in_row >= self.config.bad_steps:
            raise DataError(
                f"training stopped: {self.bad_in_row} steps in a row had a loss or gradient that is not finite "
                f"(last at step {self.step}). Lower the learning rate, or train in fp32 (--precision fp32)"
            )

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def save(self) -> Path:
        """Writes a checkpoint."""
        state: dict[str, Any] = {
            "step": self.step,
            "elapsed": self.elapsed,
            "seen": self.seen,
            "skipped": self.skipped,
            "generator": self.generator.state_dict(),
            "ema": self.ema.module.state_dict(),
            "ema_updates": self.ema.updates,
            "optimizer": self.optimizer.state_dict(),
        }
        if self.discriminator is not None:
            state["discriminator"] = self.discriminator.state_dict()
            state["d_optimizer"] = self.d_optimizer.state_dict()
        return save_checkpoint(self.out / "checkpoints", self.step, state, self.config.keep)

    def resume(self) -> bool:
        """Goes on from the run's newest checkpoint; False when there is none."""
        found = checkpoints(self.out / "checkpoints")
        if not found:
            return False
        state = load_checkpoint(found[-1])
        self.step, self.elapsed = state["step"], state["elapsed"]
        self.seen, self.skipped = state["seen"], state["skipped"]
        self.generator.load_state_dict(state["generator"])
        self.ema.module.load_state_dict(state["ema"])
        self.ema.updates = state["ema_updates"]
        self.optimizer.load_state_dict(state["optimizer"])
        if self.discriminator is not None and "discriminator" in state:
            self.discriminator.load_state_dict(state["discriminator"])
            self.d_optimizer.load_state_dict(state["d_optimizer"])
        return True

    def start_from(self, generator: nn.Module) -> None:
        """Takes the weights of a generator of the same config (a warm start)."""
        self.generator.load_state_dict(generator.state_dict())
        self.ema = Ema(self.generator, self.config.ema_decay)


def append_log(path: Path, entry: dict[str, Any]) -> None:
    """Adds one JSON line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
