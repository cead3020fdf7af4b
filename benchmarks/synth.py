"""Speed of the synthesizer against what people use today, in one run.

* kernels a second against the same trajectory model written step by step in Python,
* blurred 128 px faces a second against `albumentations.MotionBlur` at the same extent.

Run `python -m benchmarks.synth [--smoke] [--threads N]`. The last line is JSON with the ratios. Rounds of both
sides are interleaved and the median is taken. With one thread (the default) rates are per second of processor
time, so that a busy machine does not blur them; with more they are per second of the clock.
"""

import argparse
import json
import math
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import cv2
import numpy as np
import torch

from data_synth import Degrade, DegradeConfig, KernelBank, default, sample_kernels
from data_synth import trajectory as model
from deblur.devices import keep_freed_memory

EXTENT_PX = 21
SIDE = 128


def python_kernel(rng: random.Random, extent_px: float, size: int) -> np.ndarray:
    """One (size, size) kernel of the same model as data_synth's, one step at a time."""
    choice = rng.random()
    path = python_walk(rng) if choice < 0.4 else python_smooth(rng) if choice < 0.85 else python_line(rng)
    xs, ys = [x for x, _ in path], [y for _, y in path]
    scale = extent_px / max(max(xs) - min(xs), max(ys) - min(ys), 1e-6)
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    kernel = np.zeros((size, size), dtype=np.float32)
    for x, y in path:
        px, py = (x - mean_x) * scale + size // 2, (y - mean_y) * scale + size // 2
        column, row = math.floor(px), math.floor(py)
        right, down = px - column, py - row
        kernel[row, column] += (1 - right) * (1 - down)
        kernel[row, column + 1] += right * (1 - down)
        kernel[row + 1, column] += (1 - right) * down
        kernel[row + 1, column + 1] += right * down
    return kernel / len(path)


def python_walk(rng: random.Random) -> list[tuple[float, float]]:
    """Boracchi and Foi's random motion in complex numbers."""
    anxiety, tremor = rng.random(), rng.uniform(*model.TREMOR_RAD)
    pull, impulses = rng.uniform(*model.CENTRIPETAL), rng.uniform(*model.IMPULSES)
    exposure = rng.uniform(*model.EXPOSURE)
    step = 1.0 / model.STEPS
    turn = anxiety * tremor * math.sqrt(step)
    angle = 2 * math.pi * rng.random()
    heading, position = complex(math.cos(angle), math.sin(angle)), 0j
    path = []
    for _ in range(model.STEPS):
        change = turn * complex(rng.gauss(0, 1), rng.gauss(0, 1)) - anxiety * pull * step * position
        if rng.random() < anxiety * impulses * step:
            swing = math.pi + rng.random() - 0.5
            change += 2 * heading * complex(math.cos(swing), math.sin(swing))
        heading += change
        heading /= abs(heading)
        position += heading * step
        path.append(position)
    seen = []
    for i in range(model.STEPS):
        before = min(int(i * exposure), model.STEPS - 2)
        share = i * exposure - before
        point = path[before] * (1 - share) + path[before + 1] * share
        seen.append((point.real, point.imag))
    return seen


def python_smooth(rng: random.Random) -> list[tuple[float, float]]:
    """The Gaussian process by random Fourier features."""
    scale = math.exp(rng.uniform(*(math.log(bound) for bound in model.LENGTH_SCALE)))
    flatness, angle = rng.uniform(*model.FLATNESS), 2 * math.pi * rng.random()
    waves = [
        [(rng.gauss(0, 1) / scale, 2 * math.pi * rng.random(), rng.gauss(0, 1)) for _ in range(8)] for _ in range(2)
    ]
    path = []
    for i in range(model.STEPS):
        t = i / (model.STEPS - 1)
        along, across = (sum(w * math.cos(f * t + p) for f, p, w in axis) for axis in waves)
        across *= flatness
        path.append(
            (
                math.cos(angle) * along - math.sin(angle) * across,
                math.sin(angle) * along + math.cos(angle) * across,
            )
        )
    return path


def python_line(rng: random.Random) -> list[tuple[float, float]]:
    """A straight path of uniform acceleration."""
    angle, acceleration = 2 * math.pi * rng.random(), rng.uniform(*model.ACCELERATION)
    path = []
    for i in range(model.STEPS):
        t = i / (model.STEPS - 1)
        along = t + acceleration * t * (t - 1)
        path.append((math.cos(angle) * along, math.sin(angle) * along))
    return path


