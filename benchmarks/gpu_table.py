"""The generator on a GPU: one command, no network, no detector.

    python -m benchmarks.gpu_table [--weights NAME|FILE] [--device auto] [--compile] [--smoke]

Needs PyTorch, torchvision, NumPy, OpenCV, Pillow and safetensors. The table is that of `benchmarks.generator` with CUDA
graphs beside the plain calls (and torch.compile where asked), timed by events after a warm-up, medians; then faces a
second from host memory to host memory through the batches that the library makes (pinned copies on a side stream),
against the device alone. On a machine without CUDA it runs on the CPU. The last line holds the ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from benchmarks.generator import DTYPES, HEADER, Row, measure, ratios, sample, torch_ways
from benchmarks.timing import last_line, machine, markdown
from deblur.batching import in_batches
from deblur.devices import keep_freed_memory, resolve_device
from deblur.inference import Runner
from deblur.weights import Weights, load_weights


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="default", help="bundled name or file")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--compile", action="store_true", help="torch.compile too: a minute a size")
    parser.add_argument("--smoke", action="store_true", help="one small size, once; checks that the script runs")
    args = parser.parse_args()
    keep_freed_memory()
    device, weights = resolve_device(args.device), load_weights(args.weights)
    rows = measure(
        torch_ways(weights, device, "graphs", *(("compile",) if args.compile else ())),
        weights,
        device,
        sides=(64,) if args.smoke else (128, 256, 512),
        batches=(1, 2) if args.smoke else (1, 16, 64),
        rounds=1 if args.smoke else args.rounds,
        smoke=args.smoke,
    )
    print(machine(device))
    print(markdown(HEADER, [row.cells() for row in rows]))
    sides, count = ((64,), 4) if args.smoke else ((128, 256, 512), 256)
    rates = {side: host_to_host(weights, device, side, count, 1 if args.smoke else 5) for side in sides}
    table = [(side, count, rate, rate / device_rate(rows, side)) for side, rate in rates.items()]
    print(markdown(("px", "faces", "faces/s host to host, bf16", "of the device alone"), table))
    shares = {f"host to host/device {side} px": rate / device_rate(rows, side) for side, rate in rates.items()}
    print(last_line({**ratios(rows), **shares}))


def host_to_host(weights: Weights, device: torch.device, side: int, count: int, rounds: int) -> float:
    """Faces a second through the library's batches, by the clock."""
    runner = Runner(weights.generator.to(device), device, DTYPES["bf16"])
    inputs = list(sample(side, count))
    in_batches(inputs, runner.launch)
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        in_batches(inputs, runner.launch)
        taken.append(time.perf_counter() - began)
    return count / statistics.median(taken)


def device_rate(rows: list[Row], side: int) -> float:
    """Faces a second of the best batch in bfloat16, run eagerly on inputs that are on the device."""
    chosen = [
        r for r in rows if (r.way.name, r.way.runs_in, r.way.format, r.side) == ("default", "eager", "bf16", side)
    ]
    return max(r.batch / r.seconds for r in chosen)


if __name__ == "__main__":
    main()
