"""The command `deblur restore`."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deblur.backends import BACKENDS, check_backend
from deblur.batch.plan import SUFFIXES, Selection
from deblur.errors import OptionError

if TYPE_CHECKING:
    from deblur.batch.runner import Options, Summary
    from deblur.restoration import Restorer

OK, SOME_FAILED, USAGE, NOTHING_DONE, INTERRUPTED = 0, 1, 2, 3, 130
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_EPILOG = """
A folder is mirrored below OUT and a journal (deblur-journal.jsonl) is kept there: run the same command again and only
what is new, changed or failed is done. A single PHOTO with an OUT that ends like a picture becomes that file.
Originals are never replaced, unless OUT is their own folder and --overwrite is given.

exit codes: 0 all fine; 1 some pictures failed; 2 wrong usage; 3 nothing could be done (no pictures, no weights, output
not writable); 130 stopped by ctrl-C, run again to go on
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `deblur restore`."""
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("inputs", nargs="+", metavar="PHOTO|FOLDER", help="pictures and folders; - reads stdin")
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUT", help="folder, or file for one picture; - writes to stdout"
    )
    model = parser.add_argument_group("restoration")
    model.add_argument(
        "--mode",
        choices=("auto", "faces", "whole"),
        default="auto",
        help="faces only, the whole picture, or auto: the faces, and the whole where none is found (default)",
    )
    model.add_argument("--device", default="auto", metavar="NAME", help="auto (default), cpu, cuda, cuda:1, mps")
    model.add_argument("--precision", default="auto", help="auto (default), fp32, bf16, fp16")
    model.add_argument("--weights", default="default", metavar="NAME|FILE", help="bundled weights, or a file")
    model.add_argument(
        "--backend",
        choices=tuple(BACKENDS),
        default="auto",
        help="what runs the generator: " + "; ".join(f"{name}: {what}" for name, what in BACKENDS.items()),
    )
    _add_output_arguments(parser)
    _add_selection_arguments(parser)
    _add_work_arguments(parser)


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--format", default="keep", metavar="F", help="keep (default), png, jpeg, webp, tiff, avif, bmp, ppm, heif"
    )
    group.add_argument("--quality", type=int, metavar="1-100", help="of jpeg, webp and avif (default 95, 95, 90)")
    existing = group.add_mutually_exclusive_group()
    existing.add_argument(
        "--skip-existing", action="store_true", help="leave alone what is done or in the way (default)"
    )
    existing.add_argument("--overwrite", action="store_true", help="do everything again and replace files")
    group.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    group.add_argument(
        "--report", metavar="html|json|FILE", help="write a report into OUT, or to a file that ends in .html or .json"
    )
    group.add_argument("--compare", action="store_true", help="write before/after pictures to OUT/deblur-compare")
    group.add_argument("--quiet", action="store_true", help="print failures only")
    group.add_argument("--json", action="store_true", help="print one JSON object a picture, and one at the end")


def _add_selection_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which files")
    group.add_argument(
        "--recursive",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="go into folders (default; hidden ones never)",
    )
    group.add_argument(
        "--include", action="append", default=[], metavar="GLOB", help="only files whose name or path matches; repeat"
    )
    group.add_argument("--exclude", action="append", default=[], metavar="GLOB", help="not these; repeat")
    group.add_argument(
        "--shard", type=_shard, default=(1, 1), metavar="I/N", help="the I-th of N parts, for an array of machines"
    )
    group.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=2.0,
        metavar="SECONDS",
        help="keep looking for new pictures, every 2 seconds by default",
    )


def _add_work_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("resources")
    group.add_argument("--jobs", type=int, metavar="N", help="threads that read, and as many that write")
    group.add_argument("--limit-memory", type=_size, metavar="SIZE", help="such as 3G; bounds the pictures in flight")
    group.add_argument(
        "--max-megapixels", type=float, default=200.0, metavar="MP", help="refuse larger pictures (default 200)"
    )
    group.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="ray: many machines (extra face-deblur[ray])"
    )
    group.add_argument("--ray-address", metavar="ADDRESS", help="of a Ray cluster; a local one is started without")


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"expected I/N with 1 <= I <= N, such as 3/8, got {text!r}")
    return int(match[1]), int(match[2])


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if not match:
        raise argparse.ArgumentTypeError(f"expected a size such as 3G or 1500M, got {text!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def run(args: argparse.Namespace) -> int:
    """Runs `deblur restore`; returns the exit code.

    Raises:
        DeblurError: Nothing could be done.
    """
    options = _options(args)
    if args.engine != "ray" and any("://" in path for path in (*args.inputs, args.output)):
        raise OptionError("URIs: expected --engine ray, which reads and writes them")
    if "-" in args.inputs or args.output == "-" or _is_one_file(args):
        from deblur.batch.single import run_single

        return run_single(options, _loader(args), dry_run=args.dry_run, style=_style(args))
    if args.engine == "ray":
        return _run_ray(options, args)
    if args.dry_run:
        return _run_dry(options, args)
    return _run_folder(options, args)


def _is_one_file(args: argparse.Namespace) -> bool:
    output = Path(args.output)
    is_file_name = output.suffix.lower() in SUFFIXES and not output.is_dir()
    return len(args.inputs) == 1 and is_file_name and not Path(args.inputs[0]).is_dir()


def _options(args: argparse.Namespace) -> Options:
    from deblur.batch.pipeline import Settings
    from deblur.batch.runner import Options, default_jobs, pixels_for_memory
    from deblur.images import Limits

    if args.jobs is not None and args.jobs < 1:
        raise OptionError(f"--jobs: expected at least 1, got {args.jobs}")
    if args.max_megapixels <= 0:
        raise OptionError(f"--max-megapixels: expected more than 0, got {args.max_megapixels:g}")
    settings = Settings(
        output=Path(args.output),
        mode=args.mode,
        format=_family(args.format),
        quality=_quality(args.quality),
        overwrite=args.overwrite,
        jobs=args.jobs or default_jobs(),
        pixels_in_flight=pixels_for_memory(args.limit_memory),
        compare=args.compare,
        limits=Limits(max_pixels=int(args.max_megapixels * 1e6)),
    )
    selection = Selection(
        recursive=args.recursive,
        include=tuple(args.include),
        exclude=tuple(args.exclude),
        shard=args.shard,
    )
    return Options(inputs=tuple(map(Path, args.inputs)), settings=settings, selection=selection)


def _family(name: str) -> str | None:
    from deblur.images.encoding import family_of

    return None if name.lower() == "keep" else family_of(name)


def _quality(value: int | None) -> int | None:
    if value is not None and not 1 <= value <= 100:
        raise OptionError(f"--quality: expected 1 to 100, got {value}")
    return value


def _style(args: argparse.Namespace) -> str:
    return "json" if args.json else "quiet" if args.quiet else "auto"


def _loader(args: argparse.Namespace) -> Callable[[], Restorer]:
    check_backend(args.backend, args.weights)

    def load() -> Restorer:
        import deblur
        from deblur.devices import keep_freed_memory

        keep_freed_memory()
        return deblur.load(args.weights, device=args.device, precision=args.precision, backend=args.backend)

    return load


def _run_dry(options: Options, args: argparse.Namespace) -> int:
    import json

    from deblur.batch.progress import printable
    from deblur.batch.runner import preview

    found = preview(options)
    for job in found.jobs:
        target = options.settings.output / job.output
        if args.json:
            sys.stdout.write(json.dumps({"type": "job", "source": str(job.source), "output": str(target)}) + "\n")
        elif not args.quiet:
            sys.stdout.write(f"{printable(job.source)} -> {printable(target)}\n")
    for path, why in found.problems:
        sys.stderr.write(f"{printable(path)}: {why}\n")
    if not args.json and not args.quiet:
        ignored = ", ".join(f"{count} {why}" for why, count in sorted(found.ignored.items()))
        sys.stdout.write(
            f"{len(found.jobs)} pictures would be looked at" + (f"; ignored: {ignored}" if ignored else "") + "\n"
        )
    return SOME_FAILED if found.problems else OK


def _run_folder(options: Options, args: argparse.Namespace) -> int:
    from deblur.batch.progress import Progress
    from deblur.batch.report import report_path
    from deblur.batch.runner import run as run_folders
    from deblur.batch.watch import watch

    if args.report:
        report_path(args.report, options.settings.output)  # a wrong one is refused before the work
    if args.watch is not None and args.watch <= 0:
        raise OptionError(f"--watch: expected more than 0 seconds, got {args.watch:g}")
    with _stoppable() as stopper:
        progress = Progress(_style(args), sys.stdout, sys.stderr, stopper.set_stop)
        try:
            if args.watch is not None:
                if _style(args) == "auto":
                    sys.stderr.write(f"watching; ctrl-C ends it. Output: {options.settings.output}\n")
                summary = watch(options, _loader(args), progress.listener(), stopper.event, args.watch)
            else:
                summary = run_folders(options, _loader(args), progress.listener())
        finally:
            progress.close()
    return _finish(args, options, summary)


def _run_ray(options: Options, args: argparse.Namespace) -> int:
    from deblur.batch.progress import Progress
    from deblur.batch.ray_engine import Cluster, run_on_ray

    for name in ("dry_run", "watch", "limit_memory"):
        if getattr(args, name):
            raise OptionError(f"--{name.replace('_', '-')}: expected --engine local, which alone has it")
    check_backend(args.backend, args.weights)
    cluster = Cluster(
        address=args.ray_address,
        cpus_an_actor=args.jobs or 2,
        weights=args.weights,
        device=args.device,
        precision=args.precision,
        backend=args.backend,
    )
    with _stoppable() as stopper:
        progress = Progress(_style(args), sys.stdout, sys.stderr, stopper.set_stop)
        try:
            summary = run_on_ray(args.inputs, args.output, options, cluster, progress.listener())
        finally:
            progress.close()
    return _finish(args, options, summary)


def _finish(args: argparse.Namespace, options: Options, summary: Summary) -> int:
    from deblur.batch.progress import print_summary
    from deblur.batch.report import report_path, write_report

    if args.report:
        path = report_path(args.report, options.settings.output)
        write_report(path, summary, summary.entries, options.settings.output)
    print_summary(summary, options.settings.output, _style(args), sys.stdout, sys.stderr)
    if summary.interrupted:
        return INTERRUPTED
    if not (summary.entries or summary.existing or summary.done_before) and args.watch is None:
        if not summary.failed:
            sys.stderr.write("deblur: no pictures were found\n")
        return NOTHING_DONE
    return SOME_FAILED if summary.failed else OK


class _Stopper:
    """Turns ctrl-C and SIGTERM into "finish the pictures in flight"; a second one ends at once."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._stop: Callable[[], None] = lambda: None

    def set_stop(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        if self.event.is_set():
            stop()

    def handle(self, number: int, frame: Any) -> None:
        if self.event.is_set():
            os.write(2, b"\ndeblur: stopped at once; nothing is half-written\n")
            os._exit(INTERRUPTED)
        self.event.set()
        self._stop()
        os.write(2, b"\ndeblur: finishing the pictures at hand; ctrl-C again stops at once\n")


@contextlib.contextmanager
def _stoppable() -> Iterator[_Stopper]:
    stopper = _Stopper()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield stopper
        return
    before = {number: signal.signal(number, stopper.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopper
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
