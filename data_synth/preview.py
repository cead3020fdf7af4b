"""A sheet to look at: paths, kernels and degraded faces at every rung of blur."""

from collections.abc import Sequence
from dataclasses import replace

import cv2
import numpy as np
import torch

from data_synth.config import DegradeConfig
from data_synth.degrade import Degrade
from data_synth.kernel import rasterise
from deblur.images import to_levels, to_tensor

RUNGS_PX = (0.0, 3.0, 5.0, 9.0, 13.0, 17.0, 21.0, 29.0, 37.0, 49.0)
_LABEL_PX, _GAP_PX = 18, 4
_MODES = (("uniform", 0.0, 0.0), ("rolling", 1.0, 0.0), ("subject", 0.0, 1.0))  # name, shares of the two others


def draw_sheet(
    faces: Sequence[np.ndarray],
    config: DegradeConfig,
    seed: int = 0,
    rungs_px: Sequence[float] = RUNGS_PX,
) -> np.ndarray:
    """Draws paths, kernels and degraded faces, one column a rung.

    Args:
        faces: Square (S, S, 3) uint8 pictures of one size.
        config: The degradation.
        seed: Draws of the whole sheet.
        rungs_px: Blur extents, px.

    Returns:
        (H, W, 3) uint8 RGB. Rows: paths, kernels (brightness by square root), and for every face its blur
        with a camera that shifts, with one that also rolls, and with a subject that moves alone.
    """
    side = faces[0].shape[0]
    count = len(rungs_px)
    extents = torch.tensor(list(rungs_px), dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    seeds = torch.randint(1 << 62, (count,), generator=generator)
    rows: list[tuple[str, list[np.ndarray]]] = []
    for mode, rotation, subject in _MODES:
        degrade = Degrade(replace(config, bank_size=0, rotation_share=rotation, subject_share=subject))
        if not rows:
            points = degrade.draw_paths(seeds)[0].paths * extents[:, None, None]
            rows.append(("path, px", [_draw_path(p, side) for p in points.numpy()]))
            rows.append(("kernel", [_draw_kernel(p, side) for p in points]))
        for face in faces:
            sharp = to_tensor(face)[None].expand(count, -1, -1, -1)
            blurred, _ = degrade(sharp, extent_px=extents, seeds=seeds)
            rows.append((mode, [to_levels(picture, np.uint8) for picture in blurred]))
    return _lay_out(rows, [f"{extent:g} px" for extent in rungs_px], side)


def _draw_path(points: np.ndarray, side: int) -> np.ndarray:
    """The path at the picture's own scale, dark at its start and red at its end."""
    canvas = np.full((side, side, 3), 255, dtype=np.uint8)
    places = [(float(x) + side / 2, float(y) + side / 2) for x, y in points.T]
    for i in range(len(places) - 1):
        ends = [(round(x * 16), round(y * 16)) for x, y in places[i : i + 2]]
        shade = i / len(places)
        cv2.line(canvas, ends[0], ends[1], (int(220 * shade), 40, 60), 1, cv2.LINE_AA, shift=4)
    return canvas


def _draw_kernel(points: torch.Tensor, side: int) -> np.ndarray:
    kernel = rasterise(points[None])[0].numpy()
    shown = np.sqrt(kernel / kernel.max())
    canvas = np.zeros((side, side), dtype=np.float32)
    size = min(side, kernel.shape[0])
    cut, start = (kernel.shape[0] - size) // 2, (side - size) // 2
    canvas[start : start + size, start : start + size] = shown[cut : cut + size, cut : cut + size]
    return np.repeat((canvas * 255).astype(np.uint8)[..., None], 3, axis=2)


def _lay_out(rows: list[tuple[str, list[np.ndarray]]], heads: list[str], side: int) -> np.ndarray:
    pitch = side + _GAP_PX
    left = 64
    height, width = _LABEL_PX + len(rows) * pitch, left + len(heads) * pitch
    sheet = np.full((height, width, 3), 244, dtype=np.uint8)
    for column, head in enumerate(heads):
        _write(sheet, head, left + column * pitch + 2, _LABEL_PX - 5)
    for row, (label, cells) in enumerate(rows):
        top = _LABEL_PX + row * pitch
        _write(sheet, label, 4, top + side // 2)
        for column, cell in enumerate(cells):
            start = left + column * pitch
            sheet[top : top + side, start : start + side] = cell
    return sheet


def _write(sheet: np.ndarray, text: str, x: int, y: int) -> None:
    cv2.putText(sheet, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (30, 30, 30), 1, cv2.LINE_AA)
