"""Every table of MODEL_CARD.md: `python -m scripts.weights_tables PAIRS [PAIRS ...] --weights NAME [NAME ...]`.

Each PAIRS holds blurred/ and sharp/, and pairs.csv or manifest.jsonl with the extents. For each set and weights the
pictures are restored as `deblur restore` does by default (or with --mode), measured as `deblur evaluate` does, and a
table by blur extent is printed; the whole reports go to --out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from deblur.evaluation import EvaluationConfig, evaluate
from deblur.evaluation.tables import Group, Value

HEAD = (
    "| extent px | pictures | PSNR blurred | gain dB | SSIM gain | LPIPS gain | found: sharp | blurred | restored "
    "| confidence: blurred | restored | made worse |"
)


def main() -> None:
    """Evaluates and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="+", type=Path)
    parser.add_argument("--weights", nargs="+", default=["default"])
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--lpips-backbone", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/weights_tables"))
    options = parser.parse_args()
    for root in options.pairs:
        for name in options.weights:
            folder = options.out / root.name / Path(name).stem
            config = EvaluationConfig(
                blurred=root / "blurred",
                sharp=root / "sharp",
                weights=name,
                mode=options.mode,
                device=options.device,
                lpips_backbone=options.lpips_backbone,
            )
            report = evaluate(config, restored_folder=folder / "restored")
            report.write(folder)
            print(f"\n{root.name}, weights `{name}`, mode `{options.mode}`:\n")
            print(table(report.groups))


def table(groups: Sequence[Group]) -> str:
    """Rows of the whole and of the bands of extent."""
    lines = [HEAD, "|" + "---|" * HEAD.count(" | ") + "---|"]
    return "\n".join(lines + [row(group) for group in groups if group.kind != "extent"])


def row(group: Group) -> str:
    """One group's figures, the gain and the rates with their 95% bootstrap intervals."""
    figures = group.figures
    rate, confidence = figures["detection_rate"], figures["confidence"]
    cells = [
        group.name,
        str(group.pictures),
        f"{figures['psnr']['blurred'].value:.2f}",
        with_interval(figures["psnr"]["gain"], "+.2f"),
        with_interval(figures["ssim"]["gain"], "+.3f"),
        with_interval(figures["lpips"]["gain"], "+.3f") if "lpips" in figures else "-",
        f"{rate['sharp'].value:.2f}",
        with_interval(rate["blurred"], ".2f"),
        with_interval(rate["restored"], ".2f"),
        f"{confidence['blurred'].value:.3f}",
        f"{confidence['restored'].value:.3f}",
        with_interval(figures["made_worse"]["restored"], ".3f"),
    ]
    return f"| {' | '.join(cells)} |"


def with_interval(value: Value, form: str) -> str:
    """A figure and its interval."""
    return f"{value.value:{form}} [{value.low:{form}}, {value.high:{form}}]"


if __name__ == "__main__":
    main()
