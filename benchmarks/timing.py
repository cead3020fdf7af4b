"""Clocks, the machine's measured peak, and tables, for benchmarks that need PyTorch and NumPy alone."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Job = Callable[[], Any]
LEAST_S = 0.02  # a job is repeated within a sample until it takes this long
REST_S = 0.02  # before each sample on a CPU


def rounds_of(jobs: Mapping[str, Job], device: torch.device, rounds: int) -> dict[str, float]:
    """Median seconds of each job. One sample of every job is taken a round, so that all see the same machine.

    On CUDA the times are those of events on the device. On a CPU with one thread they are processor time, which other
    programs blur less; with more threads, time by the clock. There each sample follows a short rest and a call that
    does not count: the threads of the job before still look for work for a while, and the caches are full of its data.
    """
    repeats = {}
    for name, job in jobs.items():  # warms up, twice: caches, kernels, clocks
        seconds = max(1e-9, min(_sample(job, device, 1) for _ in range(2)))
        repeats[name] = max(1, min(100, round(LEAST_S / seconds)))
    samples: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            samples[name].append(_sample(job, device, repeats[name]))
    return {name: statistics.median(taken) for name, taken in samples.items()}


def _sample(job: Job, device: torch.device, repeats: int) -> float:
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        for _ in range(repeats):
            job()
        end.record()
        torch.cuda.synchronize(device)
        return start.elapsed_time(end) / 1e3 / repeats
    time.sleep(REST_S)
    job()
    now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    began = now()
    for _ in range(repeats):
        job()
    return (now() - began) / repeats


def measured_peak(device: torch.device, dtype: torch.dtype, rounds: int, smoke: bool = False) -> tuple[float, str]:
    """The best FLOP/s that this machine gives in plain matrix products and in dense 3x3 convolutions, and at which."""
    sides = (256,) if smoke else (1024, 2048, 4096) if device.type == "cpu" else (4096, 8192, 16384)
    jobs: dict[str, Job] = {}
    flops: dict[str, float] = {}
    for side in sides:
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        name = f"matmul {side}"
        jobs[name], flops[name] = _matmul(a, b, out), 2.0 * side**3
    # The largest convolutions of the generator, at batches that fit a core's cache and that do not.
    shapes = ((1, 64, 32),) if smoke else ((16, 64, 32), (16, 128, 16), (16, 192, 8), (4, 256, 64), (1, 128, 64))
    for batch, channels, side in shapes:
        if device.type == "cuda":
            batch *= 16
        x = torch.randn(batch, channels, side, side, device=device).to(dtype, memory_format=torch.channels_last)
        w = torch.randn(2 * channels, channels, 3, 3, device=device).to(dtype, memory_format=torch.channels_last)
        name = f"conv {batch}x{channels}x{side}x{side}"
        jobs[name], flops[name] = _convolution(x, w), 36.0 * channels**2 * batch * side**2
    with torch.inference_mode():
        rates = {name: flops[name] / seconds for name, seconds in rounds_of(jobs, device, rounds).items()}
    best = max(rates, key=lambda name: rates[name])
    return rates[best], best


def _matmul(a: Tensor, b: Tensor, out: Tensor) -> Job:
    return lambda: torch.mm(a, b, out=out)


def _convolution(x: Tensor, w: Tensor) -> Job:
    return lambda: F.conv2d(x, w, padding=1)


def flops_of(module: torch.nn.Module, given: Tensor) -> float:
    """FLOPs of one forward pass, two a multiply-add, counted by PyTorch as it runs."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(given)
    return float(counter.get_total_flops())


def machine(device: torch.device) -> str:
    """The machine in one line."""
    if device.type == "cuda":
        where = f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    else:
        where = f"{cpu_name()}, {torch.get_num_threads()} thread(s)"
    return f"{where}; torch {torch.__version__}, Python {platform.python_version()}"


def cpu_name() -> str:
    """The processor's name, with the matrix units it has."""
    known = [k for k, v in torch.cpu.get_capabilities().items() if v is True and k in ("amx_bf16", "avx512_bf16")]
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return " ".join([name, *sorted(known)])


def markdown(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown; numbers get three significant figures."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def last_line(ratios: Mapping[str, float]) -> str:
    """The ratios as one line of JSON."""
    return json.dumps({name: float(f"{value:.3g}") for name, value in ratios.items()})


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
