"""Speed of the generator, beside DeblurGAN's `resnet` and beside what the machine can do.

    python -m benchmarks.generator [--weights NAME|FILE] [--threads 2] [--device cpu] [--compile] [--smoke]

For faces of 128, 256 and 512 px, one at a time and sixteen together: milliseconds a face and a megapixel, the rate of
arithmetic, and its fraction of the best that plain matrix products and dense 3x3 convolutions reach on this machine in
that number format. Runs eagerly, through torch.compile where asked (a minute a size), with ONNX Runtime and with
OpenVINO where they are installed. `off` is the largest difference to float32 on a blurred sample, in levels of 255.
What is compared takes turns; medians. The last line holds the ratios.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.timing import Job, flops_of, last_line, machine, markdown, measured_peak, rounds_of
from deblur.devices import keep_freed_memory, resolve_device
from deblur.generator import build, resnet
from deblur.inference import Optimize, Runner
from deblur.weights import Weights, load_weights

SAMPLE = Path(__file__).parent.parent / "samples" / "blurred" / "astronaut.jpg"
SIDES, BATCHES = (128, 256, 512), (1, 16)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HEADER = (
    "generator",
    "runs in",
    "format",
    "px",
    "batch",
    "ms a face",
    "faces/s",
    "ms a MP",
    "GFLOP/s",
    "of peak",
    "off",
)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to run a generator: `prepare` gives the job for an input and the call that answers it."""

    name: str
    runs_in: str
    format: str
    prepare: Callable[[Tensor], Callable[[], Tensor]]
    sides: tuple[int, ...] = SIDES


@dataclass(frozen=True, kw_only=True)
class Row:
    """A measurement."""

    way: Way
    side: int
    batch: int
    seconds: float
    flops: float
    peak: float
    off: float

    def cells(self) -> tuple[object, ...]:
        """As in HEADER."""
        face_s = self.seconds / self.batch
        rate = self.flops / self.seconds
        return (
            *(self.way.name, self.way.runs_in, self.way.format, self.side, self.batch),
            *(1e3 * face_s, 1 / face_s, 1e9 * face_s / self.side**2, rate / 1e9, rate / self.peak, self.off),
        )


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="default", help="bundled name or file")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sides", type=int, nargs="+", default=SIDES, metavar="PX")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, metavar="FACES")
    parser.add_argument("--compile", action="store_true", help="torch.compile too, at 128 px")
    parser.add_argument("--smoke", action="store_true", help="one small size, once; checks that the script runs")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    device, weights = resolve_device(args.device), load_weights(args.weights)
    with tempfile.TemporaryDirectory() as folder:
        ways = torch_ways(weights, device, "compile" if args.compile else "none")
        if device.type == "cpu" and not args.smoke:
            ways += exported_ways(weights, Path(folder), args.threads)
        rows = measure(
            ways,
            weights,
            device,
            sides=(64,) if args.smoke else tuple(args.sides),
            batches=(1, 2) if args.smoke else tuple(args.batches),
            rounds=1 if args.smoke else args.rounds,
            smoke=args.smoke,
        )
    print(machine(device))
    print(markdown(HEADER, [row.cells() for row in rows]))
    print(last_line(ratios(rows)))


def measure(
    ways: list[Way],
    weights: Weights,
    device: torch.device,
    *,
    sides: tuple[int, ...],
    batches: tuple[int, ...],
    rounds: int,
    smoke: bool = False,
) -> list[Row]:
    """Every way at every size."""
    formats = {way.format for way in ways}
    peaks = {name: measured_peak(device, DTYPES[name], rounds, smoke) for name in sorted(formats)}
    for name, (peak, where) in peaks.items():
        print(f"peak {name}: {peak / 1e9:,.0f} GFLOP/s ({where})")
    generators = _generators(weights)
    rows = []
    for side in sides:
        for batch in batches:
            given = sample(side, batch).to(device, memory_format=torch.channels_last)
            chosen = [way for way in ways if smoke or side in way.sides]
            calls = {way: way.prepare(given) for way in chosen}
            with torch.inference_mode():
                exact = {name: g.to(device)(given) for name, g in generators.items()}
                off = {way: 255 * float((call().float() - exact[way.name]).abs().max()) for way, call in calls.items()}
                jobs: dict[str, Job] = {f"{way.name} {way.runs_in} {way.format}": calls[way] for way in chosen}
                seconds = rounds_of(jobs, device, rounds)
            flops = {name: batch * flops_of(generator, given[:1]) for name, generator in generators.items()}
            for way, taken in zip(chosen, seconds.values(), strict=True):
                peak = peaks[way.format][0]
                row = Row(
                    way=way, side=side, batch=batch, seconds=taken, flops=flops[way.name], peak=peak, off=off[way]
                )
                rows.append(row)
    return rows


