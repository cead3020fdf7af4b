"""The losses. Pictures are (B, 3, H, W) float in [0, 1]; every loss is a scalar, a mean over the batch."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deblur.errors import DataError, OptionError
from training.config import LossConfig

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


# Convolutions and poolings of torchvision's VGG `features`, up to the deepest map that is compared.
_VGG = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}
_VGG_WIDTHS = (64, 128, 256, 512, 512)


class PerceptualLoss(nn.Module):
    """Distance in the feature space of a VGG trained on ImageNet (Johnson et al. 2016, section 3.2).

    Args:
        net: `vgg16` or `vgg19`.
        layers: feature maps compared, such as `relu2_2`.
        distance: `l1` (divided by the mean size of the sharp features, so that layers weigh alike) or `mse`.
        weights: safetensors file with torchvision's names (`features.0.weight` ...); None takes torchvision's own
            weights, which are downloaded once.

    Raises:
        DataError: neither the file nor torchvision's download is at hand, or the file lacks a layer.
    """

    def __init__(self, net: str, layers: tuple[str, ...], distance: str, weights: Path | None = None):
        super().__init__()
        self.distance = distance
        self.features, self.taps = _vgg(net, layers)
        self._load(net, weights)
        self.requires_grad_(False).eval()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1), persistent=False)

    def _load(self, net: str, weights: Path | None) -> None:
        state = _local_state(weights) if weights else _torchvision_state(net)
        wanted = self.features.state_dict()
        absent = [k for k in wanted if f"features.{k}" not in state]
        if absent:
            raise DataError(
                f"perceptual weights {weights or net}: layer features.{absent[0]} is absent; expected {net}"
            )
        self.features.load_state_dict({k: state[f"features.{k}"].float() for k in wanted})

    def forward(self, restored: Tensor, sharp: Tensor) -> Tensor:
        """Scalar distance of two (B, 3, H, W) batches in [0, 1]."""
        # One pass over both halves; the sharp half needs no gradient, but splitting costs more than it saves.
        x = (torch.cat([restored, sharp]) - self.mean) / self.std  # type: ignore[operator]
        total = restored.new_zeros(())
        for name, layer in self.features.named_children():
            x = layer(x)
            if name in self.taps:
                ours, theirs = x.float().chunk(2)
                total = total + self._distance(ours, theirs.detach())
        return total / len(self.taps)

    def _distance(self, ours: Tensor, theirs: Tensor) -> Tensor:
        if self.distance == "mse":
            return F.mse_loss(ours, theirs)
        return (ours - theirs).abs().mean() / theirs.abs().mean().clamp_min(1e-6)


def _vgg(net: str, layers: tuple[str, ...]) -> tuple[nn.Sequential, set[str]]:
    modules: list[tuple[str, nn.Module]] = []
    taps: dict[str, int] = {}
    channels = 3
    for block, (count, width) in enumerate(zip(_VGG[net], _VGG_WIDTHS, strict=True), 1):
        for i in range(1, count + 1):
            modules.append((str(len(modules)), nn.Conv2d(channels, width, 3, padding=1)))
            modules.append((str(len(modules)), nn.ReLU()))
            taps[f"relu{block}_{i}"] = len(modules) - 1
            channels = width
        modules.append((str(len(modules)), nn.MaxPool2d(2)))
    unknown = [name for name in layers if name not in taps]
    if unknown or not layers:
        raise OptionError(f"perceptual layers of {net}: expected some of {', '.join(taps)}, got {layers}")
    chosen = {taps[name] for name in layers}
    features = nn.Sequential()
    for name, module in modules[: max(chosen) + 1]:
        features.add_module(name, module)
    return features, {str(i) for i in chosen}


def _local_state(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"perceptual weights {path}: expected a safetensors file; {error}") from error


def _torchvision_state(net: str) -> dict[str, Tensor]:
    import torchvision

    weights = {
        "vgg16": torchvision.models.VGG16_Weights.IMAGENET1K_V1,
        "vgg19": torchvision.models.VGG19_Weights.IMAGENET1K_V1,
    }[net]
    try:
        return dict(weights.get_state_dict(progress=False, check_hash=True))
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"perceptual weights: torchvision's {net} could not be downloaded from {weights.url} ({error}). "
            "Put that file into torch's hub folder, pass a safetensors file with --perceptual-weights FILE, "
            "or train without the perceptual loss (--perceptual 0)"
        ) from error


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
    """

    def __init__(self, config: LossConfig, perceptual_weights: Path | None = None):
        super().__init__()
        self.config = config
        self.perceptual: PerceptualLoss | None = None
        if config.perceptual_weight > 0:
            self.perceptual = PerceptualLoss(
                config.perceptual_net,
                config.perceptual_layers,
                config.perceptual_distance,
                perceptual_weights,
            )

    def forward(self, restored: Tensor, sharp: Tensor) -> dict[str, Tensor]:
        """The weighted losses by name."""
        config, losses = self.config, {}
        if config.pixel_weight > 0:
            losses["pixel"] = config.pixel_weight * pixel_loss(restored, sharp, config.pixel)
        if config.fft_weight > 0:
            losses["fft"] = config.fft_weight * fft_loss(restored, sharp)
        if self.perceptual is not None:
            losses["perceptual"] = config.perceptual_weight * self.perceptual(restored, sharp)
        return losses
