"""Where a training step's time goes, and what number formats and memory layouts bring, in one run.

* profile of a step of a recipe: reading and cropping, blur, forward and losses, discriminator, backward, optimizer,
  average; with the share of reading and blur together,
* the same step in bfloat16 + channels last against float32 (each with what `keep_freed_memory` brings),
* cost of the perceptual and adversarial losses over pixel losses alone.

Run `python -m benchmarks.training [--smoke] [--threads N] [--faces FOLDER]`. The last line is JSON. Rounds of what is
compared are interleaved and the median is taken. With one thread (the default) on a CPU, times are processor time, so
that a busy machine does not blur them; with more, and on a GPU, they are those of the clock.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import torch
from safetensors.torch import save_file

from data_synth import Degrade
from data_synth.sources import open_sources
from deblur.devices import keep_freed_memory, resolve_device
from deblur.errors import DeblurError
from training.config import Bucket, Stage, TrainConfig
from training.data import CropSampler, FaceStore, Pair
from training.losses import LossConfig
from training.perceptual import _vgg
from training.recipes import CELEBA, LARGE, MIDDLE, SMALL, finetune, pixels, tiny
from training.trainer import Trainer

FACES = 100


class Clock:
    """Adds up seconds by name."""

    def __init__(self, device: torch.device, threads: int):
        self.seconds: dict[str, float] = defaultdict(float)
        self.device = device
        self.now = time.process_time if device.type == "cpu" and threads == 1 else time.perf_counter

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Adds the time of its block."""
        began = self.stamp()
        yield
        self.seconds[name] += self.stamp() - began

    def stamp(self) -> float:
        """Now, with the device's work done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.now()


def one_bucket(config: TrainConfig, bucket: Bucket) -> TrainConfig:
    """The config with crops of one size throughout."""
    return replace(config, stages=(Stage(until=1.0, buckets=(bucket,)),), steps=10_000, minutes=0.0)


def make_faces(folder: Path, count: int, side: int) -> Path:
    """Writes pictures that stand in for faces."""
    rng = np.random.default_rng(0)
    for i in range(count):
        small = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f"{i}.jpg"), cv2.resize(small, (side, side), interpolation=cv2.INTER_CUBIC))
    return folder


def random_vgg(path: Path) -> str:
    """Writes a VGG16 of random weights: speed does not depend on them."""
    features, _ = _vgg("vgg16", ("relu3_3",))
    save_file({f"features.{k}": v.contiguous() for k, v in features.state_dict().items()}, path)
    return str(path)


def profile(config: TrainConfig, faces: Path, device: torch.device, threads: int, steps: int) -> dict[str, float]:
    """Seconds of each part of a step; reading is timed on decoded faces, as in all epochs but the first."""
    bucket = config.stages[0].buckets[0]
    sources = open_sources(faces)
    store = FaceStore(replace(sources, names=sources.names[:FACES]), 2048)
    sampler = CropSampler([store], [1.0], seed=0)
    degrade, trainer, clock = Degrade(config.degrade).to(device), Trainer(config, device), Clock(device, threads)
    with clock.measure("decode"):
        decoded = [store[index] for index in range(len(store))]
    print(f"\na face is decoded in {1000 * clock.seconds['decode'] / len(decoded):.1f} ms, the first time only")
    for step in range(steps + 2):
        if step == 2:
            clock.seconds.clear()
        with clock.measure("read and crop"):
            crops, seeds = sampler.batch(step, bucket)
        with clock.measure("blur"):
            levels = torch.from_numpy(crops).to(device).permute(0, 3, 1, 2)
            sharp = levels.float().div_(255)
            blurred, _ = degrade(levels, seeds=seeds.to(device))
            blurred = blurred.contiguous(memory_format=torch.channels_last)
        _timed_step(trainer, (blurred, sharp), clock)
    sampler.close()
    return {name: seconds / steps for name, seconds in clock.seconds.items()}


def _timed_step(trainer: Trainer, pair: Pair, clock: Clock) -> None:
    """`Trainer.train_step` on one batch, taken apart."""
    blurred, sharp = pair
    with clock.measure("forward"):
        restored = trainer.restore(blurred)
    if trainer.discriminator is not None:
        with clock.measure("discriminator"):
            trainer._discriminator_steps([pair], [restored.detach()])
    trainer.generator.clear()
    with clock.measure("losses"):
        total = torch.stack(list(trainer.loss_terms(restored, sharp).values())).sum()
    with clock.measure("backward"):
        trainer.generator.backward(total)
    with clock.measure("optimizer"):
        trainer.generator.step(total)
    with clock.measure("average"):
        trainer.ema.update(trainer.generator.module)


def compare(sides: dict[str, Callable[[], object]], clock: Clock, rounds: int) -> dict[str, float]:
    """Median seconds of each side, in turn, after one round that does not count."""
    seen: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, work in sides.items():
            began = clock.stamp()
            work()
            if turn:
                seen[name].append(clock.stamp() - began)
    return {name: statistics.median(times) for name, times in seen.items()}


def stepper(config: TrainConfig, device: torch.device, *, plain_layout: bool = False) -> Callable[[], object]:
    """A training step on fixed pictures."""
    bucket = config.stages[0].buckets[0]
    trainer = Trainer(config, device)
    if trainer.discriminator is not None:
        trainer.discriminator.steps = 1 + config.loss.discriminator_warmup
    sharp = torch.rand(bucket.batch, 3, bucket.height, bucket.width, device=device)
    layout = torch.contiguous_format if plain_layout else torch.channels_last
    if plain_layout:
        trainer.generator.module.to(memory_format=layout)  # type: ignore[call-overload]
    pair = ((sharp * 0.9).contiguous(memory_format=layout), sharp.contiguous(memory_format=layout))
    return lambda: trainer.train_step([pair])


def report(title: str, values: dict[str, float]) -> None:
    """Prints milliseconds and shares."""
    total = sum(values.values())
    print(f"\n{title}: {1000 * total:.1f} ms")
    for name, seconds in values.items():
        print(f"  {name:16} {1000 * seconds:8.1f} ms  {seconds / total:6.1%}")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a tiny network and two rounds: does it run?")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--faces", type=Path, help="by default pictures made on the spot")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    keep_freed_memory()
    cv2.setNumThreads(1)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        try:
            figures = measure(options, resolve_device(options.device), Path(folder))
        except DeblurError as error:  # faces that are smaller than a crop, most likely
            parser.exit(3, f"benchmarks.training: {error}\n")
    print(json.dumps(figures))


def measure(options: argparse.Namespace, device: torch.device, folder: Path) -> dict[str, float]:
    """All figures, printed as they come."""
    rounds = 2 if options.smoke else options.rounds
    vgg = random_vgg(folder / "vgg.safetensors")
    (folder / "faces").mkdir()
    faces = options.faces or make_faces(folder / "faces", 16 if options.smoke else 200, 300)
    buckets = [replace(b, max_side=0) for b in (SMALL, CELEBA, MIDDLE, LARGE)]
    base, full = pixels(), replace(finetune(), perceptual_weights=vgg)
    if options.smoke:
        small = replace(tiny(), precision="auto", loss=LossConfig())
        base, buckets = small, [Bucket(height=32, width=32, batch=2)]
        full = replace(small, perceptual_weights=vgg, loss=LossConfig(perceptual_weight=0.1, adversarial_weight=0.01))
    figures: dict[str, float] = {}
    for bucket in buckets:
        parts = profile(one_bucket(base, bucket), faces, device, options.threads, rounds)
        name = f"{bucket.width}x{bucket.height}"
        report(f"pixel losses, {bucket.batch} crops of {name} px", parts)
        figures[f"data_share_{name}"] = (parts["read and crop"] + parts["blur"]) / sum(parts.values())
    report(
        f"all losses, crops of {buckets[-1].width} px",
        profile(one_bucket(full, buckets[-1]), faces, device, options.threads, rounds),
    )
    middle = buckets[min(2, len(buckets) - 1)]
    clock = Clock(device, options.threads)
    exact = replace(one_bucket(base, middle), precision="fp32")
    sides = {
        "bf16_channels_last": stepper(replace(exact, precision="bf16"), device),
        "bf16_plain": stepper(replace(exact, precision="bf16"), device, plain_layout=True),
        "fp32_channels_last": stepper(exact, device),
        "fp32_plain": stepper(exact, device, plain_layout=True),
        "all_losses": stepper(one_bucket(full, middle), device),
    }
    times = compare(sides, clock, rounds)
    print(f"\na step on {middle.batch} crops of {middle.width}x{middle.height} px, without data")
    for name, seconds in times.items():
        ratio = times["fp32_plain"] / seconds
        print(f"  {name:20} {1000 * seconds:8.1f} ms  {ratio:5.2f} times the speed of fp32, plain")
    figures["bf16_channels_last_over_fp32"] = times["fp32_plain"] / times["bf16_channels_last"]
    figures["all_losses_over_pixel_losses"] = times["all_losses"] / times["bf16_channels_last"]
    return {name: round(value, 3) for name, value in figures.items()}


if __name__ == "__main__":
    main()
