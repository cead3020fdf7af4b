"""Where the generator works: regions of a picture, what goes in, and how what comes out is laid back.

A region is cut in the picture's own pixels. Faces get a square from a small set of sides, so that faces of many
pictures share a batch; a picture that is little more than one face is taken whole; pictures without a face are
covered by tiles. The generator's residual (restored minus blurred) is what is laid back, under a feathered mask:
outside the mask every level stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deblur.boxes import Face
from deblur.images import Picture, to_tensor
from deblur.tiling import cuts, extended, with_halo

SIDES_PX = (64, 96, 128, 160, 192, 256, 320, 384, 512)  # of square inputs
CONTEXT = 1.9  # side of a face's region over the longer side of its box
WHOLE_FACE = 2.9  # a picture whose longer side is at most this many face sides is taken whole

FLAT_SPREAD = 2 / 255  # of full scale

Box = tuple[int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class Region:
    """One input of the generator.

    Attributes:
        box: x0, y0, x1, y1 of the pixels that go in, inside the picture.
        core: x0, y0, x1, y1 of what is laid back with full weight; between core and box the weight falls to 0.
        scale: the region is reduced by this factor before the generator; at least 1.
        side: (height, width) of the input, px: the reduced region, extended by reflection.
        face: index of the face that the region is for, or None.
    """

    box: Box
    core: Box
    scale: float
    side: tuple[int, int]
    face: int | None


def face_region(face: Face, index: int, height: int, width: int, scale: float) -> Region:
    """The region of one face in a picture of height x width, reduced by `scale` or more where it is too large."""
    size = max(face.width_px, face.height_px)
    if max(height, width) <= WHOLE_FACE * size:
        scale = max(scale, max(height, width) / SIDES_PX[-1])
        inner = round(height / scale), round(width / scale)
        return Region(
            box=(0, 0, width, height),
            core=(0, 0, width, height),
            scale=scale,
            side=_padded(inner),
            face=index,
        )
    scale = max(scale, CONTEXT * size / SIDES_PX[-1])
    side = next((s for s in SIDES_PX if s * scale >= CONTEXT * size), SIDES_PX[-1])
    span = round(side * scale)
    centre_x, centre_y = (face.box[0] + face.box[2]) / 2, (face.box[1] + face.box[3]) / 2
    x0, x1 = _span(centre_x, span, width)
    y0, y1 = _span(centre_y, span, height)
    feather = max(4, round(0.12 * span))
    core = (
        x0 + feather if x0 > 0 else 0,
        y0 + feather if y0 > 0 else 0,
        x1 - feather if x1 < width else width,
        y1 - feather if y1 < height else height,
    )
    return Region(box=(x0, y0, x1, y1), core=core, scale=scale, side=(side, side), face=index)


def tiles(height: int, width: int) -> Iterator[Region]:
    """Regions that cover a picture: cores side by side, each with its halo."""
    for y0, y1 in cuts(height):
        for x0, x1 in cuts(width):
            top, bottom = with_halo(y0, y1, height)
            left, right = with_halo(x0, x1, width)
            yield Region(
                box=(left, top, right, bottom),
                core=(x0, y0, x1, y1),
                scale=1.0,
                side=_padded((bottom - top, right - left)),
                face=None,
            )


def is_flat(picture: Picture, region: Region) -> bool:
    """Whether a region is of one colour up to noise of a level or two: there is nothing in it to restore."""
    x0, y0, x1, y1 = region.box
    pixels = picture.levels[y0:y1, x0:x1].reshape(-1, 3)
    spread = pixels.max(axis=0).astype(int) - pixels.min(axis=0)
    return bool(spread.max() <= FLAT_SPREAD * picture.max_level)


def region_input(picture: Picture, region: Region) -> Tensor:
    """What the generator gets: (3, *region.side) float32 in [0, 1]."""
    x0, y0, x1, y1 = region.box
    levels, inner = picture.levels[y0:y1, x0:x1], _inner(region)
    if inner == levels.shape[:2]:
        pixels = to_tensor(levels)
    else:  # reduced before the channels are taken apart: a third of the time
        values = np.multiply(levels, np.float32(1 / picture.max_level), dtype=np.float32)
        reduced = cv2.resize(values, (inner[1], inner[0]), interpolation=cv2.INTER_AREA)
        pixels = torch.from_numpy(reduced).permute(2, 0, 1).contiguous()
    return _extend(pixels, region.side)


def lay_back(
    levels: np.ndarray,
    original: np.ndarray,
    region: Region,
    given: Tensor,
    restored: Tensor,
    mask: np.ndarray,
) -> None:
    """Adds the generator's residual to a region, in place, under a mask.

    Args:
        levels: (H, W, 3) integer levels of the whole picture, changed in place.
        original: the picture's levels before anything was laid back.
        region: which part.
        given: (3, h, w) what the generator got.
        restored: (3, h, w) what it gave, unclipped.
        mask: (region height, region width) float32 in [0, 1].
    """
    x0, y0, x1, y1 = region.box
    h, w = _inner(region)
    residual = (restored.float() - given)[:, :h, :w].permute(1, 2, 0).numpy()
    size = (x1 - x0, y1 - y0)
    if (w, h) != size:
        residual = cv2.resize(np.ascontiguousarray(residual), size, interpolation=cv2.INTER_CUBIC)
    peak = float(np.iinfo(levels.dtype).max)
    kept = levels[y0:y1, x0:x1]
    values = kept + peak * mask[..., None] * residual
    # Only what the mask covers is written: the rest must stay equal to the byte.
    np.copyto(kept, np.clip(np.rint(values), 0, peak).astype(levels.dtype), where=mask[..., None] > 0)


def feather(region: Region) -> np.ndarray:
    """(region height, region width) float32: 1 in the core, falling smoothly to 0 at the region's edge."""
    x0, y0, x1, y1 = region.box
    cx0, cy0, cx1, cy1 = region.core
    if region.face is None:
        mask = np.zeros((y1 - y0, x1 - x0), np.float32)
        mask[cy0 - y0 : cy1 - y0, cx0 - x0 : cx1 - x0] = 1
        return mask
    across = _ramp(x1 - x0, cx0 - x0, x1 - cx1)
    down = _ramp(y1 - y0, cy0 - y0, y1 - cy1)
    return np.outer(down, across).astype(np.float32)


