"""The perceptual loss: distance in the feature space of a VGG."""

from __future__ import annotations

import re
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deblur.errors import DataError, OptionError

# Convolutions before each pooling of torchvision's VGG `features`.
_CONVOLUTIONS = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}
_WIDTHS = (64, 128, 256, 512, 512)


class PerceptualLoss(nn.Module):
    """Distance in the feature space of a VGG trained on ImageNet (Johnson et al. 2016, section 3.2).

    Args:
        net: `vgg16` or `vgg19`.
        layers: feature maps compared: `conv3_3` before the ReLU, `relu3_3` after it.
        distance: `l1` (divided by the mean size of the sharp features, so that layers weigh alike) or `mse`.
        weights: safetensors file with torchvision's names (`features.0.weight` ...); None takes torchvision's own
            weights, which are downloaded once.
        dtype: what the network computes in; distances are float32.

    Raises:
        OptionError: a layer is not one of the network's.
        DataError: neither the file nor torchvision's download is at hand, or the file lacks a layer.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        net: str,
        layers: tuple[str, ...],
        distance: str,
        weights: Path | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        self.distance, self.dtype = distance, dtype
        self.features, self.taps = _vgg(net, layers)
        self._load(net, weights)
        # Kept in the compute type: autocast would convert frozen weights anew in every step.
        self.features.to(dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.requires_grad_(False).eval()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1), persistent=False)

    def _load(self, net: str, weights: Path | None) -> None:
        state = _local_state(weights, net) if weights else _torchvision_state(net)
        wanted = self.features.state_dict()
        for name, value in wanted.items():
            found = state.get(f"features.{name}")
            if found is None or found.shape != value.shape:
                got = "is absent" if found is None else f"has shape {tuple(found.shape)}"
                raise DataError(
                    f"perceptual weights {weights or net}: features.{name} {got}; expected {tuple(value.shape)} as in "
                    f"torchvision's {net}"
                )
        self.features.load_state_dict({k: state[f"features.{k}"].float() for k in wanted})

    def forward(self, restored: Tensor, sharp: Tensor) -> Tensor:
        """Scalar distance of two (B, 3, H, W) batches in [0, 1]; gradients flow to `restored` alone."""
        with torch.no_grad():
            wanted = self.maps(sharp)
        distances = [
            self._distance(ours.float(), w.float()) for ours, w in zip(self.maps(restored), wanted, strict=True)
        ]
        return torch.stack(distances).mean()

    def maps(self, picture: Tensor) -> list[Tensor]:
        """The compared feature maps of (B, 3, H, W) in [0, 1], shallowest first."""
        x = ((picture - self.mean) / self.std).to(self.dtype)
        found = []
        for name, layer in self.features.named_children():
            x = layer(x)
            if name in self.taps:
                found.append(x)
        return found

    def _distance(self, ours: Tensor, theirs: Tensor) -> Tensor:
        if self.distance == "mse":
            return F.mse_loss(ours, theirs)
        return (ours - theirs).abs().mean() / theirs.abs().mean().clamp_min(1e-6)


def _vgg(net: str, layers: tuple[str, ...]) -> tuple[nn.Sequential, set[str]]:
    modules: list[nn.Module] = []
    places: dict[str, int] = {}
    channels = 3
    for block, (count, width) in enumerate(zip(_CONVOLUTIONS[net], _WIDTHS, strict=True), 1):
        for i in range(1, count + 1):
            places[f"conv{block}_{i}"], places[f"relu{block}_{i}"] = len(modules), len(modules) + 1
            modules += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        modules.append(nn.MaxPool2d(2))
    if not layers or not set(layers) <= set(places):
        raise OptionError(f"perceptual layers of {net}: expected some of {', '.join(places)}, got {layers}")
    taken = {places[name] for name in layers}
    return nn.Sequential(*modules[: max(taken) + 1]), {str(i) for i in taken}


def _local_state(path: Path, net: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            # The two networks' first layers have the same names and shapes: only this tells them apart.
            named = re.search(r"vgg\d+", (file.metadata() or {}).get("architecture", net))
            if named and named[0] != net:
                raise DataError(f"perceptual weights {path}: expected {net}, got {named[0]}")
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError) as error:
        raise DataError(f"perceptual weights {path}: expected a safetensors file; {error}") from error


def _torchvision_state(net: str) -> dict[str, Tensor]:
    import torchvision

    models = torchvision.models
    weights = {"vgg16": models.VGG16_Weights.IMAGENET1K_V1, "vgg19": models.VGG19_Weights.IMAGENET1K_V1}[net]
    try:
        return dict(weights.get_state_dict(progress=False, check_hash=True))
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"perceptual weights: torchvision's {net} could not be downloaded from {weights.url} ({error}). "
            f"Put that file into {torch.hub.get_dir()}/checkpoints, pass a safetensors file with its layers by "
            "--perceptual-weights FILE, or train without the perceptual loss (--perceptual 0)"
        ) from error