def torch_ways(weights: Weights, device: torch.device, *optimize: Optimize) -> list[Way]:
    """PyTorch, in the formats that the device has; `resnet` eagerly alone."""
    formats = ("fp32", "bf16", "fp16") if device.type == "cuda" else ("fp32", "bf16")
    ways = []
    for name, generator in _generators(weights).items():
        for format in formats:
            moved = generator.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            for how in dict.fromkeys(("none", *optimize)):
                if how != "none" and (name == "resnet" or format == "fp32"):
                    continue
                runner = Runner(moved, device, DTYPES[format], how)  # type: ignore[arg-type]
                ways.append(
                    Way(
                        name=name,
                        runs_in="eager" if how == "none" else str(how),
                        format=format,
                        prepare=lambda given, runner=runner: lambda: runner.on_device(given),  # type: ignore[misc]
                        sides=(128,) if how == "compile" and device.type == "cpu" else SIDES,
                    )
                )
    return ways


def _generators(weights: Weights) -> dict[str, nn.Module]:
    torch.manual_seed(0)  # the same `resnet` each time; its weights do not matter to its speed
    return {"default": weights.generator, "resnet": build(resnet()).eval().requires_grad_(False)}


def exported_ways(weights: Weights, folder: Path, threads: int) -> list[Way]:
    """ONNX Runtime and OpenVINO, where they are installed."""
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")):
        return []
    from deblur.export import export_onnx
    from deblur.onnx_backend import OnnxGenerator

    path = folder / "default.onnx"
    export_onnx(weights, path)
    generator = OnnxGenerator(path, threads)

    def onnx(given: Tensor) -> Callable[[], Tensor]:
        array = given.contiguous().numpy()
        return lambda: torch.from_numpy(generator(array))

    ways = [Way(name="default", runs_in="ONNX Runtime", format="fp32", prepare=onnx)]
    if importlib.util.find_spec("openvino") is not None:
        ways += [_openvino(path, format, threads) for format in ("fp32", "bf16")]
    return ways


def _openvino(path: Path, format: str, threads: int) -> Way:
    from deblur.openvino_backend import OpenVinoGenerator

    generator = OpenVinoGenerator(path, threads, format)

    def prepare(given: Tensor) -> Callable[[], Tensor]:
        array = given.contiguous().numpy()
        return lambda: torch.from_numpy(generator(array))

    return Way(name="default", runs_in="OpenVINO", format=format, prepare=prepare)


def sample(side: int, batch: int) -> Tensor:
    """(batch, 3, side, side) float32: a blurred portrait, moved by a pixel from one to the next."""
    with Image.open(SAMPLE) as image:
        square = image.convert("RGB").crop((0, 0, min(image.size), min(image.size))).resize((side, side))
    pixels = np.asarray(square, np.float32) / 255
    return torch.stack([torch.from_numpy(np.roll(pixels, i, 1).transpose(2, 0, 1).copy()) for i in range(batch)])


def ratios(rows: list[Row]) -> dict[str, float]:
    """What the last line says, at the smallest size measured."""
    least = min(row.side for row in rows)
    found: dict[str, float] = {}
    for batch in sorted({row.batch for row in rows}):
        taken = {
            (r.way.name, r.way.runs_in, r.way.format): r.seconds for r in rows if (r.side, r.batch) == (least, batch)
        }
        for format in ("fp32", "bf16"):
            ours, theirs = (taken.get((name, "eager", format)) for name in ("default", "resnet"))
            if ours and theirs:
                found[f"resnet/default {least} px x{batch} {format}"] = theirs / ours
        eager = taken.get(("default", "eager", "bf16"))
        for (name, runs_in, format), seconds in taken.items():
            if name == "default" and runs_in != "eager" and eager:
                found[f"{runs_in} {format}/eager bf16 {least} px x{batch}"] = seconds / eager
    low = [r for r in rows if r.way.name == "default" and r.way.format == "bf16"]
    found["bf16 of peak, best"] = max(r.flops / r.seconds / r.peak for r in low)
    eager_low = [r for r in low if r.way.runs_in == "eager"]
    found["bf16 of peak, best eager"] = max(r.flops / r.seconds / r.peak for r in eager_low)
    return found


if __name__ == "__main__":
    main()
