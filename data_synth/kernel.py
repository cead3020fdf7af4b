"""Paths to point-spread functions: sub-pixel, mass 1, centred on their centroid.

A PSF is the time that a point of light spends over each pixel. Every sample of a path is shared between its
four pixels bilinearly, which keeps the mass at 1 and the centroid exactly where the path's mean is: at the
kernel's centre, so that blurred and sharp stay registered.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from data_synth.streams import derive_seeds
from data_synth.trajectory import sample_trajectories
from deblur.errors import OptionError

_CHUNK = 256  # kernels at a time: what fits the processor's cache


def place(paths: Tensor, extent_px: Tensor) -> Tensor:
    """Scales unit paths to their extents and refines them so that no gap opens between samples.

    Args:
        paths: (n, 2, T) float32 of unit extent.
        extent_px: (n,) float32, >= 0.

    Returns:
        (n, 2, P) float32 in px, P >= T, mean position 0.
    """
    # Four samples a pixel of extent leave room for paths several times longer than their bounding box.
    factor = max(1, math.ceil(4.0 * float(extent_px.max()) / paths.shape[2])) if len(extent_px) else 1
    if factor > 1:
        paths = F.interpolate(paths, scale_factor=factor, mode="linear", align_corners=True)
    placed = paths * extent_px[:, None, None]
    return placed.sub_(placed.mean(2, keepdim=True))


def radius_px(points_px: Tensor) -> int:
    """Smallest kernel radius that holds every point of (n, 2, P) and its four pixels, px."""
    if not points_px.numel():
        return 1
    least, most = points_px.aminmax()
    return math.floor(max(-float(least), float(most))) + 1


def rasterise(points_px: Tensor, size: int | None = None) -> Tensor:
    """Rasterises centred points as square kernels.

    Args:
        points_px: (n, 2, P) float32, x then y, mean position 0.
        size: Odd side of the kernels, px; by default the smallest that holds every point.

    Returns:
        (n, size, size) float32, each >= 0 with sum 1, its centroid on the middle pixel.

    Raises:
        OptionError: The size is even or does not hold the points.
    """
    needed = 2 * radius_px(points_px) + 1
    size = needed if size is None else size
    if size % 2 == 0 or size < needed:
        raise OptionError(f"size: expected an odd number >= {needed} for these extents, got {size}")
    kernels = torch.zeros(len(points_px), size, size, device=points_px.device)
    for part, canvas in zip(points_px.split(_CHUNK), kernels.split(_CHUNK), strict=True):
        _splat(part, canvas)
    return kernels


def rasterise_layers(points_px: Tensor, at: Tensor, layers: int) -> Tensor:
    """Rasterises the parts of paths that belong to each of several layers, such as angles of a roll.

    Args:
        points_px: (n, 2, P) float32, mean position 0.
        at: (n, P) float32 in 0..layers - 1: every sample is shared linearly between the two layers next to it.
        layers: Number of layers, at least 2.

    Returns:
        (n, layers, size, size) float32 >= 0; the layers of a path add up to what `rasterise` makes of it.
    """
    size = 2 * radius_px(points_px) + 1
    canvas = torch.zeros(len(points_px), layers * size, size, device=points_px.device)
    lower = at.floor().clamp_(0, layers - 2)
    later = at - lower
    for layer, share in ((lower, 1.0 - later), (lower + 1.0, later)):
        _splat(points_px, canvas, share / points_px.shape[2], layer * size)
    return canvas.view(-1, layers, size, size)


def _splat(points_px: Tensor, canvas: Tensor, share: Tensor | float | None = None, down: Tensor | None = None) -> None:
    """Adds each point's share of time to its four pixels of canvas (n, rows, size), in place.

    The rows of a canvas of several layers follow each other: `down` (n, P) says where a point's layer begins.
    """
    count, _, size = canvas.shape
    share = 1.0 / points_px.shape[2] if share is None else share
    points = points_px + size // 2
    corner = points.floor()
    left, above = points.sub_(corner).unbind(1)  # distance past the upper left pixel, 0..1
    column, row = corner.unbind(1)
    index = torch.add(column, row if down is None else row + down, alpha=size).long()
    below = above * share
    above = share - below
    right = 1.0 - left
    flat = canvas.view(count, -1)  # the other corners are the same index in a shifted view
    flat.scatter_add_(1, index, right * above)
    flat[:, 1:].scatter_add_(1, index, left * above)
    flat[:, size:].scatter_add_(1, index, right * below)
    flat[:, size + 1 :].scatter_add_(1, index, left * below)


class KernelBank(torch.nn.Module):
    """A store of unit-extent paths, rasterised at the extent asked for.

    Drawing a path costs far more than rasterising it; training draws its paths once. The paths are a
    buffer: `bank.to(device)` moves them.

    Args:
        count: Number of paths.
        seed: Master seed of the bank.
        mix: Weights of the families walk, smooth and line.

    Raises:
        OptionError: The count is below 1, or the mix is not usable.
    """

    paths: Tensor
    family: Tensor
    path_parameters: Tensor

    def __init__(self, count: int = 20_000, seed: int = 0, mix: Sequence[float] = (0.4, 0.45, 0.15)) -> None:
        super().__init__()
        if count < 1:
            raise OptionError(f"count: expected at least 1 path, got {count}")
        drawn = sample_trajectories(derive_seeds(seed, torch.arange(count)), mix)
        self.register_buffer("paths", drawn.paths, persistent=False)
        self.register_buffer("family", drawn.family, persistent=False)
        self.register_buffer("path_parameters", drawn.parameters, persistent=False)

    def __len__(self) -> int:
        return len(self.paths)

    def points(self, index: Tensor, extent_px: Tensor) -> Tensor:
        """Paths in px: index (n,) int64, extent_px (n,) float32 -> (n, 2, P) float32, mean 0."""
        return place(self.paths[index], extent_px)

    def kernels(self, index: Tensor, extent_px: Tensor, size: int | None = None) -> Tensor:
        """Kernels of the paths chosen.

        Args:
            index: (n,) int64 into the bank.
            extent_px: (n,) float32, >= 0.
            size: Odd side, px; by default the smallest that holds them all.

        Returns:
            (n, size, size) float32, mass 1, centred on the centroid.

        Raises:
            OptionError: The size is even or too small.
        """
        return rasterise(self.points(index, extent_px), size)


def sample_kernels(
    count: int,
    extent_px: Tensor | float,
    seed: int = 0,
    size: int | None = None,
    mix: Sequence[float] = (0.4, 0.45, 0.15),
) -> Tensor:
    """Draws fresh kernels.

    Args:
        count: Number of kernels.
        extent_px: Extent of all, or (count,) one each; px, >= 0.
        seed: Master seed; kernel i is the same whatever the count.
        size: Odd side, px; by default the smallest that holds them all.
        mix: Weights of the families walk, smooth and line.

    Returns:
        (count, size, size) float32, >= 0, mass 1, centred on the centroid.

    Raises:
        OptionError: An extent is negative, the size is even or too small, or the mix is not usable.
    """
    extents = torch.as_tensor(extent_px, dtype=torch.float32).expand(count)
    if count and float(extents.min()) < 0:
        raise OptionError(f"extent_px: expected values >= 0, got {float(extents.min())}")
    drawn = sample_trajectories(derive_seeds(seed, torch.arange(count)), mix)
    return rasterise(place(drawn.paths, extents), size)
