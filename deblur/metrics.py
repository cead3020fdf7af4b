"""How good a restoration is: its fidelity, and what a face detector and a face recogniser make of it.

Everything here is a function of its arguments: no files are read but by the two loaders, nothing is
remembered. Pictures are float tensors (B, 3, H, W) whose full range is given as `data_range`; results are
one number a picture. The protocol for detection: reference faces are those found on the sharp picture; a
hit is a found face that overlaps a reference face by IoU 0.5 or more, one to one; a missed face counts as
confidence 0 and is never dropped.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from safetensors.torch import load_file
from torch import Tensor, nn

from deblur.errors import OptionError, WeightsError
from deblur.faces import Face, identity_network, iou, match_faces

DETECTION_THRESHOLD = 0.9  # the frozen setting of the protocol: least final score of a face that counts
LEAST_IOU = 0.5
WORSE_DB = 0.05  # a picture is called worse than its input below this loss of PSNR
IDENTITY_PX = 160
IDENTITY_URL = "https://github.com/timesler/facenet-pytorch/releases/download/v2.2.9/20180402-114759-vggface2.pt"


def psnr(restored: Tensor, sharp: Tensor, *, data_range: float) -> Tensor:
    """Peak signal-to-noise ratio over all channels of each picture.

    Args:
        restored: (B, C, H, W), any real dtype.
        sharp: the same shape.
        data_range: distance between black and white, such as 1.0 or 255.

    Returns:
        (B,) float64 in dB; infinite where the two are equal.

    Raises:
        OptionError: shapes differ, or data_range is not positive.
    """
    _check_pair(restored, sharp, data_range)
    error = (restored.double() - sharp.double()).square().mean(dim=(1, 2, 3))
    return 10 * torch.log10(data_range**2 / error)


def ssim(
    restored: Tensor,
    sharp: Tensor,
    *,
    data_range: float,
    window_px: int = 11,
    sigma_px: float | None = 1.5,
    sample_covariance: bool = False,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Tensor:
    """Structural similarity (Wang et al. 2004), mean over channels and the windows inside the picture.

    Args:
        restored: (B, C, H, W), sides of at least window_px.
        sharp: the same shape.
        data_range: distance between black and white.
        window_px: side of the window, odd.
        sigma_px: of the Gaussian window; None for a flat one.
        sample_covariance: divide by n - 1 rather than n, as some do with the flat window.
        k1: constant of the luminance term.
        k2: constant of the contrast term.

    Returns:
        (B,) float64, 1 where the two are equal.

    Raises:
        OptionError: shapes differ, the picture is smaller than the window, or the window is even.
    """
    _check_pair(restored, sharp, data_range)
    if window_px % 2 == 0 or window_px > min(sharp.shape[-2:]):
        raise OptionError(f"window_px must be odd and fit the picture of {tuple(sharp.shape[-2:])}, got {window_px}")
    x, y = restored.double(), sharp.double()
    offsets = torch.arange(window_px, dtype=torch.float64, device=x.device) - window_px // 2
    window = torch.ones_like(offsets) if sigma_px is None else torch.exp(-0.5 * (offsets / sigma_px) ** 2)
    window = window / window.sum()
    mean_x, mean_y = _windowed(x, window), _windowed(y, window)
    unbias = window_px**2 / (window_px**2 - 1) if sample_covariance else 1.0
    var_x = unbias * (_windowed(x * x, window) - mean_x**2)
    var_y = unbias * (_windowed(y * y, window) - mean_y**2)
    covariance = unbias * (_windowed(x * y, window) - mean_x * mean_y)
    c1, c2 = (k1 * data_range) ** 2, (k2 * data_range) ** 2
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    structure = (2 * covariance + c2) / (var_x + var_y + c2)
    return (luminance * structure).mean(dim=(1, 2, 3))


def _windowed(x: Tensor, window: Tensor) -> Tensor:
    channels = x.shape[1]
    kernel = window.expand(channels, 1, 1, -1)
    return F.conv2d(F.conv2d(x, kernel, groups=channels), kernel.transpose(2, 3), groups=channels)


def _check_pair(restored: Tensor, sharp: Tensor, data_range: float) -> None:
    if restored.shape != sharp.shape or restored.ndim != 4:
        raise OptionError(
            f"expected two (B, C, H, W) tensors of one shape, got {tuple(restored.shape)} and {tuple(sharp.shape)}"
        )
    if not data_range > 0:
        raise OptionError(f"data_range must be positive, got {data_range}")


class LpipsNetwork(nn.Module):
    """AlexNet's convolutions and the learned weights of their channels, for `lpips`."""

    mean: Tensor
    deviation: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, 4, 2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, 1, 2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, 1, 1),
            nn.ReLU(),
        )
        self.heads = nn.ParameterList(
            nn.Parameter(torch.zeros(1, c, 1, 1), requires_grad=False) for c in (64, 192, 384, 256, 256)
        )
        # ImageNet's mean and deviation, moved from [0, 1] to [-1, 1].
        self.register_buffer("mean", torch.tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1))
        self.register_buffer("deviation", torch.tensor([0.458, 0.448, 0.450]).view(1, 3, 1, 1))

    def forward(self, x: Tensor) -> list[Tensor]:
        """Activations after each ReLU, unit length over channels, of (B, 3, H, W) in [-1, 1]."""
        x = (x - self.mean) / self.deviation
        taken = []
        for layer in self.features:
            x = layer(x)
            if isinstance(layer, nn.ReLU):
                taken.append(x / (x.square().sum(dim=1, keepdim=True).sqrt() + 1e-10))
        return taken


