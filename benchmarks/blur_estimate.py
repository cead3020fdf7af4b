"""Trains and validates the estimator of blur extent that ships with the library.

    python -m benchmarks.blur_estimate train --faces DIR [DIR ...] -o estimator.safetensors
    python -m benchmarks.blur_estimate validate --pairs DIR [DIR ...]

Training blurs sharp faces with the project's synthesizer (recipe `default`, extents up to 0.4 of the
face's box). A pairs folder holds blurred/, sharp/ and pairs.csv with the columns file and
extent_px_at_128.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tqdm import tqdm

from data_synth import Degrade, DegradeConfig
from deblur.blur import BlurEstimator, estimate_extents, look
from deblur.evaluation.tables import rank_correlation
from deblur.faces import FaceDetector
from deblur.images import decode, to_levels, to_tensor

CROP_PX = 160
BATCH = 48
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
LEAST_FACE_PX, MOST_FACE_PX = 28.0, 130.0
MAX_EXTENT = 0.4  # of the face's box

Sharp = tuple[NDArray[np.uint8], tuple[float, float, float, float]]


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    trains = actions.add_parser("train")
    trains.add_argument("--faces", type=Path, nargs="+", required=True)
    trains.add_argument("--per-folder", type=int, default=800)
    trains.add_argument("--views", type=int, default=12_000)
    trains.add_argument("--steps", type=int, default=4_000)
    trains.add_argument("--seed", type=int, default=0)
    trains.add_argument("-o", "--out", type=Path, required=True)
    validates = actions.add_parser("validate")
    validates.add_argument("--pairs", type=Path, nargs="+", required=True)
    args = parser.parse_args()
    if args.action == "train":
        train(args.faces, args.per_folder, args.views, args.steps, args.seed, args.out)
    else:
        for folder in args.pairs:
            validate(folder)


def train(folders: list[Path], per_folder: int, views: int, steps: int, seed: int, out: Path) -> None:
    """Draws blurred views once, then fits the estimator to them; the same seed gives the same file."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    faces = list(read_faces(folders, per_folder, rng))
    print(f"{len(faces)} sharp faces", flush=True)
    degrade, network = Degrade(DegradeConfig(bank_size=4000)), BlurEstimator()
    batches = [draw_batch(faces, degrade, rng) for _ in tqdm(range(-(-views // BATCH)))]
    seen, known = (torch.cat(part) for part in zip(*batches, strict=True))
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    recent = 0.0
    for step in range(1, steps + 1):
        chosen = torch.randint(len(seen), (BATCH,))
        batch = seen[chosen]
        for axis in (2, 3):  # mirrored blur is as long as it was
            if torch.rand(()) < 0.5:
                batch = batch.flip(axis)
        loss = torch.nn.functional.smooth_l1_loss(network(batch), known[chosen], beta=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        recent = 0.98 * recent + 0.02 * loss.item()
        if step % 250 == 0:
            print(f"step {step}, loss {recent / (1 - 0.98**step):.4f}", flush=True)
    save_file({k: v.half().contiguous() for k, v in network.state_dict().items()}, out)
    print(f"{out}: {out.stat().st_size} bytes")


def read_faces(folders: list[Path], per_folder: int, rng: np.random.Generator) -> Iterator[Sharp]:
    """Sharp pictures with the box of their best face."""
    detector = FaceDetector()
    for folder in folders:
        held_out = test_names(folder)
        files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
        files = [path for path in files if path.name not in held_out]
        chosen = [files[i] for i in rng.permutation(len(files))[:per_folder]]
        pictures = [decode(path).levels for path in chosen]
        for picture, found in zip(pictures, detector.detect_batch(pictures), strict=True):
            if found and max(found[0].width_px, found[0].height_px) >= LEAST_FACE_PX:
                yield picture, found[0].box


def test_names(folder: Path) -> set[str]:
    """Names of the pictures of CelebA's test split, where the folder is a CelebA root."""
    partition = folder / "list_eval_partition.txt"
    if not partition.is_file():
        return set()
    lines = (line.split() for line in partition.read_text(encoding="utf-8").splitlines())
    return {name for name, part in lines if part == "2"}


def draw_batch(
    faces: list[Sharp], degrade: Degrade, rng: np.random.Generator, size: int = BATCH
) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of freshly blurred faces and the logarithms of their extents."""
    sharp, boxes, sides = [], [], []
    for index in rng.integers(0, len(faces), size):
        crop, box = place(*faces[index], rng)
        sharp.append(to_tensor(crop))
        boxes.append(box)
        sides.append(max(box[2] - box[0], box[3] - box[1]))
    relative = np.where(rng.random(size) < 0.15, 0.0, rng.uniform(0, MAX_EXTENT, size))
    extent_px = torch.tensor(relative * np.array(sides), dtype=torch.float32)
    blurred, drawn = degrade(torch.stack(sharp), extent_px=extent_px)
    views, targets = [], []
    for picture, box, extent in zip(blurred, boxes, drawn.extent_px.tolist(), strict=True):
        view = look(to_levels(picture), jittered(box, rng))
        if view is not None:
            views.append(torch.from_numpy(view[0]))
            targets.append(np.log1p(extent * 96 / view[1]))
    return torch.stack(views), torch.tensor(targets, dtype=torch.float32)


def place(
    picture: NDArray[np.uint8], box: tuple[float, float, float, float], rng: np.random.Generator
) -> tuple[NDArray[np.uint8], tuple[float, ...]]:
    """The picture shrunk by chance and put into a square of CROP_PX around its face."""
    side = max(box[2] - box[0], box[3] - box[1])
    factor = min(1.0, float(np.exp(rng.uniform(np.log(LEAST_FACE_PX), np.log(MOST_FACE_PX)))) / side)
    small = cv2.resize(picture, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
    if rng.random() < 0.5:
        small, box = small[:, ::-1], (picture.shape[1] - box[2], box[1], picture.shape[1] - box[0], box[3])
    x0, y0, x1, y1 = (v * factor for v in box)
    left, top = round((x0 + x1 - CROP_PX) / 2), round((y0 + y1 - CROP_PX) / 2)
    padded = np.pad(small, ((CROP_PX, CROP_PX), (CROP_PX, CROP_PX), (0, 0)), mode="reflect")
    crop = padded[top + CROP_PX : top + 2 * CROP_PX, left + CROP_PX : left + 2 * CROP_PX]
    return np.ascontiguousarray(crop), (x0 - left, y0 - top, x1 - left, y1 - top)


def jittered(box: tuple[float, ...], rng: np.random.Generator) -> tuple[float, ...]:
    """The box as a detector might give it on the blurred picture, or a crop around the face."""
    side = max(box[2] - box[0], box[3] - box[1])
    grow = side * 0.5 * (np.exp(rng.uniform(np.log(0.8), np.log(1.6))) - 1)
    dx, dy = rng.uniform(-0.1, 0.1, 2) * side
    return box[0] + dx - grow, box[1] + dy - grow, box[2] + dx + grow, box[3] + dy + grow


def validate(folder: Path) -> None:
    """Prints the estimate's error by known extent, with boxes found on the sharp pictures."""
    with (folder / "pairs.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    blurred = [decode(folder / "blurred" / row["file"]).levels for row in rows]
    sharp = [decode(folder / "sharp" / row["file"]).levels for row in rows]
    boxes = [found[0].box if found else None for found in FaceDetector().detect_batch(sharp)]
    known = np.array(
        [float(row["extent_px_at_128"]) * max(p.shape[:2]) / 128 for row, p in zip(rows, blurred, strict=True)]
    )
    estimated = np.array(estimate_extents(blurred, boxes))
    print(
        f"{folder}: {len(rows)} pairs, mean absolute error {np.abs(estimated - known).mean():.2f} px, "
        f"rank correlation {rank_correlation(known, estimated):.3f}"
    )
    print(f"{'extent px':>10} {'n':>4} {'mean':>7} {'5%':>7} {'95%':>7}")
    for extent in sorted(set(known.round(1))):
        here = estimated[known.round(1) == extent]
        low, high = np.percentile(here, [5, 95])
        print(f"{extent:10.1f} {len(here):4d} {here.mean():7.2f} {low:7.2f} {high:7.2f}")


if __name__ == "__main__":
    main()
