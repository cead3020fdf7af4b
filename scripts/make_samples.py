"""Makes samples/: sharp pictures that may be redistributed, and the same blurred by the project's synthesizer.

Run from the project's root: `python -m scripts.make_samples`. The sources come with the scikit-image and
matplotlib wheels; see samples/SOURCES.md.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import cv2
import matplotlib
import numpy as np
import skimage.data
import torch

from data_synth import Degrade, DegradeConfig
from deblur.images import Picture, decode, encode, to_levels, to_tensor

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
# name: blur extent in px of the picture, seed of the degradation
BLUR = {
    "astronaut.jpg": (16.0, 11),
    "hopper.jpg": (26.0, 7),
    "crop.png": (24.0, 3),
    "group.jpg": (12.0, 5),
    "coffee.jpg": (14.0, 2),
}


def main() -> None:
    """Writes samples/sharp, samples/blurred and the seeds."""
    config = dataclasses.replace(DegradeConfig(), subject_share=0.0, jpeg_share=0.0, bank_size=0)
    degrade = Degrade(config)
    used = {}
    for name, levels in sharp_pictures().items():
        extent_px, seed = BLUR[name]
        sharp = to_tensor(levels)[None]
        blurred, drawn = degrade(sharp, torch.tensor([extent_px]), seeds=torch.tensor([seed]))
        write(SAMPLES / "sharp" / name, levels)
        write(SAMPLES / "blurred" / name, to_levels(blurred[0]))
        used[name] = {
            "extent_px": extent_px,
            "seed": seed,
            "noise_sigma": round(float(drawn.noise_sigma), 4),
            "rolling": bool(drawn.roll_strength > 0),
        }
    write(SAMPLES / "blurred" / "already_sharp.jpg", astronaut())
    write(SAMPLES / "sharp" / "already_sharp.jpg", astronaut())
    used["already_sharp.jpg"] = {"extent_px": 0.0}
    (SAMPLES / "blur.json").write_text(json.dumps(used, indent=2) + "\n", encoding="utf-8")


def sharp_pictures() -> dict[str, np.ndarray]:
    """Sharp (H, W, 3) uint8 pictures by name."""
    return {
        "astronaut.jpg": astronaut(),
        "hopper.jpg": hopper(),
        "crop.png": cv2.resize(astronaut()[22:222, 125:325], (128, 128), interpolation=cv2.INTER_AREA),
        "group.jpg": group(),
        "coffee.jpg": skimage.data.coffee()[:400, :600],
    }


def astronaut() -> np.ndarray:
    """Eileen Collins, NASA."""
    return skimage.data.astronaut()


def hopper() -> np.ndarray:
    """Grace Hopper, US Navy."""
    path = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    return decode(path).levels


def group() -> np.ndarray:
    """Both portraits in one picture, three faces of different sizes."""
    first, second = astronaut(), hopper()
    canvas = np.full((640, 1100, 3), (96, 104, 112), np.uint8)
    canvas[64:576, 20:532] = first
    canvas[40:340, 560:816] = cv2.resize(second, (256, 300), interpolation=cv2.INTER_AREA)
    canvas[370:626, 560:816] = cv2.resize(first[:, ::-1], (256, 256), interpolation=cv2.INTER_AREA)
    canvas[120:540, 840:1080] = cv2.resize(second[:, 76:419], (240, 420), interpolation=cv2.INTER_AREA)
    return canvas


def write(path: Path, levels: np.ndarray) -> None:
    """Writes levels in the format of the name."""
    family = {".jpg": "JPEG", ".png": "PNG"}[path.suffix]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(Picture(levels=np.ascontiguousarray(levels)), family, 95))


if __name__ == "__main__":
    main()
