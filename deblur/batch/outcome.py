"""What became of one picture, and whether it is done already."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deblur.batch.files import reason
from deblur.batch.journal import Entry, Journal
from deblur.batch.plan import Job
from deblur.errors import DeblurError
from deblur.images import Picture

if TYPE_CHECKING:
    from deblur.batch.pipeline import Settings
    from deblur.results import Restoration


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One picture, done with.

    Attributes:
        job: The picture.
        entry: Its journal line; for a picture that was passed over, the line of an earlier run or None.
        skipped: Why it was passed over: "done before", "exists", or "" where it was worked on.
        before: Decoded input, where there is a result.
        restoration: The result, where there is one.
        written: Where the result is.
    """

    job: Job
    entry: Entry | None
    skipped: str = ""
    before: Picture | None = None
    restoration: Restoration | None = None
    written: Path | None = None


def is_done(job: Job, journal: Journal, settings: Settings, weights_sha256: str) -> bool:
    """Whether an earlier run left the result of this very input, with these weights and settings."""
    entry = journal.latest.get(job.key)
    if entry is None or not entry.succeeded:
        return False
    in_place = settings.output / entry.output == job.source
    same = entry.weights_sha256 == weights_sha256 and entry.settings == settings.fingerprint
    if not in_place and (not same or entry.output != job.output or not journal.has_result(entry)):
        return False
    try:
        state = job.source.stat()
        if not in_place and (state.st_size, state.st_mtime_ns) == (entry.input_bytes, entry.input_mtime_ns):
            return True
        digest = hashlib.sha256(job.source.read_bytes()).hexdigest()
    except OSError:
        return False
    # In place, the input is the result of the earlier run: restoring it once more would do harm.
    return digest == (entry.output_sha256 if in_place else entry.input_sha256)


def explain(error: BaseException, source: Path) -> str:
    """One line for the user: what is wrong with this picture."""
    if isinstance(error, DeblurError):
        return " ".join(str(error).split())
    if isinstance(error, OSError):
        return f"{source}: {reason(error)}"
    if isinstance(error, MemoryError):
        return f"{source}: not enough memory"
    return f"{source}: unexpected {type(error).__name__}: {' '.join(str(error).split())}"


def mean_score(faces: Sequence[Any]) -> float:
    """Mean detection score, 0 without a face."""
    return round(sum(face.score for face in faces) / len(faces), 4) if faces else 0.0
