"""Pictures that stand in for faces."""

from pathlib import Path

import cv2
import numpy as np


def picture(seed: int, height: int = 48, width: int = 40) -> np.ndarray:
    """Smooth colours with an edge in them, (height, width, 3) uint8."""
    rng = np.random.default_rng(seed)
    small = rng.integers(30, 226, (5, 5, 3), dtype=np.uint8)
    levels = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)
    cv2.circle(levels, (width // 2, height // 2), height // 4, rng.integers(0, 256, 3).tolist(), -1)
    return levels


def write_picture(path: Path, levels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), levels)
