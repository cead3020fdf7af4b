"""The discriminator: judges overlapping patches, so that any picture size will do (Isola et al. 2017, section 3.2)."""

from __future__ import annotations

import itertools

from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from training.config import DiscriminatorConfig


def build_discriminator(config: DiscriminatorConfig) -> nn.Module:
    """A fresh discriminator: (B, 3, H, W) in [0, 1] to (B, 1, h, w) scores, higher for sharper."""
    return PatchDiscriminator(config)


class PatchDiscriminator(nn.Module):
    """Stride-2 convolutions that double the channels, then two stride-1 convolutions to one score a patch."""

    def __init__(self, config: DiscriminatorConfig):
        super().__init__()
        widths = [min(config.width * 2**i, config.width * 8) for i in range(config.layers + 1)]
        layers: list[nn.Module] = [self._conv(3, widths[0], 2, config.norm), nn.LeakyReLU(0.2)]
        for i, (inputs, outputs) in enumerate(itertools.pairwise(widths), 1):
            layers.append(self._conv(inputs, outputs, 2 if i < config.layers else 1, config.norm))
            if config.norm == "instance":
                layers.append(nn.InstanceNorm2d(outputs, affine=True))
            layers.append(nn.LeakyReLU(0.2))
        layers.append(self._conv(widths[-1], 1, 1, config.norm))
        self.body = nn.Sequential(*layers)

    @staticmethod
    def _conv(inputs: int, outputs: int, stride: int, norm: str) -> nn.Module:
        conv = nn.Conv2d(inputs, outputs, 4, stride, padding=2 if stride == 1 else 1)
        return spectral_norm(conv) if norm == "spectral" else conv

    def forward(self, picture: Tensor) -> Tensor:
        """Scores of the patches of (B, 3, H, W)."""
        return self.body(2 * picture - 1)
