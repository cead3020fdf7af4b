"""The camera after the lens: light and stored values, highlights, noise, mosaic; all on batches."""

import torch
import torch.nn.functional as F
from torch import Tensor

# IEC 61966-2-1 (sRGB): the linear toe, and where it ends in stored values.
_TOE_SLOPE, _TOE_END, _OFFSET, _GAMMA = 12.92, 0.04045, 0.055, 2.4


def to_linear(stored: Tensor) -> Tensor:
    """SRGB values to linear light (IEC 61966-2-1), any shape, [0, 1] -> [0, 1]."""
    # Curve above the toe plus line below it, each held at the toe's end on the other's side: no branches.
    # exp(g log x): a third of the time of pow, equal to a few units in the last place.
    curve = stored.clamp_min(_TOE_END).add_(_OFFSET).div_(1.0 + _OFFSET).log_().mul_(_GAMMA).exp_()
    return curve.add_(stored.sub(_TOE_END).clamp_max_(0.0), alpha=1.0 / _TOE_SLOPE)


def to_stored(linear: Tensor) -> Tensor:
    """Linear light to sRGB values (IEC 61966-2-1), any shape, [0, 1] -> [0, 1]."""
    end = _TOE_END / _TOE_SLOPE
    curve = linear.clamp_min(end).log_().mul_(1.0 / _GAMMA).exp_().mul_(1.0 + _OFFSET).sub_(_OFFSET)
    return curve.add_(linear.sub(end).clamp_max_(0.0), alpha=_TOE_SLOPE)


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
        values: (B, C, H, W) float32.
        shot: (B,) float32, a of variance = a x + b.
        read: (B,) float32, b.
        noise: (B, C, H, W) float32, standard normal.

    Returns:
        (B, C, H, W) float32, not clipped.
    """
    variance = values.clamp_min(0.0) * shot[:, None, None, None] + read[:, None, None, None]
    return variance.sqrt_().mul_(noise).add_(values)


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
    tent = torch.tensor([1.0, 2.0, 1.0], device=raw.device)
    kernel = (tent[:, None] * tent).expand(3, 1, 3, 3)
    sites = mosaic_sites(raw.shape[2], raw.shape[3], raw.device)[None]
    # Dividing by the sites' own sum makes borders right and the weights colour by colour.
    weight = F.conv2d(sites, kernel, padding=1, groups=3)
    return torch.where(sites > 0, raw, F.conv2d(raw, kernel, padding=1, groups=3) / weight.clamp_min(1e-6))