LPIPS_LEAST_PX = 31  # smaller sides leave AlexNet nothing after its second pooling


def lpips(restored: Tensor, sharp: Tensor, network: LpipsNetwork, *, data_range: float) -> Tensor:
    """Learned perceptual distance (Zhang et al. 2018, version 0.1, AlexNet): lower is closer.

    Args:
        restored: (B, 3, H, W) float with values 0 to data_range, sides of at least 31 px.
        sharp: the same shape.
        network: from `load_lpips`, on the same device.
        data_range: distance between black and white.

    Returns:
        (B,) float32, 0 where the two are equal.

    Raises:
        OptionError: shapes differ or a side is below 31 px.
    """
    _check_pair(restored, sharp, data_range)
    if min(sharp.shape[-2:]) < LPIPS_LEAST_PX:
        raise OptionError(f"lpips needs sides of {LPIPS_LEAST_PX} px, got {tuple(sharp.shape[-2:])}")
    a, b = (network(2 * picture.float() / data_range - 1) for picture in (restored, sharp))
    total = torch.zeros(len(restored), device=restored.device)
    for x, y, weight in zip(a, b, network.heads, strict=True):
        total = total + ((x - y).square() * weight).sum(dim=1).mean(dim=(1, 2))
    return total


def load_lpips(backbone: str | Path | None = None) -> LpipsNetwork:
    """The network of `lpips`.

    Args:
        backbone: safetensors file with AlexNet's convolutions under torchvision's names
            (`features.0.weight` ...); None takes torchvision's own ImageNet weights, which are downloaded
            once.

    Raises:
        WeightsError: the backbone cannot be read or downloaded, or the lpips package, whose wheel holds
            the learned channel weights, is not installed.
    """
    network = LpipsNetwork()
    features = _download_alexnet() if backbone is None else _read_alexnet(Path(backbone))
    network.load_state_dict(features, strict=False)
    for head, weight in zip(network.heads, _channel_weights(), strict=True):
        head.data.copy_(weight)
    return network.eval().requires_grad_(False)


