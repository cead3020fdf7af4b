"""Writing many pairs: worker processes, shards, a manifest, and going on after a kill.

A unit of work is one pair (folder layout) or one shard (tar layout). Files appear under their final names
only when whole, and before their lines are added to the manifest; so after any kill a unit is either in the
manifest, whole, or is made again from the start, to the same bits.
"""

import contextlib
import hashlib
import io
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import tarfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from data_synth.pairs import EXTENSIONS, Pair, PairMaker, PairPlan
from data_synth.sources import Sources
from deblur.devices import keep_freed_memory
from deblur.errors import DataError, ImageError, OptionError, OutputError

MANIFEST, BAD, RUN = "manifest.jsonl", "bad.jsonl", "run.json"
LAYOUTS = ("folder", "tar")
_CHUNK = 16  # pairs handed to a worker at a time


@dataclass(frozen=True, kw_only=True)
class Job:
    """A data set to write.

    Attributes:
        plan: What the pairs look like.
        sources: Pictures; pair i is made from number i modulo their count.
        out: Output folder.
        count: Number of pairs, counting those whose source turns out to be bad.
        layout: "folder" (blurred/ and sharp/) or "tar" (WebDataset shards).
        shard_size: Pairs in a shard.
        workers: Processes; 0 or 1 works in this one.
    """

    plan: PairPlan
    sources: Sources
    out: Path
    count: int
    layout: str = "folder"
    shard_size: int = 1000
    workers: int = 1

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise OptionError(f"layout: expected one of {', '.join(LAYOUTS)}, got {self.layout!r}")
        for name, least in (("count", 1), ("shard_size", 1), ("workers", 0)):
            if getattr(self, name) < least:
                raise OptionError(f"{name}: expected at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run did.

    Attributes:
        written: Pairs made by this run.
        kept: Pairs found from earlier runs.
        bad: Pairs without a usable source, of this and earlier runs; listed in bad.jsonl.
    """

    written: int
    kept: int
    bad: int


class _Worker:
    """Makes the pairs of a chunk; lives in a worker process, or in this one."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._maker = PairMaker(job.plan)

    def run(self, numbers: list[int]) -> list[tuple[dict[str, Any], Pair | None]]:
        """Records in order, with the pair itself where the caller has to store it."""
        return [self._one(number) for number in numbers]

    def _one(self, number: int) -> tuple[dict[str, Any], Pair | None]:
        sources = self._job.sources
        name = sources.names[number % len(sources.names)]
        try:
            pair = self._maker.make(number, name, sources.read(name))
        except (ImageError, DataError, OSError) as error:
            return {"pair": number, "source": name, "error": f"{type(error).__name__}: {error}"}, None
        record = {**pair.record, **_places(self._job, number)}
        if self._job.layout == "tar":
            return record, replace(pair, record=record)
        for kind, content in (("blurred", pair.blurred), ("sharp", pair.sharp)):
            write_atomically(self._job.out / record[kind], content)
        return record, None


_worker: _Worker | None = None  # of this worker process


def _start_worker(job: Job) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the run
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()
    _worker = _Worker(job)


def _leave_with_parent() -> None:
    """Ends an orphan: a parent killed by -9 cannot tell its workers to stop."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _run_chunk(numbers: list[int]) -> list[tuple[dict[str, Any], Pair | None]]:
    if _worker is None:
        raise RuntimeError("the worker process was not started by _start_worker")
    return _worker.run(numbers)


def write_dataset(job: Job, progress: Callable[[int], None] | None = None) -> Summary:
    """Writes a data set, or the rest of it.

    Args:
        job: What to write.
        progress: Called with the number of pairs finished since the last call.

    Returns:
        What was done.

    Raises:
        OptionError: The folder holds a data set made with other options.
        OutputError: The folder cannot be written, or is being written by another run.
        DataError: A worker process died.
    """
    try:
        job.out.mkdir(parents=True, exist_ok=True)
        with _locked(job.out):
            _check_same_run(job)
            return _write_rest(job, progress)
    except OSError as error:
        raise OutputError(f"{job.out}: cannot be written: {error}") from error


def _write_rest(job: Job, progress: Callable[[int], None] | None) -> Summary:
    for left in job.out.rglob(".*.part"):
        left.unlink(missing_ok=True)
    done, bad = _recover(job)
    todo = [number for number in range(job.count) if number not in done and number not in bad]
    if progress:
        progress(job.count - len(todo))
    written = failed = 0
    for unit in _units(job, _results(job, todo)):
        pairs = [record for record, _ in unit if "error" not in record]
        errors = [record for record, _ in unit if "error" in record]
        if job.layout == "tar" and pairs:
            _write_shard(job.out / pairs[0]["shard"], [pair for _, pair in unit if pair is not None])
        _append(job.out / BAD, errors)
        _append(job.out / MANIFEST, pairs)
        written, failed = written + len(pairs), failed + len(errors)
        if progress:
            progress(len(unit))
    return Summary(written=written, kept=len(done), bad=len(bad) + failed)


def _results(job: Job, todo: list[int]) -> Iterator[tuple[dict[str, Any], Pair | None]]:
    """Results in the order of the numbers, whoever makes them."""
    chunks = [todo[i : i + _CHUNK] for i in range(0, len(todo), _CHUNK)]
    if job.workers <= 1 or len(chunks) <= 1:
        with single_thread():
            worker = _Worker(job)
            for number in todo:
                yield from worker.run([number])
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads half alive
    workers = min(job.workers, len(chunks))
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(job,))
    try:
        waiting: deque[Future[list[tuple[dict[str, Any], Pair | None]]]] = deque()
        rest = iter(chunks)
        for chunk in rest:
            waiting.append(pool.submit(_run_chunk, chunk))
            if len(waiting) >= 3 * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process died (out of memory?); run the same command again to go on from here, with "
            "fewer --workers if it happens again"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _units(
    job: Job, results: Iterator[tuple[dict[str, Any], Pair | None]]
) -> Iterator[list[tuple[dict[str, Any], Pair | None]]]:
    """Groups of results that are finished together: single pairs, or whole shards."""
    size = job.shard_size if job.layout == "tar" else 1
    unit: list[tuple[dict[str, Any], Pair | None]] = []
    for result in results:
        if unit and unit[0][0]["pair"] // size != result[0]["pair"] // size:
            yield unit
            unit = []
        unit.append(result)
    if unit:
        yield unit


def _places(job: Job, number: int) -> dict[str, str]:
    name, extension = f"{number:08d}", EXTENSIONS[job.plan.format]
    if job.layout == "tar":
        shard = f"shard-{number // job.shard_size:06d}.tar"
        return {"shard": shard, "blurred": f"{name}.blurred.{extension}", "sharp": f"{name}.sharp.{extension}"}
    return {"blurred": f"blurred/{name}.{extension}", "sharp": f"sharp/{name}.{extension}"}


def _write_shard(path: Path, pairs: list[Pair]) -> None:
    """WebDataset: files of a sample share the name up to the first dot. Equal pairs give an equal tar."""
    with _replacing(path) as part, tarfile.open(part, "w", format=tarfile.USTAR_FORMAT) as tar:
        for pair in pairs:
            line = json.dumps(pair.record).encode()
            members = (
                (pair.record["blurred"], pair.blurred),
                (pair.record["sharp"], pair.sharp),
                (f"{pair.record['pair']:08d}.json", line),
            )
            for name, content in members:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file to write in place of another, which takes its name only when whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file that is never seen half-written."""
    with _replacing(path) as part:
        part.write_bytes(content)


def _append(path: Path, records: list[dict[str, Any]]) -> None:
    if records:
        with path.open("ab") as file:
            file.write(b"".join(json.dumps(record).encode() + b"\n" for record in records))


def read_records(path: Path) -> list[dict[str, Any]]:
    """Whole lines of a manifest; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise DataError(f"{path}: expected one JSON object a line: {error}; restore or remove the file") from error


def _recover(job: Job) -> tuple[set[int], set[int]]:
    """Numbers done and numbers bad; lines of unfinished units and torn lines leave the files."""
    lines = {name: read_records(job.out / name) for name in (MANIFEST, BAD)}
    seen = {record["pair"] for records in lines.values() for record in records}
    size = job.shard_size if job.layout == "tar" else 1
    unfinished = {number // size for number in range(job.count) if number not in seen}
    for name, records in lines.items():
        kept = [record for record in records if record["pair"] // size not in unfinished]
        lines[name] = kept
        if (job.out / name).exists():
            write_atomically(job.out / name, b"".join(json.dumps(r).encode() + b"\n" for r in kept))
    return {r["pair"] for r in lines[MANIFEST]}, {r["pair"] for r in lines[BAD]}


def _check_same_run(job: Job) -> None:
    """Holds the folder to the options that it was begun with."""
    described = {
        "plan": job.plan.as_json(),
        "count": job.count,
        "layout": job.layout,
        "shard_size": job.shard_size if job.layout == "tar" else None,
        "sources": len(job.sources.names),
        "sources_sha256": hashlib.sha256("\n".join(job.sources.names).encode()).hexdigest(),
    }
    path = job.out / RUN
    if not path.exists():
        if (job.out / MANIFEST).exists():
            raise OptionError(f"{job.out}: has a manifest but no {RUN}; choose another output folder")
        write_atomically(path, json.dumps(described, indent=1).encode())
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    changed = [name for name in described if before.get(name) != described[name]]
    if changed:
        raise OptionError(
            f"{job.out}: was begun with other options or sources ({', '.join(changed)}); give the same ones to "
            "go on, or choose another output folder"
        )


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Keeps a second run out of the folder; the lock goes with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with (out / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OutputError(f"{out}: another run is writing there") from error
        yield


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """One torch thread inside: sums come out in one order whatever the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def rebuild(out: Path, number: int, sources: Sources) -> Pair:
    """Makes one pair of a written data set again, from its manifest and the sources.

    Args:
        out: The data set.
        number: The pair.
        sources: The pictures that it was made from.

    Returns:
        The pair, equal to the one written to the last bit.

    Raises:
        DataError: The manifest does not hold the pair, the source changed, or the bits differ (another
            version of a library that decodes, resizes or encodes).
    """
    run = out / RUN
    records = {record["pair"]: record for record in read_records(out / MANIFEST)}
    if number not in records or not run.exists():
        raise DataError(f"{out}: expected pair {number} in {MANIFEST} beside {RUN}, it is not there")
    record = records[number]
    data = sources.read(record["source"])
    if hashlib.sha256(data).hexdigest() != record["source_sha256"]:
        raise DataError(f"{record['source']}: is not the file that pair {number} was made from")
    plan = PairPlan.from_json(json.loads(run.read_text(encoding="utf-8"))["plan"])
    with single_thread():
        pair = PairMaker(plan).make(number, record["source"], data)
    for kind in ("blurred", "sharp"):
        if pair.record[f"{kind}_sha256"] != record[f"{kind}_sha256"]:
            raise DataError(f"pair {number}: the {kind} picture differs from the one written; see {run}")
    return pair
