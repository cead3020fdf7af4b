"""What each do-no-harm limit costs and saves: `python -m scripts.harm_curve PAIRS [PAIRS ...]`.

Every pair (blurred/ and sharp/ below each PAIRS) is restored with all limits off. Then, for each limit and a ladder of
values, the table says what share of the faces is restored, the mean PSNR gain, and the share of pictures made worse by
more than 0.05 dB, if a face beyond the limit is left as it was.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import deblur
import deblur.weights
from deblur.harm import Limits, colour_shift, landmark_shift
from deblur.images import decode, to_tensor
from deblur.metrics import psnr

OFF = Limits(least_extent=0.0, confidence_drop=math.inf, landmark_shift=math.inf, colour_shift=math.inf)
LADDERS = {
    "least_extent": (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07),
    "confidence_drop": (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, math.inf),
    "landmark_shift": (0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, math.inf),
    "colour_shift": (0.01, 0.02, 0.03, 0.04, 0.05, 0.07, math.inf),
}


@dataclass(frozen=True)
class Case:
    """One pair with one face, restored without limits."""

    gain_db: float
    least_extent: float
    confidence_drop: float
    landmark_shift: float
    colour_shift: float


def main() -> None:
    """Measures and prints the curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="+", type=Path)
    parser.add_argument("--weights", default="default")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    restorer = deblur.Restorer(deblur.weights.load_weights(options.weights), device=options.device, harm=OFF)
    cases = [
        case
        for root in options.pairs
        for path in sorted((root / "blurred").iterdir())
        if (case := measure(restorer, path, root / "sharp" / path.name)) is not None
    ]
    print(f"{len(cases)} pictures in which the detector finds a face before restoration\n")
    for name, ladder in LADDERS.items():
        print(table(cases, name, ladder))


def measure(restorer: deblur.Restorer, blurred: Path, sharp: Path) -> Case | None:
    """Restores one picture; None where no face is found in it."""
    picture, truth = decode(blurred), decode(sharp).levels
    result = restorer.restore(picture.levels)
    if not result.faces or result.faces[0].before is None:
        return None
    first = result.faces[0]
    assert first.before is not None
    before, after = _psnr(picture.levels, truth), _psnr(result.image, truth)
    mask = np.ones(picture.levels.shape[:2], np.float32)
    return Case(
        gain_db=after - before,
        least_extent=(first.extent_px or 0.0) / first.before.width_px,
        confidence_drop=first.before.score - (first.after.score if first.after else 0.0),
        landmark_shift=landmark_shift(first.before, first.after) if first.after else math.inf,
        colour_shift=colour_shift(picture.levels, result.image, mask),
    )


def table(cases: Sequence[Case], name: str, ladder: Sequence[float]) -> str:
    """One limit's ladder: share restored, mean gain, share made worse."""
    restored: Callable[[Case, float], bool] = (
        (lambda case, limit: case.least_extent >= limit)
        if name == "least_extent"
        else (lambda case, limit: getattr(case, name) <= limit)
    )
    lines = [f"{name:<16} {'restored':>9} {'mean gain dB':>13} {'made worse':>11} {'gain given up':>14}"]
    for limit in ladder:
        gains = np.array([c.gain_db if restored(c, limit) else 0.0 for c in cases])
        kept = [c for c in cases if not restored(c, limit)]
        lost = sum(max(c.gain_db, 0.0) for c in kept) / len(cases)
        share = 1 - len(kept) / len(cases)
        lines.append(f"{limit:<16g} {share:>9.3f} {gains.mean():>13.3f} {(gains < -0.05).mean():>11.3f} {lost:>14.3f}")
    return "\n".join(lines) + "\n"


def _psnr(levels: np.ndarray, sharp: np.ndarray) -> float:
    value = float(psnr(to_tensor(levels)[None], to_tensor(sharp)[None], data_range=1.0)[0])
    return min(value, 99.0)


if __name__ == "__main__":
    main()
