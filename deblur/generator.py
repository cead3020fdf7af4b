"""The generators: a blurred face in, a restored face out.

`gated` is the default: a U-Net of gated convolution blocks. Nothing in it pools or normalises over the picture,
so beyond its receptive field a pixel changes nothing: a tile equals the whole.
`resnet` is the generator of DeblurGAN (Kupyn et al. 2018, section 3.2 and figure 3), for comparison.

Both take and return RGB in [0, 1], any height and width; what comes out is not clipped.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deblur.errors import OptionError

MAX_WIDTH, MAX_BLOCKS = 1024, 64  # a weights file must not be able to ask for any amount of memory


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """All that is needed to build a generator.

    Attributes:
        kind: `gated` or `resnet`.
        stem: pixel-unshuffle factor before the first convolution (`gated`): 2 or 4.
        widths: channels at each scale, finest first (`gated`); `resnet` uses the first as its stem width.
        down: blocks at each scale on the way down (`gated`), as long as `widths`; for `resnet` the number of
            residual blocks, as its only item.
        up: blocks at each scale on the way up (`gated`), one shorter than `widths`, coarsest first.
    """

    kind: Literal["gated", "resnet"] = "gated"
    stem: int = 2
    widths: tuple[int, ...] = (32, 64, 128, 192)
    down: tuple[int, ...] = (1, 2, 3, 4)
    up: tuple[int, ...] = (2, 1, 1)

    def __post_init__(self) -> None:
        if self.kind not in ("gated", "resnet"):
            raise OptionError(f"generator kind: expected 'gated' or 'resnet', got {self.kind!r}")
        blocks = self.down + self.up
        if not all(1 <= w <= MAX_WIDTH for w in self.widths) or not all(0 <= n <= MAX_BLOCKS for n in blocks):
            raise OptionError(
                f"generator: expected widths in 1..{MAX_WIDTH} and block counts in 0..{MAX_BLOCKS}, "
                f"got {self.widths}, {blocks}"
            )
        if self.stem not in (1, 2, 4, 8):
            raise OptionError(f"generator stem: expected 1, 2, 4 or 8, got {self.stem}")
        if self.kind == "gated" and not (len(self.down) == len(self.widths) == len(self.up) + 1):
            raise OptionError(
                "gated generator: expected as many `down` as `widths` and one `up` fewer, "
                f"got widths={self.widths}, down={self.down}, up={self.up}"
            )
        if self.kind == "resnet" and not (len(self.down) == 1 and len(self.widths) == 1):
            raise OptionError(
                f"resnet generator: expected one width and one block count, got {self.widths}, {self.down}"
            )

    @property
    def multiple(self) -> int:
        """Height and width are padded to this inside the generator, in px."""
        return self.stem * 2 ** (len(self.widths) - 1) if self.kind == "gated" else 4

    @property
    def least_side_px(self) -> int:
        """Shorter sides are padded to this, in px."""
        return self.multiple if self.kind == "gated" else 16

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` takes back."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> GeneratorConfig:
        """Builds a config from plain values.

        Raises:
            OptionError: a key is unknown or a value does not fit.
        """
        try:
            plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            return cls(**plain)
        except TypeError as error:
            raise OptionError(f"generator config: {error}; got {values}") from error


def gated(**changes: Any) -> GeneratorConfig:
    """The default generator's config, with named fields changed."""
    return GeneratorConfig.from_dict({**GeneratorConfig().to_dict(), **changes})


def resnet(*, width: int = 64, blocks: int = 9) -> GeneratorConfig:
    """DeblurGAN's generator: 7x7 stem of `width`, `blocks` residual blocks at four times that."""
    return GeneratorConfig(kind="resnet", stem=1, widths=(width,), down=(blocks,), up=())


