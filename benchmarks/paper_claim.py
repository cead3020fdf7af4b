"""The claim of the paper as one command: a face detector finds more faces after the restoration than before.

    python -m benchmarks.paper_claim --celeba ROOT [--weights NAME|FILE] [-o FOLDER]

Blurs the pictures of CelebA's test split over a ladder of blur extents with the project's synthesizer,
restores them as `deblur restore` does, and measures them as `deblur evaluate` does. Prints the table; the
folder gets it as table.md beside the whole report (JSON, CSV, plots, page) and the pictures themselves.
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from tqdm import tqdm

from data_synth import Degrade, recipe
from deblur.errors import DataError
from deblur.evaluation import EvaluationConfig, Report, evaluate
from deblur.evaluation.tables import Group, Value
from deblur.images import Picture, decode, encode, to_levels, to_tensor

LADDER_PX = (0, 5, 9, 13, 17, 21, 25, 29, 37, 49)  # at a picture height of 128 px
TEST_SPLIT = "2"


def main() -> None:
    """Reads the command line, makes the pairs, evaluates, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--celeba", type=Path, required=True, help="CelebA as torchvision lays it out")
    parser.add_argument("--weights", default="default", help="bundled name or file")
    parser.add_argument("--recipe", default="default", help="of the degradation")
    parser.add_argument("--limit", type=int, help="take only the first pictures of the split")
    parser.add_argument("--steps-each", type=int, default=1, help="steps of the ladder that each picture gets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--lpips-backbone", default="auto")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/paper_claim"))
    args = parser.parse_args()
    sharp = test_pictures(args.celeba)[: args.limit]
    make_pairs(sharp, args.output / "pairs", args.recipe, args.steps_each, args.seed)
    config = EvaluationConfig(
        blurred=args.output / "pairs" / "blurred",
        sharp=args.output / "pairs" / "sharp",
        weights=args.weights,
        device=args.device,
        lpips_backbone=args.lpips_backbone,
    )
    report = evaluate(config, restored_folder=args.output / "restored", progress=Bars())
    report.write(args.output / "report")
    table = markdown(report)
    (args.output / "table.md").write_text(table, encoding="utf-8")
    print(table)


class Bars:
    """Progress bars on a terminal, silence elsewhere."""

    def __init__(self) -> None:
        self.bars: dict[str, tqdm] = {}

    def __call__(self, step: str, done: int, count: int) -> None:
        """Moves the step's bar."""
        bar = self.bars.setdefault(step, tqdm(total=count, desc=step, disable=not sys.stderr.isatty()))
        bar.update(done - bar.n)


def test_pictures(root: Path) -> list[Path]:
    """Files of the test split, in the partition's order; those that are not there are left out.

    Raises:
        DataError: the root has no partition file, or none of its test pictures.
    """
    partition, folder = root / "list_eval_partition.txt", root / "img_align_celeba"
    if not partition.is_file():
        raise DataError(f"{partition}: expected CelebA's partition file beside img_align_celeba/")
    lines = (line.split() for line in partition.read_text(encoding="utf-8").splitlines() if line.strip())
    files = [folder / name for name, part in lines if part == TEST_SPLIT]
    present = [path for path in files if path.is_file()]
    if not present:
        raise DataError(f"{folder}: expected the pictures of CelebA's test split")
    return present


def make_pairs(files: list[Path], folder: Path, recipe_name: str, steps_each: int, seed: int) -> None:
    """Writes sharp/, blurred/ and pairs.csv; picture i gets the ladder's steps from i on."""
    degrade = Degrade(recipe(recipe_name))
    rows = []
    for number, (path, extent, step) in enumerate(jobs(files, steps_each)):
        picture = decode(path)
        extent_px = torch.tensor([extent * picture.height / 128])
        seeds = torch.tensor([seed * 1_000_003 + number])
        blurred, _ = degrade(to_tensor(picture.levels)[None], extent_px=extent_px, seeds=seeds)
        name = f"{path.stem}_{step}.png"
        store(folder / "sharp" / name, picture)
        store(folder / "blurred" / name, picture.with_levels(to_levels(blurred[0], picture.levels.dtype)))
        rows.append({"file": name, "extent_px_at_128": extent, "source": path.name})
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def jobs(files: list[Path], steps_each: int) -> Iterator[tuple[Path, int, int]]:
    """Each file with the extents that it gets, spread so that every step of the ladder gets as many pictures."""
    for index, path in enumerate(files):
        for step in range(steps_each):
            yield path, LADDER_PX[(index * steps_each + step) % len(LADDER_PX)], step


def store(path: Path, picture: Picture) -> None:
    """Without loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(picture, format="PNG"))


def markdown(report: Report) -> str:
    """The table of faces found, confidence and fidelity by blur extent."""
    lines = [
        f"Faces found by MTCNN (score >= {report.about['threshold']}, IoU >= {report.about['least_iou']} with the "
        "face of the sharp picture), and mean confidence with missed faces at 0. Blur extent in px at a height of "
        "128 px; brackets: 95% bootstrap interval over pictures.",
        "",
        "| extent | pictures | found: sharp | blurred | restored | confidence: blurred | restored "
        "| false faces/picture: blurred | restored | PSNR gain, dB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join(lines + [line(one) for one in report.groups if one.kind != "band" or one.name == "25+"]) + "\n"


def line(one: Group) -> str:
    """One row of the table."""
    rate, confidence = one.figures["detection_rate"], one.figures["confidence"]
    false, gain = one.figures["false_positives"], one.figures["psnr"]["gain"]
    cells = [
        one.name,
        str(one.pictures),
        f"{rate['sharp'].value:.2f}",
        bracketed(rate["blurred"]),
        bracketed(rate["restored"]),
        f"{confidence['blurred'].value:.3f}",
        f"{confidence['restored'].value:.3f}",
        f"{false['blurred'].value:.3f}",
        f"{false['restored'].value:.3f}",
        f"{gain.value:+.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def bracketed(value: Value) -> str:
    """A figure with its interval."""
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


if __name__ == "__main__":
    main()
