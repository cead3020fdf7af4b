"""The value that a decoded picture is, its limits, and the way to tensors and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    import torch

Source: TypeAlias = "bytes | bytearray | memoryview | str | Path | Image.Image | np.ndarray"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is refused from the header, before any pixel is decoded.

    Attributes:
        max_bytes: Largest file, in bytes.
        max_pixels: Largest width times height, times frames for an animation.
        max_side_px: Longest side.
    """

    max_bytes: int = 1 << 30
    max_pixels: int = 200_000_000
    max_side_px: int = 65_535


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A decoded picture and all that has to come back with it.

    Attributes:
        levels: (H, W, 3) uint8 or uint16, upright, RGB in the space of `icc` (sRGB without one).
        alpha: (H, W) of the same dtype, straight (not premultiplied), or None.
        grey: Stored as grey; written as grey again. The three channels of `levels` are equal.
        format: Family of the source: "PNG", "JPEG", "WEBP", "TIFF", "AVIF", "HEIF", "GIF", "BMP" or "PPM".
        lossless: Whether the source was stored without loss (tells the two kinds of WebP apart).
        icc: ICC profile that `levels` are in.
        exif: EXIF as a TIFF block without the "Exif" prefix, orientation 1, without thumbnail.
        xmp: XMP packet.
        dpi: Horizontal and vertical resolution in pixels per inch.
        warnings: What the reader should tell the user: frames left out, metadata dropped.
    """

    levels: np.ndarray
    alpha: np.ndarray | None = None
    grey: bool = False
    format: str = "PNG"
    lossless: bool = True
    icc: bytes | None = None
    exif: bytes | None = None
    xmp: bytes | None = None
    dpi: tuple[float, float] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def height(self) -> int:
        """Rows, px."""
        return int(self.levels.shape[0])

    @property
    def width(self) -> int:
        """Columns, px."""
        return int(self.levels.shape[1])

    @property
    def max_level(self) -> int:
        """255 or 65535: the level that stands for 1.0."""
        return int(np.iinfo(self.levels.dtype).max)

    def with_levels(self, levels: np.ndarray) -> Picture:
        """The same picture with other levels.

        Args:
            levels: (H, W, 3) of the size and dtype of this picture. Where the picture is grey, a tint is
                taken out (luma by Rec. 601; equal channels stay exactly as they are).

        Raises:
            ValueError: Another shape or dtype.
        """
        if levels.shape != self.levels.shape or levels.dtype != self.levels.dtype:
            raise ValueError(
                f"expected levels {self.levels.shape} {self.levels.dtype}, got {levels.shape} {levels.dtype}"
            )
        return replace(self, levels=neutral(levels) if self.grey else levels)


def neutral(levels: np.ndarray) -> np.ndarray:
    """Grey (H, W, 3) levels without tint: luma by Rec. 601; equal channels stay exactly as they are."""
    equal = np.array_equal(levels[..., 0], levels[..., 1]) and np.array_equal(levels[..., 0], levels[..., 2])
    if equal:
        return levels
    import cv2

    luma = cv2.cvtColor(np.ascontiguousarray(levels), cv2.COLOR_RGB2GRAY)
    return np.repeat(luma[..., None], 3, axis=2)


def to_tensor(levels: np.ndarray) -> torch.Tensor:
    """Integer levels as a tensor.

    Args:
        levels: (H, W, 3) uint8 or uint16.

    Returns:
        (3, H, W) float32 on the CPU, contiguous, in [0, 1].

    Raises:
        ValueError: Another shape or dtype.
    """
    import torch

    if levels.ndim != 3 or levels.shape[2] != 3 or levels.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"expected (H, W, 3) uint8 or uint16 levels, got {levels.shape} {levels.dtype}")
    scale = 1.0 / float(np.iinfo(levels.dtype).max)
    planes = np.ascontiguousarray(levels.transpose(2, 0, 1))
    return torch.from_numpy(planes.astype(np.float32)).mul_(scale)


def to_levels(tensor: torch.Tensor, dtype: Any = np.uint8) -> np.ndarray:
    """A tensor as integer levels: clipped, then rounded; never wrapped.

    Args:
        tensor: (3, H, W), any float dtype and device. Values beyond [0, 1] are clipped.
        dtype: numpy.uint8 or numpy.uint16.

    Returns:
        (H, W, 3) of that dtype; `to_levels(to_tensor(x), x.dtype)` equals x.

    Raises:
        ValueError: Another shape or dtype, or a value that is not a number.
    """
    if tensor.ndim != 3 or tensor.shape[0] != 3 or np.dtype(dtype) not in (np.uint8, np.uint16):
        raise ValueError(f"expected (3, H, W) to uint8 or uint16, got {tuple(tensor.shape)} to {np.dtype(dtype)}")
    peak = float(np.iinfo(dtype).max)
    values = tensor.detach().float().clamp(0.0, 1.0).mul(peak).add(0.5).cpu().permute(1, 2, 0).numpy()
    if np.isnan(values).any():
        raise ValueError("expected numbers, got NaN: the generator's output cannot be used")
    return np.ascontiguousarray(values.astype(dtype))  # astype truncates, and 0.5 was added
