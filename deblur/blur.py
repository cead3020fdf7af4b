"""How strongly a face is blurred by motion, judged from the blurred picture alone.

A small convolutional network looks at the luminance of the face at 96 px and answers with the extent of the camera's
path. It was trained on synthetic blur by `python -m benchmarks.blur_estimate`, which also prints its error on pairs of
known extent. A sharp face gets an answer of 0 to 3% of its side rather than exactly 0; beyond 40% of the face's side,
where its training ended, the answer stops growing.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from deblur.errors import UnsupportedImage, WeightsError

SIDE_PX = 96  # the face is looked at at this size
FLAT_LEVELS = 2.0  # deviation below which a region shows nothing to judge, in levels of 0..255
ESTIMATOR = Path(__file__).parent / "assets" / "blur_estimate.safetensors"

Box = Sequence[float]


class BlurEstimator(nn.Module):
    """(B, 2, 96, 96) from `look` -> (B,) log(1 + extent in px of the 96 px view)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 16, 5, 2, 2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 48, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(48, 64, 3, 2, 1),
            nn.ReLU(),
        )
        self.answer = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, views: Tensor) -> Tensor:
        """(B, 2, 96, 96) float32 to (B,)."""
        features = self.layers(views)
        pooled = torch.cat([features.mean(dim=(2, 3)), features.amax(dim=(2, 3))], dim=1)
        return self.answer(pooled).squeeze(1)


def estimate_extent(levels: NDArray, box: Box | None = None) -> float:
    """Extent of the motion blur of one face.

    Args:
        levels: (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), uint8 or uint16.
        box: x0, y0, x1, y1 of the face in pixels, as the detector gives it; None takes the whole picture.

    Returns:
        The larger side of the bounding box of the camera's path, in pixels of the picture; 0 for a flat
        region. Divide by the larger side of the box for the extent relative to the face.

    Raises:
        UnsupportedImage: the array is no picture.
    """
    return estimate_extents([levels], [box])[0]


@torch.inference_mode()
def estimate_extents(levels: Sequence[NDArray], boxes: Sequence[Box | None]) -> list[float]:
    """`estimate_extent` of several faces in one pass: one picture and one box (or None) a face."""
    extents = [0.0] * len(levels)
    looked = [look(picture, box) for picture, box in zip(levels, boxes, strict=True)]
    shown = [(index, *view) for index, view in enumerate(looked) if view is not None]
    if not shown:
        return extents
    answers = _estimator()(torch.stack([torch.from_numpy(view) for _, view, _ in shown]))
    for (index, _, side), answer in zip(shown, answers.expm1().clamp(min=0).tolist(), strict=True):
        extents[index] = answer * side / SIDE_PX
    return extents


def look(levels: NDArray, box: Box | None = None) -> tuple[NDArray[np.float32], float] | None:
    """What the estimator sees of a face.

    Args:
        levels: a picture as `estimate_extent` takes it.
        box: XYXY in pixels, or None for the whole picture.

    Returns:
        (2, 96, 96) float32: luminance at mean 0 and deviation 1, and the logarithm of the size it came
        from; and the side of the region in pixels of the picture. None where the region is flat or has no
        pixel.
    """
    region = _region(levels, box)
    if region.size == 0:
        return None
    side = float(max(region.shape))
    how = cv2.INTER_AREA if side > SIDE_PX else cv2.INTER_LINEAR
    view = np.asarray(cv2.resize(region, (SIDE_PX, SIDE_PX), interpolation=how), np.float32)
    deviation = float(view.std())
    if deviation < FLAT_LEVELS:
        return None
    size = np.full_like(view, np.clip(np.log2(side / SIDE_PX), -2.0, 2.0))
    return np.stack([(view - view.mean()) / deviation, size]).astype(np.float32), side


def _region(levels: NDArray, box: Box | None) -> NDArray[np.float32]:
    """Luminance of the square around the box, moved and cut to lie inside the picture, in levels of 0..255."""
    picture = np.asarray(levels)
    if picture.ndim not in (2, 3) or (picture.ndim == 3 and picture.shape[2] not in (1, 3, 4)):
        raise UnsupportedImage(f"expected levels (H, W) or (H, W, 1, 3 or 4), got {picture.shape}")
    if picture.dtype not in (np.uint8, np.uint16):
        raise UnsupportedImage(f"expected uint8 or uint16 levels, got {picture.dtype}; convert with to_levels")
    height, width = picture.shape[:2]
    x0, y0, x1, y1 = (0.0, 0.0, float(width), float(height)) if box is None else box
    side = max(x1 - x0, y1 - y0)
    left = _start((x0 + x1 - side) / 2, side, width)
    top = _start((y0 + y1 - side) / 2, side, height)
    count = max(1, round(side))
    region = picture[top : top + count, left : left + count].astype(np.float32)
    if picture.dtype == np.uint16:
        region /= 257
    if region.ndim == 3 and region.shape[2] >= 3:
        return region[:, :, :3] @ np.array([0.299, 0.587, 0.114], np.float32)
    return region.reshape(region.shape[:2])


def _start(wanted: float, side: float, length: int) -> int:
    return round(max(0.0, min(wanted, length - side)))


@functools.cache
def _estimator() -> BlurEstimator:
    network = BlurEstimator()
    try:
        network.load_state_dict({key: value.float() for key, value in load_file(ESTIMATOR).items()})
    except Exception as error:
        raise WeightsError(f"{ESTIMATOR}: the bundled blur estimator cannot be read ({error})") from error
    return network.eval().requires_grad_(False)
