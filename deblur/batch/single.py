"""One picture to one file or stream, without a journal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from deblur.batch.files import write_atomically
from deblur.batch.pipeline import Settings
from deblur.batch.progress import print_summary, printable
from deblur.batch.runner import Options, Summary
from deblur.errors import ImageError, OptionError, OutputError
from deblur.images import Limits, Picture, decode, encode, output_format, read_file
from deblur.images.encoding import family_of

if TYPE_CHECKING:
    from deblur.restoration import Restorer
    from deblur.results import Restoration

STREAM = "-"


@dataclass(frozen=True, kw_only=True)
class SingleResult:
    """A restored picture.

    Attributes:
        content: The file.
        before: The input.
        restoration: What was done.
        changed: Whether any level differs.
    """

    content: bytes
    before: Picture
    restoration: Restoration
    changed: bool


def restore_single(
    restorer: Restorer,
    content: bytes,
    *,
    name: str,
    mode: str = "auto",
    format: str | None = None,
    quality: int | None = None,
    limits: Limits | None = None,
) -> SingleResult:
    """Restores the content of one file.

    Args:
        restorer: Does the work.
        content: The file.
        name: What messages call it.
        mode: "auto", "faces" or "whole".
        format: Family to write; None for the picture's own.
        quality: 1 to 100 for lossy formats.
        limits: What is refused before decoding.

    Returns:
        The result. Its content is the given one, byte for byte, where nothing changed and the format stays.

    Raises:
        ImageError: The picture cannot be used.
        OutputError: It cannot be written in that format.
    """
    picture = decode(content, limits, name=name)
    plan = restorer.plan(picture, mode=mode)
    restoration = restorer.finish(plan, restorer.stream(plan.inputs))
    changed = not np.array_equal(restoration.picture.levels, picture.levels)
    family = output_format(picture, format)
    if not changed and quality is None and (format is None or family == picture.format):
        written = content
    else:
        written = encode(restoration.picture, family, quality)
    return SingleResult(content=written, before=picture, restoration=restoration, changed=changed)


def run_single(options: Options, load: Callable[[], Restorer], *, dry_run: bool, style: str) -> int:
    """Restores one picture from a file or stdin to a file or stdout; returns the exit code of the command.

    Args:
        options: One input and one output; "-" stands for stdin and stdout.
        load: Makes the restorer.
        dry_run: Say what would be done, and do nothing.
        style: As in `Progress`.

    Raises:
        OptionError: Several inputs, or a folder.
        WeightsError: The weights cannot be loaded.
    """
    source, target = _ends(options)
    if dry_run:
        sys.stderr.write(f"{printable(source)} -> {printable(target)}\n")
        return 0
    started = time.perf_counter()
    try:
        _check_target(source, target, options.settings)
        content, times_ns = _content(source, options.settings.limits)
        result = _restored(options.settings, load(), content, source, target)
        _write(result.content, target, times_ns)
    except (ImageError, OutputError) as error:
        sys.stderr.write(f"failed: {printable(error)}\n")
        return 1
    for warning in result.before.warnings:
        sys.stderr.write(f"{printable(source)}: {printable(warning)}\n")
    stream = sys.stderr if target == STREAM else sys.stdout
    print_summary(_summary(result, time.perf_counter() - started), Path(target), style, stream, sys.stderr)
    return 0


def _ends(options: Options) -> tuple[str, str]:
    source, target = str(options.inputs[0]), str(options.settings.output)
    if len(options.inputs) > 1:
        raise OptionError(f"-: expected one picture when stdin or stdout is used, got {len(options.inputs)} inputs")
    if source != STREAM and Path(source).is_dir():
        raise OptionError(f"-o -: expected one picture, got the folder {source}")
    if target == STREAM and sys.stdout.isatty():
        raise OptionError("-o -: expected stdout to be a file or a pipe; a picture does not go on a terminal")
    return source, target


def _check_target(source: str, target: str, settings: Settings) -> None:
    if target == STREAM or settings.overwrite:
        return
    path = Path(target)
    if source != STREAM and path.exists() and path.samefile(source):
        raise OptionError(f"{source}: the result would replace the original; give another -o, or --overwrite")
    if path.is_dir():
        raise OutputError(f"{path}: expected a file for the result of stdin, got a folder")
    if path.exists():
        raise OutputError(f"{path}: exists already; --overwrite replaces it")


def _content(source: str, limits: Limits) -> tuple[bytes, tuple[int, int] | None]:
    if source == STREAM:
        return sys.stdin.buffer.read(limits.max_bytes + 1), None
    content = read_file(Path(source), limits)
    state = os.stat(source)  # noqa: PTH116
    return content, (state.st_atime_ns, state.st_mtime_ns)


def _restored(settings: Settings, restorer: Restorer, content: bytes, source: str, target: str) -> SingleResult:
    format = settings.format
    if format is None and target != STREAM and Path(target).suffix:
        format = family_of(Path(target).suffix)
    return restore_single(
        restorer,
        content,
        name="stdin" if source == STREAM else source,
        mode=settings.mode,
        format=format,
        quality=settings.quality,
        limits=settings.limits,
    )


def _write(content: bytes, target: str, times_ns: tuple[int, int] | None) -> None:
    if target == STREAM:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        write_atomically(Path(target), content, times_ns)


def _summary(result: SingleResult, seconds: float) -> Summary:
    restoration = result.restoration
    before, after = restoration.faces_before, restoration.faces_after
    return Summary(
        restored=int(result.changed),
        unchanged=int(not result.changed),
        faces_before=len(before),
        faces_after=len(after),
        confidence_before=sum(face.score for face in before),
        confidence_after=sum(face.score for face in after),
        seconds=seconds,
    )
