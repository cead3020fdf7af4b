"""A folder run from beginning to end: options in, summary out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deblur.batch.files import check_writable, remove_abandoned
from deblur.batch.journal import Entry, Journal
from deblur.batch.outcome import Outcome
from deblur.batch.pipeline import Pipeline, Settings
from deblur.batch.plan import Found, Job, Selection, check_inputs_are_kept, find_jobs
from deblur.errors import OptionError

if TYPE_CHECKING:
    from deblur.restoration import Restorer

# Measured on whole pictures (benchmarks/folder.py): what a picture in flight takes at its peak, and the rest.
BYTES_PER_PIXEL = 64
BASE_BYTES = 900 * 2**20


@dataclass(frozen=True, kw_only=True)
class Options:
    """A folder run.

    Attributes:
        inputs: Files and folders.
        settings: How each picture is treated, and the output folder.
        selection: Which files of a folder are taken.
    """

    inputs: tuple[Path, ...]
    settings: Settings
    selection: Selection = field(default_factory=Selection)


@dataclass(kw_only=True)
class Summary:
    """What a run came to.

    Attributes:
        restored: Pictures with a face made better.
        unchanged: Pictures whose result is the same picture.
        done_before: Passed over: an earlier run did them.
        existing: Passed over: a file that this program did not write is in the way.
        failed: (path, reason).
        ignored: Files that are no pictures or were left out, by reason.
        faces_before: Faces found in the inputs of this run.
        faces_after: Faces found in its results.
        seconds: From start to end.
        left: Pictures not reached because the run was stopped.
        interrupted: Whether it was stopped.
        entries: Latest journal line of each picture of the run.
    """

    restored: int = 0
    unchanged: int = 0
    done_before: int = 0
    existing: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    ignored: dict[str, int] = field(default_factory=dict)
    faces_before: int = 0
    faces_after: int = 0
    confidence_before: float = 0.0
    confidence_after: float = 0.0
    seconds: float = 0.0
    left: int = 0
    interrupted: bool = False
    entries: list[Entry] = field(default_factory=list)

    @property
    def written(self) -> int:
        """Results written in this run."""
        return self.restored + self.unchanged

    @property
    def seen(self) -> int:
        """Pictures dealt with, in whatever way."""
        return self.written + self.done_before + self.existing + len(self.failed)

    def add(self, outcome: Outcome) -> None:
        """Counts one picture."""
        entry = outcome.entry
        if outcome.skipped == "done before":
            self.done_before += 1
        elif outcome.skipped:
            self.existing += 1
        elif entry is not None and not entry.succeeded:
            self.failed.append((entry.source, entry.error))
        elif entry is not None:
            self._add_result(entry)

    def _add_result(self, entry: Entry) -> None:
        if entry.status == "restored":
            self.restored += 1
        else:
            self.unchanged += 1
        self.faces_before += entry.faces_before
        self.faces_after += entry.faces_after
        self.confidence_before += entry.confidence_before * entry.faces_before
        self.confidence_after += entry.confidence_after * entry.faces_after

    @property
    def mean_confidence_before(self) -> float:
        """Mean detection score of the faces found before, 0 without one."""
        return self.confidence_before / self.faces_before if self.faces_before else 0.0

    @property
    def mean_confidence_after(self) -> float:
        """Mean detection score of the faces found after, 0 without one."""
        return self.confidence_after / self.faces_after if self.faces_after else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "restored": self.restored,
            "unchanged": self.unchanged,
            "done_before": self.done_before,
            "existing": self.existing,
            "failed": [{"source": source, "error": error} for source, error in self.failed],
            "ignored": dict(self.ignored),
            "faces_before": self.faces_before,
            "faces_after": self.faces_after,
            "mean_confidence_before": round(self.mean_confidence_before, 4),
            "mean_confidence_after": round(self.mean_confidence_after, 4),
            "seconds": round(self.seconds, 2),
            "pictures_per_second": round(self.written / self.seconds, 2) if self.seconds else 0.0,
            "left": self.left,
            "interrupted": self.interrupted,
        }


@dataclass(kw_only=True)
class Listener:
    """What a run tells while it goes on; all calls come from one thread at a time.

    Attributes:
        started: Number of pictures, and how to stop the run (safe to call from a signal handler).
        done: One picture and the summary so far.
    """

    started: Callable[[int, Callable[[], None]], None] = lambda count, stop: None
    done: Callable[[Outcome, Summary], None] = lambda outcome, summary: None


def scan(options: Options, journal: Journal) -> Found:
    """Finds the pictures of a run and their output names.

    Raises:
        OptionError: A result would replace an original.
    """
    settings = options.settings
    found = find_jobs(
        options.inputs,
        settings.output,
        format=settings.format,
        selection=options.selection,
        taken=journal.outputs(),
    )
    check_inputs_are_kept(found.jobs, settings.output, settings.overwrite)
    return found


def preview(options: Options) -> Found:
    """What a run would do, without doing it: jobs with their outputs. Nothing is written."""
    with Journal(options.settings.output, options.selection.shard, read_only=True) as journal:
        return scan(options, journal)


def run(options: Options, load: Callable[[], Restorer], listener: Listener | None = None) -> Summary:
    """Restores folders.

    Args:
        options: What and how.
        load: Makes the restorer; called only when there is something to do.
        listener: Is told how it goes.

    Returns:
        The summary; failures of single pictures are in it.

    Raises:
        OptionError: A result would replace an original.
        OutputError: The output folder cannot be written, or another run is at work on it.
        WeightsError: The weights cannot be loaded.
    """
    listener = listener or Listener()
    summary = Summary()
    started = time.perf_counter()
    check_writable(options.settings.output)
    with Journal(options.settings.output, options.selection.shard) as journal:
        found = scan(options, journal)
        clean(options.settings.output, found.jobs)
        summary.ignored = dict(found.ignored)
        summary.failed.extend(found.problems)
        if found.jobs:
            run_jobs(found, options.settings, load(), journal, summary, listener)
        summary.entries = [journal.latest[job.key] for job in found.jobs if job.key in journal.latest]
    summary.seconds = time.perf_counter() - started
    return summary


def run_jobs(
    found: Found,
    settings: Settings,
    restorer: Restorer,
    journal: Journal,
    summary: Summary,
    listener: Listener,
) -> None:
    """Works through the jobs that were found, and counts them."""

    def done(outcome: Outcome) -> None:
        summary.add(outcome)
        listener.done(outcome, summary)

    before = summary.seen
    pipeline = Pipeline(restorer, journal, found.names, settings, done)
    listener.started(len(found.jobs), pipeline.stop)
    pipeline.run(found.jobs)
    summary.interrupted = pipeline.stopped
    summary.left += len(found.jobs) - (summary.seen - before)


def clean(output: Path, jobs: list[Job]) -> None:
    """Removes what killed runs left where results will go."""
    folders = {output / Path(job.output).parent for job in jobs}
    remove_abandoned([output, *sorted(folders)])


def pixels_for_memory(limit_bytes: int | None) -> int:
    """Pixels that may be in flight under a limit on memory.

    Args:
        limit_bytes: For the whole process; None for a third of what the machine has free, 4 GiB at most.

    Raises:
        OptionError: Not even the program itself would fit.
    """
    if limit_bytes is None:
        limit_bytes = max(BASE_BYTES + 2**28, min(4 * 2**30, _available_bytes() // 3))
    if limit_bytes <= BASE_BYTES:
        raise OptionError(
            f"memory limit: expected more than the {BASE_BYTES >> 20} MiB that the program itself takes, "
            f"got {limit_bytes >> 20} MiB"
        )
    return max(1_000_000, (limit_bytes - BASE_BYTES) // BYTES_PER_PIXEL)


def _available_bytes() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return 4 * 2**30


def default_jobs() -> int:
    """Threads for reading, and as many for writing."""
    return max(1, min(8, (os.cpu_count() or 2) // 2))
