"""Resampling by the mean over windows, for detection: exact, and at a cost free of the windows' size."""

import functools

import cv2
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
ROWS_AT_ONCE = 24


class AreaSampler:
    """A picture ready to be resampled, whole or at boxes.

    The window of output pixel i of n over a side of N pixels spans floor(i N / n) to ceil((i + 1) N / n),
    which is what torch calls area interpolation; sums come from an integral image. Large pictures are
    first shrunk by a whole factor that the finest level asked for does not notice; boxes stay in pixels
    of the whole picture.

    Args:
        picture: (H, W, 3) uint8.
        finest_scale: the finest scale at which `level` will be called.
    """

    def __init__(self, picture: NDArray[np.uint8], finest_scale: float):
        self.height, self.width = picture.shape[:2]
        self._picture = picture = np.ascontiguousarray(picture)
        self._shrink = max(1, int(0.65 / finest_scale))
        if self._shrink > 1:
            size = max(1, self.width // self._shrink), max(1, self.height // self._shrink)
            picture = np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)
        self._ratio_x, self._ratio_y = picture.shape[1] / self.width, picture.shape[0] / self.height
        self._sums = _sums(picture)

    def level(self, height: int, width: int) -> NDArray[np.float32]:
        """The whole picture at height x width: (height, width, 3) in 0..255."""
        return _resized(self._sums, height, width)

    def crops(self, boxes: NDArray[np.float32], side_px: int) -> NDArray[np.float32]:
        """Crops at (n, 4) boxes, cut to the picture: (n, side_px, side_px, 3) in 0..255."""
        x0, y0, x1, y1 = clipped_boxes(boxes, self.height, self.width).T
        out = np.empty((len(boxes), side_px, side_px, 3), np.float32)
        small = np.zeros(len(boxes), bool)
        if self._shrink > 1:
            small = np.minimum(x1 - x0, y1 - y0) < side_px * self._shrink
        for i in np.flatnonzero(small):
            out[i] = _resized(_sums(self._picture[y0[i] : y1[i], x0[i] : x1[i]]), side_px, side_px)
        large = ~small
        out[large] = _window_means(
            self._sums,
            np.floor(x0[large] * self._ratio_x).astype(np.int64),
            np.floor(y0[large] * self._ratio_y).astype(np.int64),
            np.ceil(x1[large] * self._ratio_x).astype(np.int64),
            np.ceil(y1[large] * self._ratio_y).astype(np.int64),
            side_px,
        )
        return out


def _sums(picture: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Integral image, (H + 1, W + 1, 3). It may wrap beyond 8 MP: differences stay exact."""
    return np.asarray(cv2.integral(picture, sdepth=cv2.CV_32S), np.int32)


def _resized(sums: NDArray[np.int32], height: int, width: int) -> NDArray[np.float32]:
    """The whole of an integral image at height x width."""
    top, bottom = _all_windows(sums.shape[0] - 1, height)
    left, right = _all_windows(sums.shape[1] - 1, width)
    level = np.empty((height, width, 3), np.float32)
    for start in range(0, height, ROWS_AT_ONCE):  # few enough to stay in the cache: four times as fast
        here = slice(start, start + ROWS_AT_ONCE)
        rows = sums[bottom[here]]
        rows -= sums[top[here]]
        total = rows.take(right, axis=1)
        total -= rows.take(left, axis=1)
        area = (bottom - top)[here, None, None] * (right - left)[None, :, None]
        np.divide(total, area, out=level[here], dtype=np.float32, casting="unsafe")
    return level


@functools.lru_cache(maxsize=512)
def _all_windows(size: int, count: int) -> tuple[Indices, Indices]:
    starts, stops = _windows(np.zeros(1, np.int64), np.full(1, size), count)
    return starts[0], stops[0]


def _window_means(
    sums: NDArray[np.int32], x0: Indices, y0: Indices, x1: Indices, y1: Indices, side_px: int
) -> NDArray[np.float32]:
    top, bottom = (v[:, :, None] for v in _windows(y0, y1, side_px))
    left, right = (v[:, None, :] for v in _windows(x0, x1, side_px))
    total = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
    area = np.asarray((bottom - top) * (right - left), np.float32)
    return total.astype(np.float32) / area[..., None]


def _windows(start: Indices, stop: Indices, count: int) -> tuple[Indices, Indices]:
    """First and one-past-last index of each of `count` windows over start..stop: two (n, count) arrays."""
    steps = np.arange(count + 1)
    size = (stop - start)[:, None]
    return start[:, None] + steps[:-1] * size // count, start[:, None] - (-steps[1:] * size // count)


def clipped_boxes(boxes: NDArray[np.float32], height: int, width: int) -> Indices:
    """Boxes as half-open pixel ranges inside the picture; the networks' coordinates start at 1."""
    whole = np.trunc(boxes).astype(np.int64)
    return np.stack(
        [
            np.maximum(whole[:, 0], 1) - 1,
            np.maximum(whole[:, 1], 1) - 1,
            np.minimum(whole[:, 2], width),
            np.minimum(whole[:, 3], height),
        ],
        axis=1,
    )
