"""The camera after the lens: light and stored values, highlights, noise, mosaic; all on batches."""

import functools
import math

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# IEC 61966-2-1 (sRGB): the linear toe, and where it ends in stored values.
_TOE_SLOPE, _TOE_END, _OFFSET, _GAMMA = 12.92, 0.04045, 0.055, 2.4
_BAND_VALUES = 1 << 15  # worked on at a time by the processor, in its cache


def to_linear(stored: Tensor) -> Tensor:
    """SRGB values to linear light (IEC 61966-2-1), any shape, [0, 1] -> [0, 1]."""
    # Curve above the toe plus line below it, each held at the toe's end on the other's side: no branches.
    # exp(g log x): a third of the time of pow, equal to a few units in the last place.
    curve = stored.clamp_min(_TOE_END).add_(_OFFSET).div_(1.0 + _OFFSET).log_().mul_(_GAMMA).exp_()
    return curve.add_(stored.sub(_TOE_END).clamp_max_(0.0), alpha=1.0 / _TOE_SLOPE)


def to_stored(linear: Tensor) -> Tensor:
    """Linear light to sRGB values (IEC 61966-2-1), any shape, [0, 1] -> [0, 1]."""
    end = _TOE_END / _TOE_SLOPE
    curve = linear.clamp_min(end).log_().mul_(1.0 / _GAMMA).add_(math.log(1.0 + _OFFSET)).exp_()
    return curve.add_(linear.clamp_max(end), alpha=_TOE_SLOPE).sub_(_OFFSET + _TOE_END)


@functools.lru_cache(maxsize=2)
def _table(linear: bool) -> np.ndarray:
    """(256,) float32: what an 8-bit level stands for."""
    stored = torch.arange(256, dtype=torch.float32).div_(255.0)
    return (to_linear(stored) if linear else stored).numpy()


def read(sharp: Tensor, *, linear: bool) -> Tensor:
    """A picture as numbers to work on: a new float32 tensor, on the CPU as it lies in memory channels last.

    Args:
        sharp: (B, 3, H, W), float32 in [0, 1] or uint8.
        linear: Linear light, rather than stored values.
    """
    on_cpu = sharp.device.type == "cpu"
    if on_cpu:
        sharp = sharp.contiguous(memory_format=torch.channels_last)
    if sharp.dtype == torch.uint8 and on_cpu:
        return shown(sharp.permute(0, 2, 3, 1).numpy(), linear=linear)
    if sharp.dtype == torch.uint8:
        return torch.from_numpy(_table(linear)).to(sharp.device)[sharp.long()]
    sharp = sharp.float()
    return to_linear(sharp) if linear else sharp.clone(memory_format=torch.preserve_format)


def levels(stored: Tensor) -> np.ndarray:
    """Stored values (B, 3, H, W) in [0, 1], on the CPU, to 8-bit levels (B, H, W, 3)."""
    pixels = stored.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).numpy()
    return cv2.convertScaleAbs(pixels.reshape(-1, pixels.shape[2] * 3), alpha=255.0).reshape(pixels.shape)


def shown(levels: np.ndarray, *, linear: bool = False, out: np.ndarray | None = None) -> Tensor:
    """8-bit levels (B, H, W, 3) to stored values or linear light, float32 (B, 3, H, W), channels last in memory."""
    values = np.empty(levels.shape, np.float32) if out is None else out
    cv2.LUT(levels.reshape(-1, levels.shape[2] * 3), _table(linear), values.reshape(-1, levels.shape[2] * 3))
    return torch.from_numpy(values).permute(0, 3, 1, 2)


def raise_highlights(linear: Tensor, gain: Tensor, start: float) -> Tensor:
    """Gives clipped highlights back the light that the file lost, so that their streaks stay bright.

    Args:
        linear: (B, 3, H, W) float32 linear light.
        gain: (B,) float32 >= 1: the factor at full white; 1 leaves the row untouched.
        start: Linear level of the brightest channel from which light is raised, smoothly.

    Returns:
        (B, 3, H, W) float32, above 1 where raised.
    """
    ramp = ((linear.amax(1, keepdim=True) - start) / (1.0 - start)).clamp(0.0, 1.0)
    return linear * ramp.square_().mul_(gain[:, None, None, None] - 1.0).add_(1.0)


def linear_noise_levels(sigma: Tensor, shot_share: Tensor) -> tuple[Tensor, Tensor]:
    """Shot gain a and read variance b of linear light from a deviation stated at stored mid-grey.

    Args:
        sigma: (B,) float32, standard deviation at stored value 0.5, stored units.
        shot_share: (B,) float32 in [0, 1], the part of that variance that is shot noise.

    Returns:
        a and b, (B,) each, of variance = a x + b (Foi et al., IEEE TIP 2008, eq. 2).
    """
    grey = 0.5
    linear_grey = ((grey + _OFFSET) / (1.0 + _OFFSET)) ** _GAMMA
    slope = _GAMMA / (1.0 + _OFFSET) * ((grey + _OFFSET) / (1.0 + _OFFSET)) ** (_GAMMA - 1.0)
    variance = (sigma * slope) ** 2
    return shot_share * variance / linear_grey, (1.0 - shot_share) * variance


