"""Blur itself: uniform over the picture, rolling with the camera, or of the subject alone."""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data_synth import direct
from data_synth.kernel import place, rasterise, rasterise_layers

# Rows are blurred in groups of like extent: a row at 8 px must not pay for the padding of one at 48 px.
_GROUP_EDGES_PX = (0.0, 12.0, 24.0, 36.0, 64.0, 128.0, 256.0)
_CPU_EDGES_PX = (0.0, 64.0, 128.0, 256.0)  # where every picture is blurred on its own, kernels alone are grouped
_TURN_STEP_PX = 2.0  # between turned pictures, a quarter of the side away; between them the blur is interpolated
_TURNS = (2, 3, 4, 6, 8, 12, 16, 24, 32)


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
        (B, C, H, W) float32; on the CPU as it lies in memory channels last. What lies beyond the border is the
        reflection of what lies within.
    """
    kernels = rasterise(points_px)
    if images.device.type == "cpu":
        result = torch.empty_like(images, memory_format=torch.channels_last)
        for picture, kernel, out in zip(pictures_of(images), kernels.numpy(), pictures_of(result), strict=True):
            direct.convolve(picture, kernel, out)
        return result
    return _FourierSum(images, kernels.shape[-1] // 2).add(images, kernels).result()


def pictures_of(images: Tensor) -> np.ndarray:
    """(B, C, H, W) as a contiguous array (B, H, W, C): a view where the batch lies channels last, else a copy."""
    return images.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).numpy()


class _FourierSum:
    """Sums convolutions of batches like `images` (B, C, H, W) with kernels of one radius, on any device."""

    def __init__(self, images: Tensor, radius: int) -> None:
        self.radius, self.size = radius, images.shape[-2:]
        self.padded = [_fast_length(length + 2 * radius) for length in self.size]
        self.spectrum: Tensor | None = None

    def add(self, images: Tensor, kernels: Tensor) -> "_FourierSum":
        spectrum = torch.fft.rfft2(pad_edges(images, self.radius), s=self.padded)
        spectrum.mul_(torch.fft.rfft2(kernels, s=self.padded)[:, None])
        self.spectrum = spectrum if self.spectrum is None else self.spectrum.add_(spectrum)
        return self

    def result(self) -> Tensor:
        assert self.spectrum is not None
        first = 2 * self.radius
        # Axis by axis: irfft2 copies its input first, and most rows of the result are not wanted.
        kept = torch.fft.ifft(self.spectrum, dim=-2)[..., first : first + self.size[0], :]
        return torch.fft.irfft(kept, n=self.padded[1])[..., first : first + self.size[1]]


def size_group(extent_px: Tensor) -> Tensor:
    """Class of extents (n,) that are blurred together, (n,) int64: 0 for no blur."""
    edges = _GROUP_EDGES_PX if extent_px.device.type != "cpu" else _CPU_EDGES_PX
    return torch.bucketize(extent_px, torch.tensor(edges, device=extent_px.device))


def blur_uniform(images: Tensor, paths: Tensor, extent_px: Tensor) -> Tensor:
    """Blurs each picture by its unit path at its extent; rows of extent 0 come back untouched.

    Args:
        images: (B, C, H, W) float32.
        paths: (B, 2, T) float32 of unit extent.
        extent_px: (B,) float32, >= 0.

    Returns:
        (B, C, H, W) float32.
    """
    result = images.clone()
    for rows, points in shifts(paths, extent_px):
        result[rows] = convolve(images[rows], points)
    return result


def shifts(paths: Tensor, extent_px: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows (n,) int64 of like extent, those of extent 0 left out, and their paths (n, 2, P) in px."""
    group = size_group(extent_px)
    for value in torch.unique(group).tolist():
        rows = (group == value).nonzero(as_tuple=True)[0]
        if value:
            yield rows, place(paths[rows], extent_px[rows])


