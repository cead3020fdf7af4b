"""The command: `python -m data_synth FACES OUT`, `... preview FACES -o SHEET`, `... rebuild OUT FACES -o DIR`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deblur.errors import DeblurError, OptionError, OutputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: Command line without the program's name; that of the process where None.

    Returns:
        Exit status: 0 done, 1 failed, or done with bad source files, 2 wrong usage, 130 interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    verbs = {"preview": _preview, "rebuild": _rebuild}
    run = _write
    if given and given[0] in verbs:
        run = verbs[given.pop(0)]
    try:
        return run(given)
    except OptionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except DeblurError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def _write(given: list[str]) -> int:
    from data_synth.config import RECIPES, recipe
    from data_synth.dataset import BAD, LAYOUTS, Job, write_dataset
    from data_synth.pairs import FORMATS, PairPlan
    from data_synth.sources import SPLITS, open_sources
    from deblur.devices import keep_freed_memory

    parser = argparse.ArgumentParser(
        prog="python -m data_synth",
        description="Writes pairs of blurred and sharp faces. Run again after an interruption, it goes on.",
        epilog="Other verbs: preview FACES -o SHEET.png, rebuild OUT FACES -o FOLDER (each with --help).",
    )
    parser.add_argument("faces", type=Path, help="folder (any depth), CelebA root, or zip of pictures")
    parser.add_argument("out", type=Path, help="output folder")
    parser.add_argument("--seed", type=int, default=0, help="master seed (default 0)")
    parser.add_argument("--recipe", default="default", help=f"one of {', '.join(RECIPES)}")
    parser.add_argument("--count", type=int, help="number of pairs (default: one for each source)")
    parser.add_argument("--size", type=int, default=128, help="side in px, never enlarged; 0: as they are")
    parser.add_argument("--extents", type=_extents, default=(), help="ladder in px, such as 0,5,9,13")
    parser.add_argument("--format", default="png", choices=list(FORMATS), help="of the pictures (default png)")
    parser.add_argument("--layout", default="folder", choices=LAYOUTS, help="folder, or tar: WebDataset shards")
    parser.add_argument("--shard-size", type=int, default=1000, help="pairs in a tar (default 1000)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    parser.add_argument("--split", default="train", choices=["all", *SPLITS], help="of CelebA (default train)")
    options = parser.parse_args(given)
    if options.out.resolve() == options.faces.resolve():
        raise OptionError("OUT: expected another folder than FACES")
    plan = PairPlan(
        config=recipe(options.recipe),
        seed=options.seed,
        side_px=options.size,
        extents_px=options.extents,
        format=options.format,
    )
    sources = open_sources(options.faces, options.split, exclude=options.out)
    job = Job(
        plan=plan,
        sources=sources,
        out=options.out,
        count=len(sources.names) if options.count is None else options.count,
        layout=options.layout,
        shard_size=options.shard_size,
        workers=options.workers,
    )
    keep_freed_memory()
    with _progress(job.count) as bar:
        summary = write_dataset(job, bar.update)
    print(f"{summary.written} pairs written, {summary.kept} kept, {summary.bad} bad sources -> {job.out}")
    if summary.bad:
        print(f"bad sources are listed in {job.out / BAD}", file=sys.stderr)
    return 1 if summary.bad else 0


def _preview(given: list[str]) -> int:
    from data_synth.config import RECIPES, recipe
    from data_synth.dataset import write_atomically
    from data_synth.pairs import crop_square
    from data_synth.preview import RUNGS_PX, draw_sheet
    from data_synth.sources import open_sources
    from deblur.images import Picture, decode, encode

    parser = argparse.ArgumentParser(
        prog="python -m data_synth preview", description="Draws paths, kernels and degraded faces by extent."
    )
    parser.add_argument("faces", type=Path, help="folder, CelebA root or zip")
    parser.add_argument("-o", "--output", type=Path, default=Path("preview.png"), help="default preview.png")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recipe", default="default", help=f"one of {', '.join(RECIPES)}")
    parser.add_argument("--faces-shown", type=int, default=2, metavar="N", help="faces on the sheet (default 2)")
    parser.add_argument("--size", type=int, default=128, help="side of a face, px")
    parser.add_argument("--extents", type=_extents, default=RUNGS_PX, help="rungs in px, such as 0,5,9,13")
    options = parser.parse_args(given)
    if options.faces_shown < 1 or options.size < 16:
        raise OptionError("preview: expected at least one face and a size of at least 16 px")
    sources = open_sources(options.faces, "all")
    stride = max(1, len(sources.names) // options.faces_shown)
    names = sources.names[::stride][: options.faces_shown]
    crops = [crop_square(decode(sources.read(name), name=name).levels, options.size) for name in names]
    side = min(crop.shape[0] for crop in crops)
    sheet = draw_sheet(
        [crop_square(crop, side) for crop in crops], recipe(options.recipe), options.seed, options.extents
    )
    try:
        write_atomically(options.output, encode(Picture(levels=sheet), "PNG"))
    except OSError as error:
        raise OutputError(f"{options.output}: cannot be written: {error}") from error
    print(f"{len(crops)} faces at {len(options.extents)} extents -> {options.output}")
    return 0


def _rebuild(given: list[str]) -> int:
    from data_synth.dataset import MANIFEST, read_records, rebuild, write_atomically
    from data_synth.sources import SPLITS, open_sources

    parser = argparse.ArgumentParser(
        prog="python -m data_synth rebuild",
        description="Makes pairs of a written data set again and checks them against its manifest.",
    )
    parser.add_argument("dataset", type=Path, help="folder with manifest.jsonl")
    parser.add_argument("faces", type=Path, help="the sources that it was made from")
    parser.add_argument("--pair", type=int, action="append", help="pair number; repeatable (default: all)")
    parser.add_argument("-o", "--output", type=Path, help="folder for the pictures (default: check only)")
    parser.add_argument("--split", default="all", choices=["all", *SPLITS])
    options = parser.parse_args(given)
    sources = open_sources(options.faces, options.split, exclude=options.dataset)
    records = {record["pair"]: record for record in read_records(options.dataset / MANIFEST)}
    numbers = options.pair if options.pair else sorted(records)
    for number in numbers:
        pair = rebuild(options.dataset, number, sources)
        for kind, content in (("blurred", pair.blurred), ("sharp", pair.sharp)):
            if options.output:
                write_atomically(options.output / kind / Path(records[number][kind]).name, content)
    print(f"{len(numbers)} pairs rebuilt, all equal to the manifest")
    return 0


def _extents(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected px separated by commas, got {text!r}") from error


def _progress(total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, unit="pair", disable=None)  # none where stderr is no terminal


if __name__ == "__main__":
    sys.exit(main())
