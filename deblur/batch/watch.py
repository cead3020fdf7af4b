"""A drop folder: restores what is put there, until told to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from deblur.batch.files import check_writable
from deblur.batch.journal import Journal
from deblur.batch.outcome import Outcome, is_done
from deblur.batch.plan import Found, Job
from deblur.batch.runner import Listener, Options, Summary, clean, run_jobs, scan

if TYPE_CHECKING:
    from deblur.restoration import Restorer

_State = tuple[int, int]


@dataclass(kw_only=True)
class _Seen:
    """What is remembered between two looks at the folder."""

    states: dict[str, _State] = field(default_factory=dict)
    given_up: dict[str, _State] = field(default_factory=dict)


def watch(
    options: Options,
    load: Callable[[], Restorer],
    listener: Listener,
    stop: threading.Event,
    interval_s: float = 2.0,
) -> Summary:
    """Looks at the inputs again and again, and restores what is new or changed.

    A file is taken once its size and time were the same at two looks, so that one that is still being copied is
    left alone. One that failed is tried again when it changes.

    Args:
        options: As for a single run.
        load: Makes the restorer, once, at the start.
        listener: Is told how it goes.
        stop: Ends the watch; the pictures in flight are finished.
        interval_s: Seconds between two looks.

    Returns:
        The summary of all of it.

    Raises:
        DeblurError: As in `run`.
    """
    summary, seen = Summary(), _Seen()
    check_writable(options.settings.output)
    with Journal(options.settings.output, options.selection.shard) as journal:
        restorer = load()
        told = Listener(started=listener.started, done=_remembering(listener, seen))
        while not stop.is_set():
            found = scan(options, journal)
            clean(options.settings.output, found.jobs)
            summary.ignored = dict(found.ignored)
            found.jobs = _settled(found, options, journal, restorer.weights.sha256, seen)
            if found.jobs:
                run_jobs(found, options.settings, restorer, journal, summary, told)
            stop.wait(interval_s)
    summary.interrupted = False  # being stopped is how a watch ends
    return summary


def _remembering(listener: Listener, seen: _Seen) -> Callable[[Outcome, Summary], None]:
    def done(outcome: Outcome, summary: Summary) -> None:
        failed = outcome.entry is not None and not outcome.entry.succeeded
        state = _state(outcome.job.source)
        if (failed or outcome.skipped == "exists") and state:
            seen.given_up[outcome.job.key] = state
        listener.done(outcome, summary)

    return done


def _settled(found: Found, options: Options, journal: Journal, weights: str, seen: _Seen) -> list[Job]:
    jobs, states = [], {}
    for job in found.jobs:
        state = _state(job.source)
        if state is None:
            continue
        states[job.key] = state
        settled = seen.states.get(job.key) == state and seen.given_up.get(job.key) != state
        if settled and not is_done(job, journal, options.settings, weights):
            jobs.append(job)
    seen.states = states
    return jobs


def _state(path: Path) -> _State | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
