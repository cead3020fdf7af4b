"""Blur itself: uniform over the picture, rolling with the camera, or of the subject alone."""

import torch
import torch.nn.functional as F
from torch import Tensor

from data_synth.kernel import place, rasterise

# Rows are blurred in groups of like extent: a row at 8 px must not pay for the padding of one at 48 px.
_GROUP_EDGES_PX = (0.0, 12.0, 24.0, 36.0, 64.0, 128.0, 256.0)
_FRAME_STEP_PX = 2.0  # between averaged frames, along the path; bilinear sampling bridges it
_FRAMES = (8, 12, 16, 24, 32, 48, 64)


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
        points_px: (B, 2, P) float32, mean position 0.

    Returns:
        (B, C, H, W) float32. What lies beyond the border is the reflection of what lies within.
    """
    kernels = rasterise(points_px)
    radius = kernels.shape[-1] // 2
    height, width = images.shape[-2:]
    rows, columns = _fast_length(height + 2 * radius), _fast_length(width + 2 * radius)
    spectrum = torch.fft.rfft2(pad_edges(images, radius), s=(rows, columns))
    spectrum.mul_(torch.fft.rfft2(kernels, s=(rows, columns))[:, None])
    # Axis by axis: irfft2 copies its input first, and most rows of the result are not wanted.
    kept = torch.fft.ifft(spectrum, dim=-2)[..., 2 * radius : 2 * radius + height, :]
    return torch.fft.irfft(kept, n=columns)[..., 2 * radius : 2 * radius + width]


def size_group(extent_px: Tensor) -> Tensor:
    """Class of extents (n,) that are blurred together, (n,) int64: 0 for no blur."""
    return torch.bucketize(extent_px, torch.tensor(_GROUP_EDGES_PX, device=extent_px.device))


def blur_uniform(images: Tensor, paths: Tensor, extent_px: Tensor) -> Tensor:
    """Blurs each picture by its unit path at its extent; rows of extent 0 come back untouched.

    Args:
        images: (B, C, H, W) float32.
        paths: (B, 2, T) float32 of unit extent.
        extent_px: (B,) float32, >= 0.

    Returns:
        (B, C, H, W) float32.
    """
    group = size_group(extent_px)
    present = torch.unique(group).tolist()
    if len(present) == 1:
        return images if present == [0] else convolve(images, place(paths, extent_px))
    result = torch.empty_like(images)
    for index in present:
        rows = (group == index).nonzero(as_tuple=True)[0]
        part = images[rows]
        result[rows] = part if index == 0 else convolve(part, place(paths[rows], extent_px[rows]))
    return result


def blur_rolling(images: Tensor, paths: Tensor, extent_px: Tensor, roll: Tensor) -> Tensor:
    """Averages frames seen while the camera shifts along its path and rolls about the centre.

    Args:
        images: (B, C, H, W) float32.
        paths: (B, 2, T) float32 of unit extent: the shift.
        extent_px: (B,) float32, extent of the shift at the centre.
        roll: (B, T) float32, radians. Its mean is taken out, as that of the path is, so that blurred and
            sharp stay registered everywhere.

    Returns:
        (B, C, H, W) float32.
    """
    reach = min(images.shape[-2:]) / 4.0  # most of a face lies within
    shift = paths * extent_px[:, None, None]
    moved = torch.cat([shift, roll[:, None] * reach], 1)
    length_px = moved.diff(dim=2).norm(dim=1).sum(1)
    # A row's frames follow from its own path, never from its neighbours': the same row, the same pixels.
    group = torch.bucketize(
        length_px / _FRAME_STEP_PX, torch.tensor(_FRAMES[:-1], dtype=torch.float32, device=images.device)
    )
    result = torch.empty_like(images)
    for index in torch.unique(group).tolist():
        rows = (group == index).nonzero(as_tuple=True)[0]
        result[rows] = _average(images[rows], shift[rows], roll[rows], _FRAMES[index])
    return result


def _average(images: Tensor, shift: Tensor, roll: Tensor, frames: int) -> Tensor:
    height, width = images.shape[-2:]
    path = torch.cat([shift, roll[:, None]], 1)  # (B, 3, T)
    path = F.interpolate(path, size=frames, mode="linear", align_corners=True)
    dx, dy, angle = (path - path.mean(2, keepdim=True)).unbind(1)  # (B, frames) each
    cos, sin = angle.cos(), angle.sin()
    y = torch.arange(height, device=images.device) + 0.5 - height / 2.0
    x = torch.arange(width, device=images.device) + 0.5 - width / 2.0
    # What moves by +d and turns is read at R (p - d): so the centre moves by d itself, whatever the roll.
    # The grid is the sum of what a column and what a row adds, in units of grid_sample: half a side is 1.
    across, down = x - dx[..., None], y - dy[..., None]  # (B, frames, W), (B, frames, H)
    scale = torch.tensor([2.0 / width, 2.0 / height], device=images.device)
    columns = torch.stack([cos[..., None] * across, sin[..., None] * across], -1) * scale
    rows = torch.stack([-sin[..., None] * down, cos[..., None] * down], -1) * scale
    # As complex numbers: one vectorised sum makes both coordinates.
    columns, rows = torch.view_as_complex(columns), torch.view_as_complex(rows)
    total = torch.zeros_like(images)
    for column, row in zip(columns.unbind(1), rows.unbind(1), strict=True):
        grid = torch.view_as_real(row[:, :, None] + column[:, None, :])
        total += F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return total.div_(frames)


def blur_subject(images: Tensor, paths: Tensor, extent_px: Tensor, matte: Tensor) -> Tensor:
    """Moves what the matte covers before a background that stands still.

    Args:
        images: (B, 3, H, W) float32.
        paths: (B, 2, T) float32 of unit extent.
        extent_px: (B,) float32.
        matte: (B, 1, H, W) float32 in [0, 1]: 1 on the subject.

    Returns:
        (B, 3, H, W) float32: the blurred subject over its background (Porter and Duff 1984, "over").
    """
    moving = blur_uniform(torch.cat([images * matte, matte], 1), paths, extent_px)
    # What the subject uncovers was never seen: the surroundings' mean colour stands in for it.
    outside = 1.0 - matte
    around = (images * outside).sum((2, 3), keepdim=True) / outside.sum((2, 3), keepdim=True).clamp_min(1e-3)
    # At an eighth of the size: only a soft field of colour is wanted, and full-size means cost too much.
    small_size = (max(1, images.shape[2] // 8), max(1, images.shape[3] // 8))
    small = F.adaptive_avg_pool2d(torch.cat([images * outside, outside], 1), small_size)
    small = F.avg_pool2d(small, 5, 1, 2, count_include_pad=False)
    fill = (small[:, :3] + 0.02 * around) / (small[:, 3:] + 0.02)
    fill = F.interpolate(fill, size=images.shape[-2:], mode="bilinear", align_corners=False)
    # Seen pixels stay as they are: where nothing moves, matte and background add up to the picture again.
    # Further in, the fill takes over gradually: a hard edge would show through a long blur.
    hidden = (matte >= 1.0).float()
    width = 2 * (min(images.shape[-2:]) // 24) + 1
    depth = F.avg_pool2d(hidden, width, 1, width // 2, count_include_pad=False)
    background = torch.lerp(images, fill, hidden * (2.0 * depth - 1.0).clamp_(0.0, 1.0))
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
