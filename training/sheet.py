"""A sheet of pictures: blurred, restored and sharp side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

GAP_PX = 4
COLUMNS = 2  # of triples, so that the sheet is not a tower


def make_sheet(blurred: Sequence[Tensor], restored: Sequence[Tensor], sharp: Sequence[Tensor]) -> np.ndarray:
    """Arranges triples in rows, at 1:1.

    Args:
        blurred: pictures, each (3, H, W) uint8, of any sizes.
        restored: one for each.
        sharp: one for each.

    Returns:
        (H, W, 3) uint8.
    """
    triples = list(zip(blurred, restored, sharp, strict=True))
    rows = [triples[i : i + COLUMNS] for i in range(0, len(triples), COLUMNS)]
    strips = [_beside([_beside(list(triple), 1) for triple in row], 3 * GAP_PX) for row in rows]
    width = max(strip.shape[1] for strip in strips)
    padded = [np.pad(s, ((0, GAP_PX), (0, width - s.shape[1]), (0, 0)), constant_values=255) for s in strips]
    return np.concatenate(padded)


def _beside(pictures: Sequence[Tensor | np.ndarray], gap_px: int) -> np.ndarray:
    arrays = [p if isinstance(p, np.ndarray) else p.permute(1, 2, 0).numpy() for p in pictures]
    height = max(a.shape[0] for a in arrays)
    return np.concatenate(
        [np.pad(a, ((0, height - a.shape[0]), (0, gap_px), (0, 0)), constant_values=255) for a in arrays], 1
    )


def pick(count: int, wanted: int) -> list[int]:
    """Indices of up to `wanted` pictures out of `count`, evenly spread."""
    return [int(i) for i in np.linspace(0, count - 1, min(wanted, count)).round()]
