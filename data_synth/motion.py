"""Blur itself: uniform over the picture, rolling with the camera, or of the subject alone."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from data_synth.kernel import place, radius_px, splat

# Rows are blurred in groups of like extent: a row at 8 px must not pay for the padding of one at 48 px.
_GROUP_EDGES_PX = (0.0, 12.0, 24.0, 36.0, 64.0, 128.0, 256.0)
_FRAME_STEP_PX = 1.5  # between averaged frames; bilinear sampling bridges this without ripple
_FRAMES = (9, 65)


def _fast_length(length: int) -> int:
    """Smallest even number >= length whose prime factors are 2, 3 and 5: what FFTs are quick at."""
    length += length % 2
    while True:
        rest = length
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return length
        length += 2


def pad_edges(images: Tensor, radius: int) -> Tensor:
    """Pads (B, C, H, W) by reflection, by repetition where the picture is too small to reflect."""
    height, width = images.shape[-2:]
    mode = "reflect" if radius < min(height, width) else "replicate"
    return F.pad(images, (radius, radius, radius, radius), mode=mode)


def convolve(images: Tensor, points_px: Tensor) -> Tensor:
    """Blurs each picture by the PSF of its own path.

    Args:
        images: (B, C, H, W) float32.
        points_px: (B, P, 2) float32, mean position 0.

    Returns:
        (B, C, H, W) float32. What lies beyond the border is the reflection of what lies within.
    """
    radius = radius_px(points_px) + 1
    height, width = images.shape[-2:]
    rows, columns = _fast_length(height + 2 * radius), _fast_length(width + 2 * radius)
    padded = pad_edges(images, radius)
    spectrum = torch.fft.rfft2(padded, s=(rows, columns))
    kernels = torch.fft.rfft2(splat(points_px, rows, columns))
    blurred = torch.fft.irfft2(spectrum.mul_(kernels[:, None]), s=(rows, columns))
    return blurred[..., radius : radius + height, radius : radius + width]


def blur_uniform(images: Tensor, paths: Tensor, extent_px: Tensor) -> Tensor:
    """Blurs each picture by its unit path at its extent; rows of extent 0 come back untouched.

    Args:
        images: (B, C, H, W) float32.
        paths: (B, T, 2) float32 of unit extent.
        extent_px: (B,) float32, >= 0.

    Returns:
        (B, C, H, W) float32.
    """
    edges = torch.tensor(_GROUP_EDGES_PX, device=extent_px.device)
    group = torch.bucketize(extent_px, edges)
    result = images.clone()
    for index in torch.unique(group).tolist():
        if index == 0:
            continue
        rows = (group == index).nonzero(as_tuple=True)[0]
        result[rows] = convolve(images[rows], place(paths[rows], extent_px[rows]))
    return result


def blur_rolling(images: Tensor, paths: Tensor, extent_px: Tensor, roll: Tensor) -> Tensor:
    """Averages frames seen while the camera shifts along its path and rolls about the centre.

    Args:
        images: (B, C, H, W) float32.
        paths: (B, T, 2) float32 of unit extent: the shift.
        extent_px: (B,) float32, extent of the shift at the centre.
        roll: (B, T) float32, radians. Its mean is taken out, as that of the path is, so that blurred and
            sharp stay registered everywhere.

    Returns:
        (B, C, H, W) float32.
    """
    batch, channels, height, width = images.shape
    roll = roll - roll.mean(1, keepdim=True)
    reach = extent_px + math.hypot(height, width) / 2.0 * (roll.amax(1) - roll.amin(1))
    frames = math.ceil(2.0 * float(reach.max()) / _FRAME_STEP_PX) + 1
    frames = min(max(frames, _FRAMES[0]), _FRAMES[1])
    shift = F.interpolate(
        (paths * extent_px[:, None, None]).transpose(1, 2), size=frames, mode="linear", align_corners=True
    )  # (B, 2, frames)
    shift = shift - shift.mean(2, keepdim=True)
    angle = F.interpolate(roll[:, None], size=frames, mode="linear", align_corners=True)[:, 0]
    angle = angle - angle.mean(1, keepdim=True)
    radius = min(math.ceil(float(reach.max())) + 1, min(height, width) - 1)
    padded = pad_edges(images, radius) if radius > 0 else images
    full_h, full_w = padded.shape[-2:]
    y = torch.arange(height, device=images.device, dtype=torch.float32) - (height - 1) / 2.0
    x = torch.arange(width, device=images.device, dtype=torch.float32) - (width - 1) / 2.0
    total = torch.zeros_like(images)
    for cos, sin, dx, dy in zip(
        angle.cos().unbind(1), angle.sin().unbind(1), shift[:, 0].unbind(1), shift[:, 1].unbind(1), strict=True
    ):
        # A picture that moves by +d is read at -d.
        source_x = cos[:, None, None] * x - sin[:, None, None] * y[:, None] - dx[:, None, None]
        source_y = sin[:, None, None] * x + cos[:, None, None] * y[:, None] - dy[:, None, None]
        grid = torch.stack([source_x * (2.0 / (full_w - 1)), source_y * (2.0 / (full_h - 1))], -1)
        total += F.grid_sample(padded, grid, mode="bilinear", padding_mode="border", align_corners=True)
    return total / frames


def blur_subject(images: Tensor, paths: Tensor, extent_px: Tensor, matte: Tensor) -> Tensor:
    """Moves what the matte covers before a background that stands still.

    Args:
        images: (B, 3, H, W) float32.
        paths: (B, T, 2) float32 of unit extent.
        extent_px: (B,) float32.
        matte: (B, 1, H, W) float32 in [0, 1]: 1 on the subject.

    Returns:
        (B, 3, H, W) float32: the blurred subject over its background (Porter and Duff 1984, "over").
    """
    moving = blur_uniform(torch.cat([images * matte, matte], 1), paths, extent_px)
    # What the subject uncovers was never seen: the surroundings' mean colour stands in for it.
    outside = 1.0 - matte
    near = F.avg_pool2d(torch.cat([images * outside, outside], 1), 31, 1, 15, count_include_pad=False)
    around = (images * outside).sum((2, 3), keepdim=True) / outside.sum((2, 3), keepdim=True).clamp_min(1e-3)
    fill = (near[:, :3] + 0.02 * around) / (near[:, 3:] + 0.02)
    background = images * outside + fill * matte
    return moving[:, :3] + background * (1.0 - moving[:, 3:])


def soft_ellipse(height: int, width: int, centre: Tensor, radii: Tensor, softness: float = 0.12) -> Tensor:
    """Soft matte of a head: an ellipse whose edge falls smoothly from 1 to 0.

    Args:
        height: Picture height, px.
        width: Picture width, px.
        centre: (B, 2) float32, x then y, as fractions of width and height.
        radii: (B, 2) float32, likewise.
        softness: Width of the edge as a fraction of the radius.

    Returns:
        (B, 1, H, W) float32 in [0, 1].
    """
    y = (torch.arange(height, device=centre.device) + 0.5) / height
    x = (torch.arange(width, device=centre.device) + 0.5) / width
    across = (x - centre[:, 0:1]) / radii[:, 0:1]
    down = (y - centre[:, 1:2]) / radii[:, 1:2]
    distance = torch.sqrt(across[:, None, :] ** 2 + down[:, :, None] ** 2)
    ramp = ((1.0 + softness - distance) / (2.0 * softness)).clamp(0.0, 1.0)
    return (ramp * ramp * (3.0 - 2.0 * ramp))[:, None]
