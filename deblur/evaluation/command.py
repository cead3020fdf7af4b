"""`deblur evaluate`."""

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `deblur evaluate`; imports nothing heavy."""
    parser.add_argument("--blurred", type=Path, required=True, metavar="DIR", help="blurred pictures")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--restored", type=Path, metavar="DIR", help="restored pictures, same relative paths")
    source.add_argument("--weights", metavar="NAME|FILE", help="restore with these weights on the way")
    parser.add_argument("--sharp", type=Path, metavar="DIR", help="sharp pictures; without, the report is unreferenced")
    parser.add_argument("--negatives", type=Path, metavar="DIR", help="blurred pictures without a face")
    parser.add_argument("--negatives-restored", type=Path, metavar="DIR", help="their restored versions")
    parser.add_argument(
        "--manifest", type=Path, metavar="FILE",
        help="CSV or JSON lines with the known extents (default: pairs.csv or manifest.jsonl in or beside --blurred)",
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="REPORT", help="folder of the report")
    parser.add_argument(
        "--lpips-backbone", default="auto", metavar="FILE|download",
        help="AlexNet's convolutions (safetensors, torchvision's names) for LPIPS",
    )  # fmt: skip
    parser.add_argument(
        "--identity-weights", default="auto", metavar="FILE|download",
        help="InceptionResnetV1's weights for identity similarity",
    )  # fmt: skip
    parser.add_argument("--mode", choices=("auto", "faces", "whole"), default="auto", help="how to restore")
    parser.add_argument("--device", default="auto", help="where to restore: auto, cpu, cuda, mps")
    parser.add_argument("--threshold", type=float, default=0.9, help="least score of a detection (default %(default)s)")
    parser.add_argument("--strips", type=int, default=10, help="pictures shown of best, median and worst")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap")


def run(args: argparse.Namespace) -> int:
    """Evaluate, write the report, print its tables.

    Returns:
        0, or 1 when a picture could not be paired (the report is written all the same and lists it).

    Raises:
        DeblurError: see `evaluate`.
    """
    from tqdm import tqdm

    from deblur.evaluation.config import EvaluationConfig
    from deblur.evaluation.evaluation import evaluate

    bars: dict[str, tqdm] = {}

    def progress(step: str, done: int, count: int) -> None:
        bar = bars.setdefault(step, tqdm(total=count, desc=step, disable=not sys.stderr.isatty()))
        bar.update(done - bar.n)

    options = {key: value for key, value in vars(args).items() if key in EvaluationConfig.__dataclass_fields__}
    try:
        report = evaluate(EvaluationConfig(**options), restored_folder=args.output / "restored", progress=progress)
    finally:
        for bar in bars.values():
            bar.close()
    report.write(args.output)
    sys.stdout.write(f"{report.summary()}\n\nreport: {args.output / 'index.html'}\n")
    for problem in report.problems:
        sys.stderr.write(f"not paired: {problem}\n")
    return 1 if report.problems else 0