def add_noise(values: Tensor, shot: Tensor, read: Tensor, noise: Tensor) -> Tensor:
    """Adds Poisson-Gaussian noise in its normal approximation.

    Args:
        values: (B, C, H, W) float32, at least 0.
        shot: (B,) float32, a of variance = a x + b.
        read: (B,) float32, b.
        noise: (B, C, H, W) float32, standard normal.

    Returns:
        (B, C, H, W) float32, not clipped.
    """
    variance = values * shot[:, None, None, None]  # first, so that it lies in memory as the values do
    variance.add_(read[:, None, None, None])
    return variance.sqrt_().mul_(noise).add_(values)


def noisy_levels(light: np.ndarray, shot: float, read: float, noise: np.ndarray) -> np.ndarray:
    """`add_noise`, `to_stored` and `levels` in one, of a single picture on the CPU.

    A third of their time: a few rows at a time, each step writing where the last one did, all stays in the cache.

    Args:
        light: (H, W, 3) float32; clipped to [0, 1], in place.
        shot: a of variance = a x + b.
        read: b.
        noise: (H, W, 3) float32, standard normal.

    Returns:
        (H, W, 3) uint8.
    """
    result = np.empty(light.shape, np.uint8)
    rows = max(1, _BAND_VALUES // light[0].size)
    for top in range(0, len(light), rows):
        band = slice(top, top + rows)
        _noisy_band(light[band], shot, read, noise[band], result[band])
    return result


def _noisy_band(light: np.ndarray, shot: float, read: float, noise: np.ndarray, out: np.ndarray) -> None:
    np.clip(light, 0.0, 1.0, out=light)
    seen = cv2.addWeighted(light, shot, light, 0.0, read)
    np.sqrt(seen, out=seen)
    seen *= noise
    seen += light
    np.maximum(seen, np.float32(0.0), out=seen)  # white is clipped when it is rounded
    end = np.float32(_TOE_END / _TOE_SLOPE)
    curve = np.maximum(seen, end)
    cv2.log(curve, curve)
    cv2.addWeighted(curve, 1.0 / _GAMMA, curve, 0.0, math.log(1.0 + _OFFSET), curve)
    cv2.exp(curve, curve)
    np.minimum(seen, end, out=seen)
    cv2.scaleAdd(seen, _TOE_SLOPE, curve, curve)
    cv2.convertScaleAbs(curve, out, alpha=255.0, beta=-255.0 * (_OFFSET + _TOE_END))


@functools.lru_cache(maxsize=8)
def mosaic_sites(height: int, width: int, device: torch.device) -> Tensor:
    """RGGB sites: (3, H, W) float32, 1 where the sensor sees that colour."""
    odd_y = (torch.arange(height, device=device) % 2)[:, None].bool()
    odd_x = (torch.arange(width, device=device) % 2)[None, :].bool()
    return torch.stack([~odd_y & ~odd_x, odd_y ^ odd_x, odd_y & odd_x]).float()


def demosaic(raw: Tensor) -> Tensor:
    """Bilinear demosaicing of an RGGB mosaic.

    Args:
        raw: (B, 3, H, W) float32, each site holding its own colour and 0 elsewhere.

    Returns:
        (B, 3, H, W) float32; every missing value is the mean of its nearest neighbours of that colour.
    """
    sums = _tent(raw).mul_(_inverse_weights(raw.shape[2], raw.shape[3], raw.device))
    # What a site saw itself is 0 in its sum's weights.
    return sums.add_(raw)


@functools.lru_cache(maxsize=8)
def _inverse_weights(height: int, width: int, device: torch.device) -> Tensor:
    """(3, H, W): one over the sum of the sites around, which makes borders right; 0 at the sites themselves."""
    sites = mosaic_sites(height, width, device)
    weights = _tent(sites[None])[0]
    return torch.where((sites > 0) | (weights == 0), 0.0, 1.0 / weights.clamp_min(1e-6))


def _tent(images: Tensor) -> Tensor:
    """Sums of every pixel's neighbourhood (B, C, H, W), weighted 1, 2, 1 along both axes; 0 beyond the border."""
    wide = F.pad(images, (1, 1, 1, 1))
    wide = wide[..., :-2].add(wide[..., 2:]).add_(wide[..., 1:-1], alpha=2.0)
    return wide[..., :-2, :].add(wide[..., 2:, :]).add_(wide[..., 1:-1, :], alpha=2.0)
