"""The folder pipeline against the loop of generator and detector that it cannot beat, and its peak memory.

    python -m benchmarks.folder [--weights NAME|FILE] [--pictures 48] [--threads 2] [--smoke]

Throughput: a folder of 512 px JPEG portraits with one blurred face each goes through `deblur.batch.run` (read, hash,
decode, detect, generate, blend, look again, encode, fsync, journal). The loop alone does nothing but detect, generate
and detect again on the same pictures, decoded beforehand. The two take turns, and the ratio is that of their medians.
The ratio of their CPU times is printed too: it holds on a machine that is busy with other things, where the clock
says little.

Memory: `deblur restore` on one 24 megapixel photo in a process of its own, once with two faces, once with none, which
goes through the whole picture in tiles. Peak resident memory, against a limit of 3 GB.

The last line holds the ratios. Run it with two threads on an idle machine.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from deblur.batch import Options, Settings, run
from deblur.batch.runner import default_jobs
from deblur.images import Picture, decode
from deblur.restoration import Restorer
from deblur.weights import load_weights

SAMPLES = Path(__file__).parent.parent / "samples" / "blurred"
SIDE_PX = 512
LIMIT_BYTES = 3e9


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="default", help="bundled name or file")
    parser.add_argument("--pictures", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=default_jobs())
    parser.add_argument("--smoke", action="store_true", help="few and small; checks that the script runs")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pictures, rounds, size = (3, 1, (600, 400)) if args.smoke else (args.pictures, args.rounds, (6000, 4000))
    ratio = throughput(args.weights, pictures, rounds, args.jobs)
    peaks = {faces: peak_memory(args.weights, size, faces) for faces in (2, 0)}
    for faces, peak in peaks.items():
        print(f"memory: {size[0]} x {size[1]} px, {faces} faces: peak {peak / 1e9:.2f} GB")
    shares = ", ".join(f"memory/limit {faces} faces {peak / LIMIT_BYTES:.2f}" for faces, peak in peaks.items())
    print(f"ratios: folder/loop {ratio:.2f}, {shares}")


def throughput(weights: str, pictures: int, rounds: int, jobs: int) -> float:
    """Pictures a second of the folder over those of the loop."""
    restorer = Restorer(load_weights(weights), device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in"
        source.mkdir()
        for index in range(pictures):
            Image.fromarray(portrait(index)).save(source / f"{index:04d}.jpg", quality=92)
        decoded = [decode(path) for path in sorted(source.iterdir())]
        loop(restorer, decoded[:2])  # warms up
        loops, folders = [], []
        for number in range(rounds):
            loops.append(loop(restorer, decoded))
            folders.append(through_folder(restorer, source, Path(folder) / f"out{number}", jobs))
    for name, times in (("loop alone", loops), (f"folder, {jobs} jobs", folders)):
        walls = ", ".join(f"{pictures / wall:.2f}" for wall, _ in times)
        print(f"{name}: {walls} pictures/s; {1e3 * _median(times, 1) / pictures:.0f} ms of CPU a picture")
    print(f"CPU time loop/folder {_median(loops, 1) / _median(folders, 1):.2f}")
    return _median(loops, 0) / _median(folders, 0)


def _median(times: list[tuple[float, float]], which: int) -> float:
    return statistics.median(pair[which] for pair in times)


def loop(restorer: Restorer, pictures: list[Picture]) -> tuple[float, float]:
    """Seconds, of the clock and of CPU, to detect, generate and detect again, one picture after the other."""
    planned = [restorer.plan(picture) for picture in pictures]
    inputs = [list(plan.inputs) for plan in planned]
    started, worked = time.perf_counter(), time.process_time()
    for picture, given, plan in zip(pictures, inputs, planned, strict=True):
        restorer.detector.detect(picture.levels)
        restorer.generate(given)
        for region in plan.regions:
            x0, y0, x1, y1 = region.box
            restorer.detector.detect(picture.levels[y0:y1, x0:x1])
    return time.perf_counter() - started, time.process_time() - worked


def through_folder(restorer: Restorer, source: Path, output: Path, jobs: int) -> tuple[float, float]:
    """Seconds, of the clock and of CPU, of a run over the folder."""
    started, worked = time.perf_counter(), time.process_time()
    summary = run(Options(inputs=(source,), settings=Settings(output=output, jobs=jobs)), lambda: restorer)
    seconds = time.perf_counter() - started, time.process_time() - worked
    if summary.failed or summary.written == 0:
        raise SystemExit(f"the run failed: {summary.failed[:3]}")
    return seconds


def portrait(index: int) -> NDArray[np.uint8]:
    """(512, 512, 3): a sample with one face, mirrored and moved so that no two are equal."""
    sample = Image.open(SAMPLES / ("astronaut.jpg", "hopper.jpg")[index % 2]).convert("RGB")
    side = min(sample.size)
    left = (sample.width - side) // 2
    square = sample.crop((left, 0, left + side, side)).resize((SIDE_PX, SIDE_PX))
    pixels = np.asarray(square)
    if index // 2 % 2:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(np.roll(pixels, index // 4, axis=1))


def photo(size: tuple[int, int], faces: int) -> NDArray[np.uint8]:
    """(height, width, 3): a smooth background with grain and as many portraits."""
    width, height = size
    rng = np.random.default_rng(0)
    ramp = np.linspace(60, 190, width, dtype=np.float32)[None, :, None]
    pixels = np.repeat(ramp + np.zeros((height, 1, 3), np.float32), 1, axis=0)
    pixels += rng.integers(-6, 7, (height, width, 1)).astype(np.float32)
    levels = pixels.clip(0, 255).astype(np.uint8)
    side = min(1200, height // 2)
    for number in range(faces):
        tile = np.asarray(Image.fromarray(portrait(number)).resize((side, side)))
        left = number * width // max(1, faces)
        levels[height // 4 : height // 4 + side, left : left + side] = tile
    return levels


def peak_memory(weights: str, size: tuple[int, int], faces: int) -> float:
    """Peak resident bytes of `deblur restore` on one photo."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "photo.jpg"
        Image.fromarray(photo(size, faces)).save(path, quality=92)
        command = [sys.executable, "-m", "deblur", "restore", str(path), "-o", str(Path(folder) / "out")]
        code = (
            "import resource, subprocess, sys\n"
            "result = subprocess.run(sys.argv[1:], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        )
        more = ["--weights", weights, "--device", "cpu"]
        measured = subprocess.run(
            [sys.executable, "-c", code, *command, *more], check=True, capture_output=True, text=True
        )
    unit = 1 if sys.platform == "darwin" else 1024
    return float(measured.stdout) * unit


if __name__ == "__main__":
    main()
