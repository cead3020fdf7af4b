"""The losses. Pictures are (B, 3, H, W) float in [0, 1]; every loss is a scalar, a mean over the batch."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.config import LossConfig
from training.identity import IdentityLoss
from training.perceptual import PerceptualLoss

CHARBONNIER_EPSILON = 1e-3
PSNR_FLOOR = 1e-4  # mean square error at which the `psnr` loss levels off: 40 dB


def pixel_loss(restored: Tensor, sharp: Tensor, kind: str) -> Tensor:
    """Distance of pixels.

    `charbonnier` is sqrt(d^2 + eps^2) (Charbonnier et al. 1994), `mse` the mean square, `psnr` the mean over samples
    of log(mse + floor): what mean PSNR measures, with the pull of nearly perfect samples bounded.
    """
    difference = restored - sharp
    if kind == "charbonnier":
        return torch.sqrt(difference * difference + CHARBONNIER_EPSILON**2).mean()
    square = (difference * difference).mean(dim=(1, 2, 3))
    return square.mean() if kind == "mse" else torch.log(square + PSNR_FLOOR).mean() / 10


def fft_loss(restored: Tensor, sharp: Tensor) -> Tensor:
    """Mean L1 distance of the orthonormal 2-D spectra (Cho et al. 2021, equation 5, made independent of size)."""
    spectrum = torch.fft.rfft2(restored - sharp, norm="ortho")
    return torch.view_as_real(spectrum).abs().mean()


def discriminator_loss(kind: str, on_sharp: Tensor, on_restored: Tensor) -> Tensor:
    """What the discriminator lowers; the gradient penalty of `wgan-gp` comes on top.

    `hinge`: Lim and Ye 2017. `ralsgan`: Jolicoeur-Martineau 2018, as in DeblurGAN-v2 (Kupyn et al. 2019, equation 2).
    `wgan-gp`: Gulrajani et al. 2017.
    """
    if kind == "hinge":
        return F.relu(1 - on_sharp).mean() + F.relu(1 + on_restored).mean()
    if kind == "ralsgan":
        sharp_lead, restored_lead = on_sharp - on_restored.mean(), on_restored - on_sharp.mean()
        return ((sharp_lead - 1) ** 2).mean() / 2 + ((restored_lead + 1) ** 2).mean() / 2
    return on_restored.mean() - on_sharp.mean()


def adversarial_loss(kind: str, on_restored: Tensor, on_sharp: Tensor) -> Tensor:
    """What the generator lowers. Only `ralsgan` looks at the sharp scores."""
    if kind == "ralsgan":
        sharp_lead, restored_lead = on_sharp - on_restored.mean(), on_restored - on_sharp.mean()
        return ((restored_lead - 1) ** 2).mean() / 2 + ((sharp_lead + 1) ** 2).mean() / 2
    return -on_restored.mean()


def gradient_penalty(discriminator: nn.Module, sharp: Tensor, restored: Tensor, mix: Tensor) -> Tensor:
    """Mean of (|gradient| - 1)^2 at points between (Gulrajani et al. 2017, equation 3).

    The norm is over the whole sample, all channels and pixels together.

    Args:
        discriminator: the critic.
        sharp: (B, 3, H, W).
        restored: (B, 3, H, W), no gradient needed.
        mix: (B, 1, 1, 1) uniform in [0, 1].
    """
    between = (mix * sharp + (1 - mix) * restored).detach().requires_grad_(True)
    scores = discriminator(between)
    (gradient,) = torch.autograd.grad(scores.flatten(1).mean(1).sum(), between, create_graph=True)
    # The root of zero has no finite slope: an all-black batch would give NaN without the floor.
    norm = (gradient.float().flatten(1).square().sum(1) + 1e-12).sqrt()
    return ((norm - 1) ** 2).mean()


class GeneratorLoss(nn.Module):
    """The weighted sum that the generator lowers, without the adversarial part.

    Args:
        config: the weights.
        perceptual_weights: local file for the perceptual loss, or None for torchvision's.
        identity_weights: dlib's file for the identity loss, or None for the package's.
        dtype: what the frozen networks compute in.
    """

    def __init__(
        self,
        config: LossConfig,
        perceptual_weights: Path | None = None,
        identity_weights: Path | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        self.config = config
        self.perceptual: PerceptualLoss | None = None
        if config.perceptual_weight > 0:
            self.perceptual = PerceptualLoss(
                config.perceptual_net,
                config.perceptual_layers,
                config.perceptual_distance,
                perceptual_weights,
                dtype,
            )
        self.identity = IdentityLoss(identity_weights, dtype) if config.identity_weight > 0 else None

    def forward(self, restored: Tensor, sharp: Tensor, progress: float) -> dict[str, Tensor]:
        """The weighted losses by name.

        Args:
            restored: (B, 3, H, W) float32.
            sharp: the same shape, in [0, 1].
            progress: of the run, 0..1; the perceptual and the identity loss join at `perceptual_from`.
        """
        config, losses = self.config, {}
        if config.pixel_weight > 0:
            losses["pixel"] = config.pixel_weight * pixel_loss(restored, sharp, config.pixel)
        if config.fft_weight > 0:
            losses["fft"] = config.fft_weight * fft_loss(restored, sharp)
        if self.perceptual is not None and progress >= config.perceptual_from:
            part = _first(config.perceptual_share, sharp)
            losses["perceptual"] = config.perceptual_weight * self.perceptual(restored[part], sharp[part])
        if self.identity is not None and progress >= config.perceptual_from:
            part = _first(config.identity_share, sharp)
            losses["identity"] = config.identity_weight * self.identity(restored[part], sharp[part])
        return losses


def _first(share: float, batch: Tensor) -> slice:
    # The samples of a batch are in random order: the first ones are as good as any.
    return slice(max(1, round(share * len(batch))))
