"""`deblur restore --engine ray`: the same pipeline inside Ray Data actors, on one machine or many.

Each actor holds a generator and runs `Pipeline` on the pictures that it is handed; what comes back are journal rows,
failed pictures included. Inputs are local paths that every machine sees, URIs that pyarrow opens (`s3://`, `gs://`), or
WebDataset shards (`.tar`), which become shards of the same names. The journal is Parquet below `deblur-journal/`.
An actor that dies is started again, and what it had in hand is done again; results are written whole or not at all.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deblur.batch import remote
from deblur.batch.journal import Entry, now
from deblur.batch.outcome import Outcome, explain
from deblur.batch.pipeline import Pipeline, Settings
from deblur.batch.plan import Found, Job, Names
from deblur.batch.runner import Listener, Options, Summary
from deblur.errors import DeblurError, OptionError

if TYPE_CHECKING:
    from deblur.restoration import Restorer

ROWS_A_FILE = 5000
SECONDS_A_FILE = 60.0
PICTURES_A_TASK = 16
SHARD = "shard"  # status of the row that says that a shard is whole


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where the work is done.

    Attributes:
        address: Of a running cluster; None starts Ray on this machine.
        cpus_an_actor: Also its threads, where there is no GPU.
        weights: Name or file, which every machine must have.
        device: As in `deblur.load`; with "auto" each GPU gets an actor.
        precision: As in `deblur.load`.
        backend: As in `deblur.load`.
    """

    address: str | None = None
    cpus_an_actor: int = 2
    weights: str = "default"
    device: str = "auto"
    precision: str = "auto"
    backend: str = "auto"


class RowJournal:
    """Stands for the journal inside an actor: what is done was sorted out before, rows go back to the driver."""

    def __init__(self) -> None:
        self.latest: dict[str, Entry] = {}

    def append(self, entry: Entry) -> None:
        """Keeps nothing; the row travels with the outcome."""