def rates(jobs: dict[str, tuple[int, Callable[[], object]]], rounds: int, threads: int) -> dict[str, list[float]]:
    """Items a second of every job (items a call, call), of rounds run in turn, sorted."""
    clock = time.process_time if threads == 1 else time.perf_counter
    for _, call in jobs.values():
        call()
    samples: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, (items, call) in jobs.items():
            start = clock()
            call()
            samples[name].append(items / (clock() - start))
    return {name: sorted(values) for name, values in samples.items()}


def faces(count: int) -> np.ndarray:
    """Stand-ins for faces, (count, SIDE, SIDE, 3) uint8: the cost does not depend on what is shown."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return np.stack([cv2.resize(c, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC) for c in coarse])


def degrade_call(config: DegradeConfig, batch: torch.Tensor) -> Callable[[], object]:
    """A call that blurs the batch at the common extent."""
    degrade = Degrade(config)
    extents = torch.full((len(batch),), float(EXTENT_PX))
    return lambda: degrade(batch, extent_px=extents)


def main() -> None:
    """Measures and prints; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--smoke", action="store_true", help="seconds instead of a minute; figures are rough")
    parser.add_argument("--threads", type=int, default=1, help="threads of both sides; default 1")
    options = parser.parse_args()
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # its import would ask the network for a newer version
    import albumentations

    keep_freed_memory()
    torch.set_num_threads(options.threads)
    cv2.setNumThreads(options.threads)
    rounds, kernels, batch = (3, 1024, 16) if options.smoke else (15, 4096, 32)
    pictures = faces(batch)
    tensor = torch.from_numpy(pictures).permute(0, 3, 1, 2)  # 8-bit levels, as albumentations gets them
    motion_blur = albumentations.MotionBlur(blur_limit=(EXTENT_PX, EXTENT_PX), p=1.0)
    rng = random.Random(0)
    size = 2 * EXTENT_PX + 3
    bank = replace(default(), bank_size=2048)
    plain = replace(
        bank, rotation_share=0.0, subject_share=0.0, saturation_share=0.0, noise_share=0.0,
        bayer_share=0.0, jpeg_share=0.0, linear_light=False,
    )  # fmt: skip
    camera = replace(bank, rotation_share=0.0, subject_share=0.0, bayer_share=0.0, jpeg_share=0.0)
    paths = KernelBank(kernels)
    index, extents = torch.arange(kernels), torch.full((kernels,), float(EXTENT_PX))
    jobs: dict[str, tuple[int, Callable[[], object]]] = {
        "python kernels": (40, lambda: [python_kernel(rng, EXTENT_PX, size) for _ in range(40)]),
        "our kernels": (kernels, lambda: sample_kernels(kernels, EXTENT_PX, seed=rng.randrange(1 << 60), size=size)),
        "our kernels, from a bank": (kernels, lambda: paths.kernels(index, extents, size)),
        "albumentations.MotionBlur": (batch, lambda: [motion_blur(image=p)["image"] for p in pictures]),
        "ours, blur alone": (batch, degrade_call(plain, tensor)),
        "ours, linear light, noise": (batch, degrade_call(camera, tensor)),
        "ours, default recipe": (batch, degrade_call(bank, tensor)),
    }
    samples = rates(jobs, rounds, options.threads)
    rate = {name: statistics.median(values) for name, values in samples.items()}
    print(f"{options.threads} thread(s), extent {EXTENT_PX} px, faces {SIDE} px, batch {batch}, {rounds} rounds")
    for name, values in samples.items():
        print(f"{name:28s}{rate[name]:12,.0f} /s   ({values[0]:,.0f} to {values[-1]:,.0f})")
    ratios = {
        "kernels_over_python": rate["our kernels"] / rate["python kernels"],
        "banked_kernels_over_python": rate["our kernels, from a bank"] / rate["python kernels"],
        "blur_over_motionblur": rate["ours, blur alone"] / rate["albumentations.MotionBlur"],
        "blur_and_noise_over_motionblur": rate["ours, linear light, noise"] / rate["albumentations.MotionBlur"],
        "default_recipe_over_motionblur": rate["ours, default recipe"] / rate["albumentations.MotionBlur"],
    }
    print(json.dumps({name: round(value, 2) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
