"""Throughput of the service at saturation against the bare loop on the same machine: `python -m serving.benchmark`.

The bare loop is what the library does for one picture after another in memory (detect, generate, blend, detect
again); the service does the same for pictures that come and go as files over HTTP on loopback. Both run in processes
of their own, in turns. Rates depend on what else the machine does; the processor time for each picture (where /proc
tells it) hardly does, so its ratio is the one to trust on a machine that is not idle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from deblur import images
from serving.probe import probe

_BARE = "--bare-loop"
_LONGEST_STOP_S = 15.0


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", nargs="+", type=Path, help="picture files to restore, in turns")
    parser.add_argument("--count", type=int, default=40, help="pictures a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=16, help="concurrent requests")
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument(_BARE, dest="bare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _children.hear)
    if options.bare:
        sys.stdout.write(json.dumps(bare_loop(options)) + "\n")
        return
    rates, works = [], []
    for _ in range(options.rounds):
        with _children.start([sys.executable, "-m", "serving.benchmark", _BARE, *sys.argv[1:]]) as process:
            output = process.communicate()[0]
        if process.returncode:
            raise SystemExit(f"the bare loop ended with {process.returncode}")
        bare, served = json.loads(output.splitlines()[-1]), service(options)
        for name, (rate, work) in (("bare loop", bare), ("service", served)):
            sys.stdout.write(f"{name}: {rate:.2f} pictures/s, {1000 * work:.0f} ms of processor time each\n")
        rates.append(served[0] / bare[0])
        works.append(bare[1] / served[1] if served[1] else 0.0)
    sys.stdout.write(
        f"service / bare loop: {statistics.median(rates):.2f} by rate, {statistics.median(works):.2f} by processor time"
        f" (medians of {options.rounds} rounds)\n"
    )


def bare_loop(options: argparse.Namespace) -> tuple[float, float]:
    """Pictures a second, and seconds of processor time for each, of plan, generate, finish; decoding is left out."""
    import deblur

    restorer = deblur.load(os.environ.get("DEBLUR_WEIGHTS", "default"))
    pictures = [images.decode(path) for path in options.pictures]
    for warm in pictures[:2]:
        restorer.finish(plan := restorer.plan(warm, options.mode), restorer.generate(plan.inputs))
    begun, worked = time.perf_counter(), time.process_time()
    for index in range(options.count):
        plan = restorer.plan(pictures[index % len(pictures)], options.mode)
        restorer.finish(plan, restorer.generate(plan.inputs))
    return options.count / (time.perf_counter() - begun), (time.process_time() - worked) / options.count


def service(options: argparse.Namespace) -> tuple[float, float]:
    """The same of the service, with concurrent clients on loopback; 0 where the processor time cannot be told."""
    settings = {"DEBLUR_PORT": str(options.port), "DEBLUR_LOG_LEVEL": "warning"}
    with _children.start([sys.executable, "-m", "serving"], settings) as server:
        while not probe("/readyz", options.port):
            if server.poll() is not None:
                raise SystemExit(f"the service ended with {server.returncode}")
            time.sleep(0.1)
        contents = [path.read_bytes() for path in options.pictures]
        asyncio.run(_crowd(options, contents, 4))
        begun, worked = time.perf_counter(), _worked_s(server.pid)
        asyncio.run(_crowd(options, contents, options.count))
        elapsed = time.perf_counter() - begun
        return options.count / elapsed, (_worked_s(server.pid) - worked) / options.count


def _worked_s(pid: int) -> float:
    """Processor time of a process and its workers until now."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(_worked_s(int(child)) for child in children)


async def _crowd(options: argparse.Namespace, contents: list[bytes], count: int) -> None:
    waiting = iter(range(count))

    async def client() -> None:
        for index in waiting:
            await _send(options, contents[index % len(contents)])

    await asyncio.gather(*(client() for _ in range(options.clients)))


async def _send(options: argparse.Namespace, content: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", options.port)
    head = (
        f"POST /deblur?mode={options.mode} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/*\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + content)
    status = (await reader.readline()).split()[1]
    await reader.read()
    writer.close()
    if status != b"200":
        raise SystemExit(f"expected status 200, got {status.decode()}")


class _Children:
    """Processes that end with this one, also when a signal ends it."""

    def __init__(self) -> None:
        self._heard = 0
        self._starting = False

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Makes a signal an exception, once; not in the midst of a start, which would lose sight of the process."""
        first, self._heard = not self._heard, self._heard or number
        if first and not self._starting:
            raise SystemExit(128 + number)

    @contextmanager
    def start(self, command: list[str], settings: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
        """A process that has ended when the context does."""
        process, self._starting = None, True
        try:
            environment = {**os.environ, **(settings or {})}
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            self._starting = False
            if self._heard:
                raise SystemExit(128 + self._heard)
            yield process
        finally:
            if process is not None:
                _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_LONGEST_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


_children = _Children()

if __name__ == "__main__":
    main()