def enumerate_names(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names as if each had been taken by a picture that is not in this task."""
    return ((f"\0{number}", name) for number, name in enumerate(names))


class Worker:
    """An actor: holds a restorer, turns jobs into journal rows."""

    def __init__(self, cluster: Cluster, settings: Settings, output: str, threads: int, reserved: tuple[str, ...]):
        import torch

        import deblur

        torch.set_num_threads(threads)
        self.restorer: Restorer = deblur.load(
            cluster.weights, device=cluster.device, precision=cluster.precision, backend=cluster.backend
        )
        self.settings = settings
        self.output = output
        self.reserved = reserved

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Rows of one task: `key`, `source`, `output` in; `row`, a JSON journal line, out."""
        jobs = [
            Job(key=str(key), source=remote.as_source(str(source)), output=str(output))
            for key, source, output in zip(batch["key"], batch["source"], batch["output"], strict=True)
        ]
        shards = [job for job in jobs if remote.is_shard(str(job.source))]
        rows = self._restore([job for job in jobs if job not in shards], remote.store_for(self.output))
        for job in shards:
            rows += self._restore_shard(job)
        return {"row": [json.dumps(entry.to_json()) for entry in rows]}

    def _restore(self, jobs: Sequence[Job], store: Any) -> list[Entry]:
        rows: list[Entry] = []

        def done(outcome: Outcome) -> None:
            if outcome.entry is not None:
                rows.append(outcome.entry)

        # Whether a result may be replaced was decided by the driver.
        settings = replace(self.settings, overwrite=True)
        names = Names(dict(enumerate_names(self.reserved)), None)
        journal: Any = RowJournal()
        Pipeline(self.restorer, journal, names, settings, done, store).run(jobs)
        return rows

    def _restore_shard(self, job: Job) -> list[Entry]:
        try:
            shard = remote.ShardStore(str(job.source), remote.store_for(self.output), job.output)
            rows = self._restore(shard.jobs(self.settings.format), shard)
            shard.close()
        except Exception as error:
            return [Entry(key=job.key, source=str(job.source), error=explain(error, Path(job.source)), finished=now())]
        rows = [replace(row, key=f"{job.key}/{row.key}", output=f"{job.output}/{row.output}") for row in rows]
        weights = self.restorer.weights
        whole = Entry(
            key=job.key,
            source=str(job.source),
            output=job.output,
            status=SHARD,
            input_bytes=shard.size,
            input_mtime_ns=shard.times_ns[1] if shard.times_ns else 0,
            weights=weights.name,
            weights_sha256=weights.sha256,
            settings=self.settings.fingerprint,
            finished=now(),
        )
        return [*rows, whole]


def run_on_ray(
    inputs: Sequence[str], output: str, options: Options, cluster: Cluster, listener: Listener | None = None
) -> Summary:
    """Restores folders, URIs and shards on Ray.

    Args:
        inputs: Files, folders, shards and URIs.
        output: Folder or URI.
        options: As for a run on this machine; its own inputs and output are not looked at.
        cluster: Where.
        listener: Is told of each picture as its row comes back.

    Returns:
        The summary.

    Raises:
        OptionError: Ray is not installed, or a result would replace an original.
        DeblurError: As in a run on this machine.
    """
    ray = _ray()
    listener, summary, started = listener or Listener(), Summary(), time.perf_counter()
    journal = remote.ParquetJournal(output)
    found = remote.scan(inputs, output, options, journal)
    summary.ignored, summary.failed = dict(found.ignored), list(found.problems)
    jobs = list(_todo(found, output, options, journal, cluster, summary))
    stop = threading.Event()
    listener.started(len(jobs), stop.set)
    if jobs:
        journal.write_plan(jobs)
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        ray.data.DataContext.get_current().enable_progress_bars = False  # we have our own
        started_here = not ray.is_initialized()
        if started_here:
            ray.init(address=cluster.address, log_to_driver=False, logging_level="WARNING")
        try:
            rows = _rows(ray, jobs, output, options.settings, cluster)
            _collect(rows, jobs, journal, summary, listener, stop)
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            lines = str(cause).strip().splitlines() or [type(cause).__name__]
            raise DeblurError(f"Ray: {lines[-1]}. What is done is in the journal; run again to go on") from error
        finally:
            if started_here:
                ray.shutdown()
    summary.left = len(jobs) - summary.written - (len(summary.failed) - len(found.problems)) if stop.is_set() else 0
    summary.interrupted = stop.is_set()
    summary.seconds = time.perf_counter() - started
    return summary


def _ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise OptionError('--engine ray: expected Ray to be installed: pip install "face-deblur[ray]"') from error
    return ray


def _todo(
    found: Found,
    output: str,
    options: Options,
    journal: remote.ParquetJournal,
    cluster: Cluster,
    summary: Summary,
) -> Iterator[Job]:
    from deblur.weights import load_weights

    weights = load_weights(cluster.weights).sha256
    store = remote.store_for(output)
    for job in found.jobs:
        if not options.settings.overwrite:
            if journal.is_done(job, options.settings, weights):
                summary.done_before += 1
                continue
            if not journal.is_own(job) and store.exists(job.output):
                summary.existing += 1
                continue
        yield job


def _rows(ray: Any, jobs: Sequence[Job], output: str, settings: Settings, cluster: Cluster) -> Iterator[Entry]:
    resources = ray.cluster_resources()
    on_gpu = resources.get("GPU", 0) >= 1 and cluster.device.split(":")[0] in ("auto", "cuda")
    cpus = int(resources.get("CPU", 1))
    threads = max(1, min(cluster.cpus_an_actor, cpus - 1))
    actors = int(resources["GPU"]) if on_gpu else max(1, (cpus - 1) // threads)
    reserved = tuple(job.output for job in jobs if job.output.lower().endswith(".png"))
    # Each task is one block: a lost actor costs the pictures of one task.
    count = max(1, -(-len(jobs) // PICTURES_A_TASK))
    items = [{"key": job.key, "source": str(job.source), "output": job.output} for job in jobs]
    dataset = ray.data.from_items(items, override_num_blocks=count).map_batches(
        Worker,
        fn_constructor_args=(cluster, settings, output, threads, reserved),
        batch_size=PICTURES_A_TASK,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=1 if on_gpu else threads,
        num_gpus=1 if on_gpu else 0,
    )
    for batch in dataset.iter_batches(batch_size=None, batch_format="numpy"):
        for row in batch["row"]:
            values = json.loads(str(row))
            yield Entry(**{**values, "warnings": tuple(values["warnings"])})


def _collect(
    rows: Iterator[Entry],
    jobs: Sequence[Job],
    journal: remote.ParquetJournal,
    summary: Summary,
    listener: Listener,
    stop: threading.Event,
) -> None:
    by_key = {job.key: job for job in jobs}
    held: list[Entry] = []
    written = time.monotonic()
    try:
        for entry in rows:
            held.append(entry)
            if entry.status == SHARD:
                continue
            job = by_key.get(entry.key) or Job(key=entry.key, source=Path(entry.source), output=entry.output)
            outcome = Outcome(job=job, entry=entry)
            summary.add(outcome)
            summary.entries.append(entry)
            listener.done(outcome, summary)
            if len(held) >= ROWS_A_FILE or time.monotonic() - written > SECONDS_A_FILE:
                journal.write_rows(held)
                held, written = [], time.monotonic()
            if stop.is_set():
                break
    finally:
        if held:
            journal.write_rows(held)