def build(config: GeneratorConfig) -> nn.Module:
    """A generator with fresh weights.

    Returns:
        A module that maps (B, 3, H, W) float in [0, 1] to the same shape, unclipped, for any H, W >= 1.
    """
    return GatedUNet(config) if config.kind == "gated" else ResnetGenerator(config)


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Extends (B, C, H, W) at the bottom and right by reflection until both sides are multiples.

    Sides shorter than the padding are reflected as often as needed.
    """
    height, width = x.shape[-2:]
    while height % multiple or width % multiple:
        bottom = min(-height % multiple, max(height - 1, 0))
        right = min(-width % multiple, max(width - 1, 0))
        if bottom == 0 and right == 0:  # only sides of one pixel are left, which have nothing to reflect
            return F.pad(x, (0, -width % multiple, 0, -height % multiple), "replicate")
        x = F.pad(x, (0, right, 0, bottom), "reflect")
        height, width = x.shape[-2:]
    return x


class ChannelNorm(nn.Module):
    """Layer normalisation over the channels of each pixel, which leaves tiles equal to the whole."""

    EPSILON = 1e-6

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        y = F.layer_norm(x.permute(0, 2, 3, 1), self.weight.shape, self.weight, self.bias, self.EPSILON)
        return y.permute(0, 3, 1, 2)


class GatedBlock(nn.Module):
    """Norm, 3x3 convolution to twice the channels, one half times the other, 3x3 convolution, added back scaled.

    The scale starts at zero, so that a fresh block is the identity.
    """

    def __init__(self, channels: int):
        super().__init__()
        self.norm = ChannelNorm(channels)
        self.expand = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.project = nn.Conv2d(channels, channels, 3, padding=1)
        self.scale = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        a, b = self.expand(self.norm(x)).chunk(2, dim=1)
        # Scaling the weights equals scaling the output, without a pass over the picture (or a cast to float32).
        assert self.project.bias is not None
        weight, bias = self.scale[..., None] * self.project.weight, self.scale.flatten() * self.project.bias
        return x + F.conv2d(a * b, weight, bias, padding=1)


def _stage(channels: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(*(GatedBlock(channels) for _ in range(blocks)))


class GatedUNet(nn.Module):
    """U-Net of gated blocks between a pixel-unshuffle stem and a pixel-shuffle head.

    Strided 2x2 convolutions go down, a 1x1 convolution and a pixel shuffle go up, skips are added. The head starts
    at zero: a fresh network returns its input.
    """

    def __init__(self, config: GeneratorConfig):
        super().__init__()
        self.config = config
        widths, factor = config.widths, config.stem
        self.stem = nn.Conv2d(3 * factor**2, widths[0], 3, padding=1)
        self.encoders = nn.ModuleList(_stage(w, n) for w, n in zip(widths, config.down, strict=True))
        self.shrink = nn.ModuleList(nn.Conv2d(a, b, 2, 2) for a, b in itertools.pairwise(widths))
        coarse_first = widths[::-1]
        self.grow = nn.ModuleList(nn.Conv2d(a, 4 * b, 1) for a, b in itertools.pairwise(coarse_first))
        self.decoders = nn.ModuleList(_stage(w, n) for w, n in zip(coarse_first[1:], config.up, strict=True))
        self.head = nn.Conv2d(widths[0], 3 * factor**2, 3, padding=1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)  # type: ignore[arg-type]

    def forward(self, blurred: Tensor) -> Tensor:
        """(B, 3, H, W) float in [0, 1] to the same shape."""
        height, width = blurred.shape[-2:]
        return self.on_grid(pad_to_multiple(blurred, self.config.multiple))[..., :height, :width]

    def on_grid(self, padded: Tensor) -> Tensor:
        """`forward` for sides that are multiples of `config.multiple`; free of control flow, for export."""
        return padded + self._residual(padded)

    def _residual(self, padded: Tensor) -> Tensor:
        # Centred values keep a flat grey picture near zero at the first convolution. Low-precision weights work on
        # low-precision values, but the picture that the residual is added to keeps its own.
        centred = (padded - 0.5).to(self.stem.weight.dtype)
        x = self.stem(F.pixel_unshuffle(centred, self.config.stem))  # (B, widths[0], H / stem, W / stem)
        skips: list[Tensor] = []
        for encoder, shrink in zip(self.encoders, self.shrink, strict=False):
            skips.append(encoder(x))
            x = shrink(skips[-1])
        x = self.encoders[-1](x)
        for grow, decoder in zip(self.grow, self.decoders, strict=True):
            x = decoder(F.pixel_shuffle(grow(x), 2) + skips.pop())
        return F.pixel_shuffle(self.head(x), self.config.stem)


class ResidualBlock(nn.Module):
    """Two reflected 3x3 convolutions with instance norm, added back (He et al. 2016)."""

    def __init__(self, channels: int):
        super().__init__()
        self.body = nn.Sequential(
            *_conv_norm(channels, channels), nn.ReLU(inplace=True), *_conv_norm(channels, channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        return x + self.body(x)


def _conv_norm(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> Sequence[nn.Module]:
    return (
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, padding_mode="reflect"),
        nn.InstanceNorm2d(outputs),
    )


class ResnetGenerator(nn.Module):
    """DeblurGAN's generator: 7x7 stem, two strided convolutions, residual blocks, two upsamplings, global skip.

    Bilinear upsampling and a convolution stand in for the transposed convolutions, which leave checkerboards.
    """

    def __init__(self, config: GeneratorConfig):
        super().__init__()
        self.config = config
        width, blocks = config.widths[0], config.down[0]
        layers: list[nn.Module] = [*_conv_norm(3, width, kernel=7), nn.ReLU(inplace=True)]
        for channels in (width, 2 * width):
            layers += [*_conv_norm(channels, 2 * channels, stride=2), nn.ReLU(inplace=True)]
        layers += [ResidualBlock(4 * width) for _ in range(blocks)]
        for channels in (4 * width, 2 * width):
            layers += [
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
                *_conv_norm(channels, channels // 2),
                nn.ReLU(inplace=True),
            ]
        layers += [nn.Conv2d(width, 3, 7, padding=3, padding_mode="reflect"), nn.Tanh()]
        self.body = nn.Sequential(*layers)

    def forward(self, blurred: Tensor) -> Tensor:
        """(B, 3, H, W) float in [0, 1] to the same shape."""
        height, width = blurred.shape[-2:]
        # Instance norm needs more than one value a channel at the coarsest scale, and reflection more than three.
        least = self.config.least_side_px
        padded = pad_to_multiple(blurred, least if min(height, width) < least else self.config.multiple)
        return self.on_grid(padded)[..., :height, :width]

    def on_grid(self, padded: Tensor) -> Tensor:
        """`forward` for sides that are multiples of `config.multiple`; free of control flow, for export."""
        x = 2 * padded - 1  # the network works in [-1, 1]
        return (x + self.body(x)) / 2 + 0.5
