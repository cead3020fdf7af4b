"""Draws what the weights do not do well: `python -m scripts.failures [--weights NAME] [--out docs/failures.png]`.

Two portraits that may be redistributed, degraded on purpose beyond or beside what the generator was trained on, each
with what `deblur restore` makes of it below.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import torch

import deblur
from data_synth import Degrade, DegradeConfig
from deblur.images import Picture, encode, to_levels, to_tensor
from scripts.make_samples import astronaut, hopper

FACE_PX = 192
SEED = 5


def main() -> None:
    """Degrades, restores, draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", default="default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("docs/failures.png"))
    options = parser.parse_args()
    restorer = deblur.load(options.weights, device=options.device)
    rows = [_heading(list(CASES))]
    for sharp in (_face(astronaut(), 22, 125, 200), _face(hopper(), 20, 96, 330)):
        degraded = [make(sharp) for make in CASES.values()]
        rows += [np.hstack(degraded), np.hstack([restorer.restore(picture).image for picture in degraded])]
    options.out.write_bytes(encode(Picture(levels=np.vstack(rows)), "PNG"))
    print(f"degraded above, restored below: {options.out}")


def _face(levels: np.ndarray, top: int, left: int, side: int) -> np.ndarray:
    crop = levels[top : top + side, left : left + side]
    return cv2.resize(crop, (FACE_PX, FACE_PX), interpolation=cv2.INTER_AREA)


def _motion(extent: float, **changes: float | tuple[float, float]) -> Callable[[np.ndarray], np.ndarray]:
    """Motion of an extent given as a fraction of the picture's side."""
    config = DegradeConfig(
        **{"subject_share": 0.0, "rotation_share": 0.0, "jpeg_share": 0.0, "bank_size": 0} | changes  # type: ignore[arg-type]
    )

    def make(sharp: np.ndarray) -> np.ndarray:
        extents, seeds = torch.tensor([extent * FACE_PX]), torch.tensor([SEED])
        return to_levels(Degrade(config)(to_tensor(sharp)[None], extents, seeds=seeds)[0][0])

    return make


def _dark(sharp: np.ndarray) -> np.ndarray:
    return _motion(0.12, noise_share=1.0, noise_sigma=(0.04, 0.04))((sharp * 0.5).astype(np.uint8))


def _defocus(sharp: np.ndarray) -> np.ndarray:
    disk = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (15, 15)).astype(np.float32)
    return cv2.filter2D(sharp, -1, disk / disk.sum())


def _turned(sharp: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(_motion(0.12)(sharp)[::-1])


CASES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "0.25 of the side": _motion(0.25),
    "0.4 of the side": _motion(0.4),
    "0.6 of the side": _motion(0.6),
    "dark and noisy": _dark,
    "out of focus": _defocus,
    "upside down": _turned,
}


def _heading(words: list[str]) -> np.ndarray:
    strip = np.full((26, FACE_PX * len(words), 3), 255, np.uint8)
    for i, word in enumerate(words):
        place = (i * FACE_PX + 6, 18)
        cv2.putText(strip, word, place, cv2.FONT_HERSHEY_SIMPLEX, 0.5, (40, 40, 40), 1, cv2.LINE_AA)
    return strip


if __name__ == "__main__":
    main()
