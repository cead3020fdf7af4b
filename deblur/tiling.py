"""How a large picture is cut into tiles. Free of torch."""

from __future__ import annotations

TILE_PX = 1024  # longest side of a tile's core: with its halo 1.6 times the work of the core alone, 2.3 times at 512
# Context around a tile's core; a multiple of every generator's grid. By `python -m benchmarks.tiling` a tile differs
# from the whole by up to 6 levels with 96 px and by 0.2 with 128, though in theory 280 px reach a pixel.
HALO_PX = 128
GRID_PX = 32  # inputs are extended to multiples of this, which keeps the number of different sizes small


def extended(length: int) -> int:
    """A side of an input: the next multiple of the grid."""
    return -(-length // GRID_PX) * GRID_PX


def cuts(length: int) -> list[tuple[int, int]]:
    """Start and end of the cores along one side: about equal parts, as a sliver would cost a halo of its own."""
    count = -(-length // TILE_PX)
    step = min(TILE_PX, extended(-(-length // count)))
    return [(start, min(length, start + step)) for start in range(0, length, step)]


def with_halo(start: int, end: int, length: int) -> tuple[int, int]:
    """A core's start and end with the context that the picture has on either side."""
    return max(0, start - HALO_PX), min(length, end + HALO_PX)