def without_overlap(mask: np.ndarray, region: Region, earlier: Sequence[tuple[Region, np.ndarray]]) -> np.ndarray:
    """A mask less what earlier masks cover, so that overlapping faces are not restored twice."""
    x0, y0, x1, y1 = region.box
    left = mask.copy()
    for other, covered in earlier:
        ox0, oy0, ox1, oy1 = other.box
        ax, ay, bx, by = max(x0, ox0), max(y0, oy0), min(x1, ox1), min(y1, oy1)
        if ax < bx and ay < by:
            left[ay - y0 : by - y0, ax - x0 : bx - x0] *= 1 - covered[ay - oy0 : by - oy0, ax - ox0 : bx - ox0]
    return left


def _inner(region: Region) -> tuple[int, int]:
    x0, y0, x1, y1 = region.box
    return (
        min(region.side[0], max(1, round((y1 - y0) / region.scale))),
        min(region.side[1], max(1, round((x1 - x0) / region.scale))),
    )


def _padded(size: tuple[int, int]) -> tuple[int, int]:
    return extended(size[0]), extended(size[1])


def _span(centre: float, span: int, limit: int) -> tuple[int, int]:
    if span >= limit:
        return 0, limit
    start = min(max(0, round(centre - span / 2)), limit - span)
    return start, start + span


def _extend(pixels: Tensor, side: tuple[int, int]) -> Tensor:
    """Reflection to the bottom and right up to a size; sides shorter than the padding are reflected repeatedly."""
    while tuple(pixels.shape[1:]) != side:
        height, width = pixels.shape[1:]
        bottom, right = min(side[0] - height, height - 1), min(side[1] - width, width - 1)
        if bottom <= 0 and right <= 0:
            return F.pad(pixels[None], (0, side[1] - width, 0, side[0] - height), "replicate")[0]
        pixels = F.pad(pixels[None], (0, max(0, right), 0, max(0, bottom)), "reflect")[0]
    return pixels


def _ramp(length: int, start: int, end: int) -> np.ndarray:
    ramp = np.ones(length)
    if start:
        ramp[:start] = _smooth((np.arange(start) + 0.5) / start)
    if end:
        ramp[-end:] = _smooth((np.arange(end) + 0.5) / end)[::-1]
    return ramp


def _smooth(t: np.ndarray) -> np.ndarray:
    return t * t * (3 - 2 * t)