def _channel_weights() -> list[Tensor]:
    spec = find_spec("lpips")
    if spec is None or spec.origin is None:
        raise WeightsError("LPIPS needs the channel weights in the lpips package: pip install 'face-deblur[metrics]'")
    path = Path(spec.origin).parent / "weights" / "v0.1" / "alex.pth"
    state = torch.load(path, map_location="cpu", weights_only=True)
    return [state[f"lin{index}.model.1.weight"] for index in range(5)]


def _read_alexnet(path: Path) -> dict[str, Tensor]:
    expected = "expected a safetensors file with AlexNet's convolutions under torchvision's names"
    try:
        state = load_file(path)
    except Exception as error:
        raise WeightsError(f"{path}: {expected} ({error})") from error
    wanted = {f"features.{i}.{kind}" for i in (0, 3, 6, 8, 10) for kind in ("weight", "bias")}
    if not wanted <= set(state):
        raise WeightsError(f"{path}: {expected}; {sorted(wanted - set(state))} are missing")
    return {key: state[key].float() for key in wanted}


def _download_alexnet() -> dict[str, Tensor]:
    from torchvision.models import AlexNet_Weights

    try:
        state = AlexNet_Weights.IMAGENET1K_V1.get_state_dict(progress=False, check_hash=True)
    except Exception as error:
        raise WeightsError(
            f"torchvision's AlexNet weights cannot be downloaded ({error}); name a local safetensors file"
        ) from error
    return {key: value for key, value in state.items() if key.startswith("features.")}


def load_identity(weights: str | Path | None = None) -> nn.Module:
    """The face recogniser of `identity_similarity`: InceptionResnetV1, trained on VGGFace2.

    Args:
        weights: its state dict as a .pt or .safetensors file; None downloads facenet-pytorch's once.

    Raises:
        WeightsError: the file is absent, of another kind, or cannot be downloaded.
    """
    network = identity_network()
    try:
        if weights is None:
            state = torch.hub.load_state_dict_from_url(IDENTITY_URL, map_location="cpu", weights_only=True)
        elif Path(weights).suffix == ".safetensors":
            state = load_file(Path(weights))
        else:
            state = torch.load(Path(weights), map_location="cpu", weights_only=True)
        network.load_state_dict({k: v for k, v in state.items() if not k.startswith("logits.")})
    except Exception as error:
        where = weights or IDENTITY_URL
        raise WeightsError(f"{where}: the weights of InceptionResnetV1 cannot be had ({error})") from error
    return network.requires_grad_(False)


@torch.inference_mode()
def identity_similarity(
    restored: Tensor,
    sharp: Tensor,
    boxes: Sequence[Sequence[float]],
    network: nn.Module,
    *,
    data_range: float,
) -> Tensor:
    """Cosine between a face recogniser's embeddings of the same place in two pictures.

    Args:
        restored: (B, 3, H, W) float with values 0 to data_range.
        sharp: the same shape.
        boxes: one XYXY box in pixels a picture, found on the sharp one; it is cut at the border.
        network: from `load_identity`, on the same device.
        data_range: distance between black and white.

    Returns:
        (B,) float32, -1 to 1.

    Raises:
        OptionError: shapes differ, or there is not one box a picture.
    """
    _check_pair(restored, sharp, data_range)
    if len(boxes) != len(restored):
        raise OptionError(f"expected one box for each of {len(restored)} pictures, got {len(boxes)}")
    if not len(boxes):
        return torch.zeros(0)
    a, b = (_face_crops(batch, boxes, data_range) for batch in (restored, sharp))
    return F.cosine_similarity(network(a).float(), network(b).float())


def _face_crops(pictures: Tensor, boxes: Sequence[Sequence[float]], data_range: float) -> Tensor:
    return torch.cat([_face_crop(p, box, data_range) for p, box in zip(pictures, boxes, strict=True)])


