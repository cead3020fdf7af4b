"""What the bare generator gains, in one line a weights file: `python -m scripts.gain PAIRS --weights FILE [FILE ...]`.

No detection, no do-no-harm: every picture of PAIRS/blurred goes through the generator whole, and its PSNR gain over the
input is averaged over all pictures and by band of blur extent. Quick enough to follow a training run with.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import deblur
from deblur.evaluation.pairs import pairs_below
from deblur.images import decode, to_levels, to_tensor
from deblur.metrics import WORSE_DB, psnr

BANDS = {"all": (0, 1e9), "0": (0, 0), "5": (1, 8), "9-17": (9, 17), "21": (18, 24), "25+": (25, 1e9)}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--weights", nargs="+", default=["default"])
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    pairs = pairs_below(options.pairs)
    extents = np.array([pair.known.extent if pair.known else np.nan for pair in pairs])
    blurred = [to_tensor(decode(pair.blurred).levels) for pair in pairs]
    sharp = [to_tensor(decode(pair.sharp).levels) for pair in pairs if pair.sharp]
    print("| weights | pictures seen | " + " | ".join(BANDS) + " | made worse |\n|" + "---|" * (len(BANDS) + 3))
    for name in options.weights:
        restorer = deblur.load(name, device=options.device)
        gains = measure(restorer, blurred, sharp)
        means = [gains[(extents >= low) & (extents <= high)].mean() for low, high in BANDS.values()]
        cells = [f"{mean:+.2f}" for mean in means] + [f"{(gains < -WORSE_DB).mean():.3f}"]
        seen = restorer.weights.metadata.get("pictures_seen", "?")
        print(f"| {Path(name).stem} | {seen} | " + " | ".join(cells) + " |", flush=True)


def measure(restorer: deblur.Restorer, blurred: list[Tensor], sharp: list[Tensor]) -> np.ndarray:
    """PSNR gain in dB of each picture, at 8 bits."""
    restored = [to_tensor(to_levels(r)) for r in restorer.generate(blurred)]
    return np.array([float(_psnr(r, s) - _psnr(b, s)) for r, b, s in zip(restored, blurred, sharp, strict=True)])


def _psnr(picture: Tensor, sharp: Tensor) -> Tensor:
    return psnr(picture[None], sharp[None], data_range=1.0)[0]


if __name__ == "__main__":
    with torch.inference_mode():
        main()
