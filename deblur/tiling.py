"""How a large picture is cut into tiles. Free of torch."""

from __future__ import annotations

TILE_PX = 1536  # longest side of a tile's core: with its halo 1.6 times the work of the core alone, 2.0 times at 1024
# Context around a tile's core; a multiple of every generator's grid. By `python -m benchmarks.tiling` a tile of the
# bundled weights differs from the whole by 12 levels with 128 px, by 0.2 with 192 and by nothing with 224. In theory
# 280 px reach a pixel of theirs; weights that were trained for less time used less.
HALO_PX = 224
GRID_PX = 32  # inputs are extended to multiples of this, which keeps the number of different sizes small


def extended(length: int) -> int:
    """A side of an input: the next multiple of the grid."""
    return -(-length // GRID_PX) * GRID_PX


def cuts(length: int) -> list[tuple[int, int]]:
    """Start and end of the cores along one side: about equal parts, as a sliver would cost a halo of its own."""
    count = -(-length // TILE_PX)
    step = extended(-(-length // count))  # off the grid, a tile would be another picture to the generator
    return [(start, min(length, start + step)) for start in range(0, length, step)]


def with_halo(start: int, end: int, length: int) -> tuple[int, int]:
    """A core's start and end with the context that the picture has on either side."""
    return max(0, start - HALO_PX), min(length, end + HALO_PX)