def _face_crop(picture: Tensor, box: Sequence[float], data_range: float) -> Tensor:
    height, width = picture.shape[-2:]
    x0, y0 = (min(max(0, math.floor(v)), side - 1) for v, side in ((box[0], width), (box[1], height)))
    x1, y1 = max(x0 + 1, min(width, math.ceil(box[2]))), max(y0 + 1, min(height, math.ceil(box[3])))
    crop = picture[None, :, y0:y1, x0:x1].float() / data_range
    size = IDENTITY_PX, IDENTITY_PX
    crop = F.interpolate(crop, size, mode="bilinear", antialias=True, align_corners=False)
    return (crop * 255 - 127.5) / 128


@dataclass(frozen=True, kw_only=True)
class DetectionOutcome:
    """What a detector made of one picture, measured against its reference faces.

    Attributes:
        confidences: score of the match of each reference face, 0 for a missed one.
        landmark_errors: mean distance of the five landmarks over the reference's eye distance, for each hit.
        ious: overlap with the reference box, for each hit.
        false_positives: found faces that match no reference face.
    """

    confidences: tuple[float, ...]
    landmark_errors: tuple[float, ...]
    ious: tuple[float, ...]
    false_positives: int

    @property
    def faces(self) -> int:
        """Number of reference faces."""
        return len(self.confidences)

    @property
    def hits(self) -> int:
        """Number of reference faces that were found."""
        return len(self.ious)


def judge_detection(
    found: Sequence[Face],
    reference: Sequence[Face],
    *,
    threshold: float = DETECTION_THRESHOLD,
    least_iou: float = LEAST_IOU,
) -> DetectionOutcome:
    """Match the faces found in one picture to its reference faces.

    Args:
        found: detections; those below the threshold do not count.
        reference: the faces of the sharp picture.
        threshold: least score of a detection.
        least_iou: least overlap of a hit.
    """
    counted = [face for face in found if face.score >= threshold]
    pairs = match_faces(counted, reference, least_iou)
    hits = [(truth, match) for truth, match in pairs if match is not None]
    return DetectionOutcome(
        confidences=tuple(match.score if match else 0.0 for _, match in pairs),
        landmark_errors=tuple(landmark_error(match, truth) for truth, match in hits),
        ious=tuple(iou(match.box, truth.box) for truth, match in hits),
        false_positives=len(counted) - len(hits),
    )


def landmark_error(found: Face, reference: Face) -> float:
    """Mean distance of the landmarks over the reference's eye distance; both faces need landmarks."""
    distances = [math.dist(a, b) for a, b in zip(found.landmarks, reference.landmarks, strict=True)]
    return sum(distances) / len(distances) / max(reference.eye_distance_px, 1e-6)


def detection_rate(outcomes: Sequence[DetectionOutcome]) -> float:
    """Share of all reference faces that were found, 0 to 1; nan without any reference face."""
    faces = sum(outcome.faces for outcome in outcomes)
    return sum(outcome.hits for outcome in outcomes) / faces if faces else math.nan


def mean_confidence(faces: Sequence[Face]) -> float:
    """Mean score of the faces of one picture; 0 when none was found, so that a loss shows."""
    return sum(face.score for face in faces) / len(faces) if faces else 0.0


def bootstrap_interval(
    totals: ArrayLike,
    counts: ArrayLike | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval (Efron 1979) of a mean, or of a ratio of sums, over pictures.

    Args:
        totals: (n,) one value a picture, such as its PSNR gain or the hits in it.
        counts: (n,) what the totals are divided by, such as its faces; None for one each.
        confidence: share of the resamples inside the interval.
        resamples: number of samples drawn with replacement.
        seed: the same seed gives the same interval.

    Returns:
        Low and high end; (nan, nan) when the counts sum to 0.
    """
    values = np.asarray(totals, np.float64)
    weights = np.ones_like(values) if counts is None else np.asarray(counts, np.float64)
    if not values.size or not weights.sum():
        return math.nan, math.nan
    drawn = np.random.default_rng(seed).integers(0, len(values), (resamples, len(values)))
    sums, divisors = values[drawn].sum(axis=1), weights[drawn].sum(axis=1)
    ratios = sums[divisors > 0] / divisors[divisors > 0]
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return float(low), float(high)
