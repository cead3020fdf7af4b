"""Blur of single pictures on the CPU, through OpenCV: a sum over the few pixels that a path touches.

A camera path of 20 px touches some 70 of the 400 pixels of its box. OpenCV skips the others, but turns to a Fourier
transform of its own, slow for colour, when the kernel has 130 pixels or more: kernels are cut into tiles below that.
Long paths over small pictures are cheaper by one Fourier transform of a good size.
"""

from collections.abc import Sequence

import cv2
import numpy as np

_TILE_AREA = 129  # what OpenCV sums directly
_TILE_SIDE = 11
_TILE_TAPS = 4.0  # what a tile costs on top of its taps, in taps
_TRANSFORM_TAPS = 81.0  # what the transforms of a picture cost, in taps over the transform's pixels


def convolve(picture: np.ndarray, kernel: np.ndarray, out: np.ndarray, *, add: bool = False) -> None:
    """Blurs a picture by a kernel.

    Args:
        picture: (H, W, C) float32. What lies beyond its border is the reflection of what lies within.
        kernel: (K, K) float32, K odd, its middle pixel at zero shift.
        out: (H, W, C) float32, contiguous, not the picture itself: takes the result.
        add: Add to what `out` holds, rather than replace it.
    """
    ys, xs = np.nonzero(kernel)
    if not len(ys):
        if not add:
            out.fill(0.0)
        return
    top, left, middle = int(ys.min()), int(xs.min()), kernel.shape[0] // 2
    tight = kernel[top : int(ys.max()) + 1, left : int(xs.max()) + 1]
    tiles = _tiles(tight.shape, ys - top, xs - left)
    height, width = picture.shape[:2]
    sides = [_transform_side(length + reach - 1) for length, reach in zip((height, width), tight.shape, strict=True)]
    direct = (len(ys) + _TILE_TAPS * len(tiles)) * height * width < _TRANSFORM_TAPS * sides[0] * sides[1]
    padded = _padded(picture, top - middle, left - middle, tight.shape)
    if direct:
        _sum_tiles(padded, tight, tiles, out, add)
    else:
        _transform(padded, tight, sides, out, add)


def _padded(picture: np.ndarray, top: int, left: int, reach: tuple[int, ...]) -> np.ndarray:
    """All that shifts of (top, left) and further, as far as the kernel reaches, can see of a picture."""
    before = (top + reach[0] - 1, left + reach[1] - 1)  # the largest shifts, down and to the right
    pads = (max(0, before[0]), max(0, -top), max(0, before[1]), max(0, -left))
    mode = cv2.BORDER_REFLECT_101 if max(pads) < min(picture.shape[:2]) else cv2.BORDER_REPLICATE
    padded = cv2.copyMakeBorder(picture, *pads, mode).reshape(
        picture.shape[0] + pads[0] + pads[1], picture.shape[1] + pads[2] + pads[3], -1
    )
    first = (pads[0] - before[0], pads[2] - before[1])
    height, width = picture.shape[0] + reach[0] - 1, picture.shape[1] + reach[1] - 1
    return padded[first[0] : first[0] + height, first[1] : first[1] + width]


def _tiles(shape: tuple[int, ...], ys: np.ndarray, xs: np.ndarray) -> list[tuple[slice, slice]]:
    """Tiles of a kernel in which there is something, of at most _TILE_AREA pixels each."""
    height = min(shape[0], _TILE_SIDE if shape[1] > _TILE_SIDE else _TILE_AREA // shape[1])
    width = min(shape[1], _TILE_AREA // height)
    columns = -(-shape[1] // width)
    cells = sorted(set((ys // height * columns + xs // width).tolist()))
    corners = [(cell // columns * height, cell % columns * width) for cell in cells]
    return [(slice(y, y + height), slice(x, x + width)) for y, x in corners]


def _sum_tiles(
    padded: np.ndarray, kernel: np.ndarray, tiles: list[tuple[slice, slice]], out: np.ndarray, add: bool
) -> None:
    height, width, channels = out.shape
    for rows, columns in tiles:
        tile = kernel[rows, columns]
        # A tile's shifts count backwards: what moves down by 3 is read 3 rows further up.
        top = kernel.shape[0] - rows.start - tile.shape[0]
        left = kernel.shape[1] - columns.start - tile.shape[1]
        seen = padded[top : top + height + tile.shape[0] - 1, left : left + width + tile.shape[1] - 1]
        turned = np.ascontiguousarray(tile[::-1, ::-1])
        part = cv2.filter2D(seen, -1, turned, anchor=(0, 0), borderType=cv2.BORDER_CONSTANT)
        part = part.reshape(*seen.shape[:2], channels)[:height, :width]
        if add:
            np.add(out, part, out=out)
        else:
            np.copyto(out, part)
            add = True


def _transform(padded: np.ndarray, kernel: np.ndarray, sides: list[int], out: np.ndarray, add: bool) -> None:
    height, width, channels = out.shape
    spectrum = np.zeros(sides, np.float32)
    spectrum[: kernel.shape[0], : kernel.shape[1]] = kernel
    cv2.dft(spectrum, spectrum)  # in place, as below
    top, left = kernel.shape[0] - 1, kernel.shape[1] - 1
    room = (0, sides[0] - padded.shape[0], 0, sides[1] - padded.shape[1])
    planes = []
    for plane in cv2.split(padded):
        wide = cv2.copyMakeBorder(plane, *room, cv2.BORDER_CONSTANT)
        cv2.mulSpectrums(cv2.dft(wide, wide), spectrum, 0, wide)
        cv2.dft(wide, wide, cv2.DFT_INVERSE | cv2.DFT_SCALE | cv2.DFT_REAL_OUTPUT)
        planes.append(wide[top : top + height, left : left + width])
    if add:
        np.add(out, cv2.merge(planes).reshape(out.shape), out=out)
    elif channels == 1:
        out[..., 0] = planes[0]
    else:
        cv2.merge(planes, out)


def _transform_side(length: int) -> int:
    """Smallest multiple of 16 >= length without prime factors above 7: what transforms are quick at."""
    side = -(-length // 16) * 16
    while True:
        rest = side
        for prime in (2, 3, 5, 7):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return side
        side += 16


def turn(picture: np.ndarray, angle_rad: float) -> np.ndarray:
    """A picture read at positions turned about its centre; beyond its border, the border's own colour.

    Args:
        picture: (H, W, C) float32.
        angle_rad: From x towards y.

    Returns:
        (H, W, C) float32.
    """
    height, width = picture.shape[:2]
    x, y = (width - 1) / 2.0, (height - 1) / 2.0
    cos, sin = float(np.cos(angle_rad)), float(np.sin(angle_rad))
    matrix = np.array([[cos, -sin, x - cos * x + sin * y], [sin, cos, y - sin * x - cos * y]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    turned = cv2.warpAffine(picture, matrix, (width, height), flags=flags, borderMode=cv2.BORDER_REPLICATE)
    return turned.reshape(picture.shape)


def convolve_turned(picture: np.ndarray, angles_rad: Sequence[float], kernels: np.ndarray, out: np.ndarray) -> None:
    """Sum of a picture turned by several angles, each turned picture blurred by its own kernel.

    Args:
        picture: (H, W, C) float32.
        angles_rad: N angles.
        kernels: (N, K, K) float32.
        out: (H, W, C) float32, contiguous, not the picture itself: takes the result.
    """
    used = [i for i in range(len(kernels)) if kernels[i].any()]
    for i in used:
        convolve(turn(picture, angles_rad[i]), kernels[i], out, add=i != used[0])
