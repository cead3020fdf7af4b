"""The main job on the bundled samples: restore, measure, draw. `make demo` runs it.

`python -m scripts.demo [--out demo]` writes the restored pictures, a sheet of before and after, and the table of the
quality metric.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

import deblur
from deblur.images import Picture, decode, encode, to_tensor
from deblur.metrics import psnr, ssim

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
CELL_PX = 256
FACE_MARGIN = 0.45


@dataclass(frozen=True)
class Row:
    """One sample before and after."""

    name: str
    blurred: np.ndarray
    restored: np.ndarray
    sharp: np.ndarray
    result: deblur.Restoration


def main() -> None:
    """Restores the samples, prints the table, writes the sheet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"))
    parser.add_argument("--weights", default="default")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    restorer = deblur.load(options.weights, device=options.device)
    rows = [_restore(restorer, path, options.out) for path in sorted((SAMPLES / "blurred").iterdir())]
    print(f"weights {restorer.weights.name}, device {restorer.device}, {time.monotonic() - started:.1f} s\n")
    print(table(rows))
    sheet = options.out / "before_after.png"
    sheet.write_bytes(encode(Picture(levels=draw(rows)), "PNG"))
    print(f"\nrestored pictures in {options.out}/, before and after at a glance in {sheet}")


def _restore(restorer: deblur.Restorer, path: Path, out: Path) -> Row:
    content = path.read_bytes()
    result = restorer.restore(content)
    (out / path.name).write_bytes(result.image if result.changed else content)
    blurred, sharp = decode(content).levels, decode(SAMPLES / "sharp" / path.name).levels
    return Row(path.name, blurred, result.picture.levels, sharp, result)


def table(rows: list[Row]) -> str:
    """The quality metric of each sample and over all."""
    head = f"{'picture':<18} {'faces':>9} {'mean confidence':>17} {'PSNR dB':>15} {'SSIM':>15}  what was done"
    lines = [head, "-" * len(head)]
    for row in rows:
        before, after = row.result.faces_before, row.result.faces_after
        count = max(len(before), len(after))
        b, a = (f"{sum(f.score for f in found) / count:.3f}" if count else "-" for found in (before, after))
        p, q = (_psnr(x, row.sharp) for x in (row.blurred, row.restored))
        s, t = (_ssim(x, row.sharp) for x in (row.blurred, row.restored))
        lines.append(
            f"{row.name:<18} {len(before):>3} -> {len(after):<2} {b:>7} -> {a:<6} {p:>6} -> {q:<5} {s:>6} -> {t:<5} "
            f" {_story(row.result)}"
        )
    found_before, found_after = (sum(len(getattr(r.result, k)) for r in rows) for k in ("faces_before", "faces_after"))
    lines += ["-" * len(head), f"{'all':<18} {found_before:>3} -> {found_after:<2}"]
    return "\n".join(lines)


def _story(result: deblur.Restoration) -> str:
    if result.mode == "whole":
        return "whole picture restored"
    restored = sum(f.restored for f in result.faces)
    kept = sorted({f.kept_original for f in result.faces if f.kept_original})
    if result.kept_original and not kept:
        return f"left as it was: {result.kept_original}"
    return f"{restored} of {len(result.faces)} faces restored" + (f"; left alone: {', '.join(kept)}" if kept else "")


def _psnr(levels: np.ndarray, sharp: np.ndarray) -> str:
    value = float(psnr(to_tensor(levels)[None], to_tensor(sharp)[None], data_range=1.0)[0])
    return f"{value:.2f}" if np.isfinite(value) else "inf"


def _ssim(levels: np.ndarray, sharp: np.ndarray) -> str:
    return f"{float(ssim(to_tensor(levels)[None], to_tensor(sharp)[None], data_range=1.0)[0]):.3f}"


def draw(rows: list[Row]) -> np.ndarray:
    """A sheet with one line a face: blurred, restored, sharp."""
    lines = [_heading(("blurred", "restored", "sharp"))]
    for row in rows:
        for face in row.result.faces or (None,):
            box = _square(face, *row.blurred.shape[:2])
            lines.append(np.hstack([_cell(x, box) for x in (row.blurred, row.restored, row.sharp)]))
    return np.vstack(lines)


def _square(face: deblur.FaceResult | None, height: int, width: int) -> tuple[int, int, int, int]:
    found = face and (face.before or face.after)
    if not found:
        return 0, 0, width, height
    x0, y0, x1, y1 = found.box
    half = (0.5 + FACE_MARGIN) * max(x1 - x0, y1 - y0)
    cx, cy = (x0 + x1) / 2, (y0 + y1) / 2
    return max(0, int(cx - half)), max(0, int(cy - half)), min(width, int(cx + half)), min(height, int(cy + half))


def _cell(levels: np.ndarray, box: tuple[int, int, int, int]) -> np.ndarray:
    x0, y0, x1, y1 = box
    crop = levels[y0:y1, x0:x1]
    scale = (CELL_PX - 8) / max(crop.shape[:2])
    size = max(1, round(crop.shape[1] * scale)), max(1, round(crop.shape[0] * scale))
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    cell = np.full((CELL_PX, CELL_PX, 3), 255, np.uint8)
    top, left = (CELL_PX - size[1]) // 2, (CELL_PX - size[0]) // 2
    cell[top : top + size[1], left : left + size[0]] = cv2.resize(crop, size, interpolation=method)
    return cell


def _heading(words: tuple[str, ...]) -> np.ndarray:
    strip = np.full((28, CELL_PX * len(words), 3), 255, np.uint8)
    for i, word in enumerate(words):
        cv2.putText(strip, word, (i * CELL_PX + 6, 20), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (40, 40, 40), 1, cv2.LINE_AA)
    return strip


if __name__ == "__main__":
    main()