def blur_rolling(images: Tensor, paths: Tensor, extent_px: Tensor, roll: Tensor) -> Tensor:
    """Averages what is seen while the camera shifts along its path and rolls about the centre.

    The picture is turned by a few angles; each turned picture is blurred by that part of the path during which the
    camera stood near the angle, shared between neighbouring angles linearly.

    Args:
        images: (B, C, H, W) float32.
        paths: (B, 2, T) float32 of unit extent: the shift.
        extent_px: (B,) float32, extent of the shift at the centre.
        roll: (B, T) float32, radians. Its mean is taken out, as that of the path is, so that blurred and
            sharp stay registered everywhere.

    Returns:
        (B, C, H, W) float32.
    """
    result = torch.empty_like(images)
    for rows, angles, kernels in rolls(paths, extent_px, roll, min(images.shape[-2:])):
        part = images[rows]
        if images.device.type == "cpu":
            for picture, radians, layers, row in zip(pictures_of(part), angles.tolist(), kernels, rows, strict=True):
                out = np.empty_like(picture)
                direct.convolve_turned(picture, radians, layers.numpy(), out)
                result[row] = torch.from_numpy(out).permute(2, 0, 1)
        else:
            total = _FourierSum(part, kernels.shape[-1] // 2)
            for angle, kernel in zip(angles.unbind(1), kernels.unbind(1), strict=True):
                total.add(_turn(part, angle), kernel)
            result[rows] = total.result()
    return result


def rolls(paths: Tensor, extent_px: Tensor, roll: Tensor, side: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Angles by which pictures are turned, and the kernel that goes with each; see `blur_rolling`.

    Args:
        paths: (B, 2, T) float32 of unit extent.
        extent_px: (B,) float32.
        roll: (B, T) float32, radians.
        side: Shorter side of the pictures, px.

    Yields:
        Rows (n,) int64 with as many angles each, angles (n, N) in radians, kernels (n, N, K, K) whose sum has mass 1.
    """
    reach = side / 4.0  # most of a face lies within
    roll = roll - roll.mean(1, keepdim=True)
    least, most = roll.amin(1), roll.amax(1)
    # A row's angles follow from its own path, never from its neighbours': the same row, the same pixels.
    steps = torch.tensor([turns - 1.0 for turns in _TURNS[:-1]], device=roll.device)
    group = torch.bucketize((most - least) * reach / _TURN_STEP_PX, steps) * 64 + size_group(extent_px)
    for value in torch.unique(group).tolist():
        rows = (group == value).nonzero(as_tuple=True)[0]
        turns = _TURNS[value // 64]
        first, last = least[rows, None], most[rows, None]
        angles = torch.lerp(first, last, torch.linspace(0, 1, turns, device=roll.device))
        points = place(paths[rows], extent_px[rows])
        at = (roll[rows] - first) * ((turns - 1) / (last - first).clamp_min(1e-9))
        at = F.interpolate(at[:, None], size=points.shape[2], mode="linear", align_corners=True)[:, 0]
        yield rows, angles, rasterise_layers(points, at, turns)


def _turn(images: Tensor, angle: Tensor) -> Tensor:
    """`direct.turn` for batches on any device: angle (B,)."""
    height, width = images.shape[-2:]
    cos, sin = angle.cos(), angle.sin()
    rows = [torch.stack([cos, -sin * (height / width), torch.zeros_like(cos)], 1)]
    rows.append(torch.stack([sin * (width / height), cos, torch.zeros_like(cos)], 1))
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


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
    depth = _near_mean(_near_mean(hidden, width // 2).mT, width // 2).mT
    background = torch.lerp(images, fill, hidden * (2.0 * depth - 1.0).clamp_(0.0, 1.0))
    return moving[:, :3] + background * (1.0 - moving[:, 3:])


def _near_mean(images: Tensor, radius: int) -> Tensor:
    """Mean of every pixel and those up to `radius` px beside it in its row, as far as there are any: (B, C, H, W)."""
    window = 2 * radius + 1
    sums = F.pad(torch.stack([images, torch.ones_like(images)]), (radius + 1, radius)).cumsum(-1)
    total, count = sums[..., window:] - sums[..., :-window]
    return total / count


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
