"""From the command line's options to a run: its config, its folder, its data, its networks."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from data_synth import Degrade
from deblur.devices import keep_freed_memory, resolve_device
from deblur.errors import OptionError
from training.checkpoint import checkpoints, load_generator, newest_checkpoint
from training.config import Bucket, Stage, TrainConfig, load_config, save_config
from training.data import LEAST_FITTING, Batches, CropSampler, FaceStore, parse_source, split_faces
from training.distributed import Group, join, local_device
from training.recipes import recipe
from training.run import Outputs, Run, Signals, build_validation
from training.trainer import Trainer
from training.validation import SEED
from training.watch import Board, Log, Progress, progress_display

CONFIG_NAME = "config.json"
# Options that replace a field of the config of the same name.
_FIELDS = (
    *("steps", "minutes", "seed", "precision", "accumulate", "compile", "validate", "validate_every", "detect"),
    *("checkpoint_minutes", "keep", "log_every", "perceptual_weights", "identity_weights", "init"),
)


def train(options: argparse.Namespace) -> int:
    """Sets the run up and trains to its end, or to a signal.

    Returns:
        0: finished, or stopped by a signal after a checkpoint.

    Raises:
        DeblurError: something asked for is not there or not allowed; or the run came to nothing but NaN.
    """
    tune_process()
    config = configure(options)
    device = local_device(resolve_device(options.device))
    with Signals() as signals:
        group = join(device)
        try:
            finished = _train(config, options, device, group, signals)
        finally:
            group.leave()
    if group.first and not finished:
        sys.stderr.write(f"stopped; a checkpoint is written. Go on with: --out {options.out} --resume\n")
    return 0


def tune_process() -> None:
    """Settings that make training faster and concern the whole process."""
    import cv2

    keep_freed_memory()
    cv2.setNumThreads(1)  # crops are small, and the threads that make them are ours
    torch.backends.cudnn.benchmark = True  # a run has a handful of crop sizes


def configure(options: argparse.Namespace) -> TrainConfig:
    """The run's config: of the run that is resumed, of a file, or of a recipe; with the flags on top.

    Raises:
        OptionError: options contradict each other, or a value is not allowed.
        DataError: there is no data to train on, or nothing to resume.
    """
    config = _base(options)
    changes: dict[str, Any] = {}
    for name in _FIELDS:
        value = getattr(options, name)
        if value is not None:
            # A path must hold wherever the run is resumed from; a bundled name is none.
            is_path = isinstance(value, str) and Path(value).exists()
            changes[name] = str(Path(value).resolve()) if is_path else value
    if options.minutes is not None and options.steps is None:
        changes["steps"] = 0
    if options.steps is not None and options.minutes is None:
        changes["minutes"] = 0.0
    if options.data:
        changes["data"] = tuple(_absolute(item) for item in options.data)
    config = scaled(replace(config, **changes), options.batch_scale)
    config = _with_weights(config, options)
    if not config.data:
        raise OptionError("--data: expected faces to train on (a CelebA root, zip, folder or packed tar)")
    if not config.steps and not config.minutes:
        raise OptionError("expected --steps or --minutes above 0")
    return config


def _base(options: argparse.Namespace) -> TrainConfig:
    own = options.out / CONFIG_NAME
    if options.resume and own.exists():
        # A job's command line may say --resume from its first start on: how it began no longer matters then.
        return load_config(own)
    if options.config:
        if options.recipe:
            raise OptionError("--recipe and --config: expected one of the two")
        return load_config(options.config / CONFIG_NAME if options.config.is_dir() else options.config)
    config = recipe(options.recipe or ("finetune" if options.init else "fast"))
    return replace(config, generator=load_generator(options.init).config) if options.init else config  # type: ignore[arg-type]


def _with_weights(config: TrainConfig, options: argparse.Namespace) -> TrainConfig:
    loss, optimizer = config.loss, config.optimizer
    if options.perceptual is not None:
        loss = replace(loss, perceptual_weight=options.perceptual)
    if options.identity is not None:
        loss = replace(loss, identity_weight=options.identity)
    if options.adversarial is not None:
        loss = replace(loss, adversarial_weight=options.adversarial)
    if options.rate is not None:
        optimizer = replace(optimizer, learning_rate=options.rate)
    return replace(config, loss=loss, optimizer=optimizer)


def scaled(config: TrainConfig, factor: float) -> TrainConfig:
    """The config with its batches that many times as large (rounded, at least 1).

    Raises:
        OptionError: the factor is not above zero.
    """
    if factor <= 0:
        raise OptionError(f"--batch-scale: expected a factor above 0, got {factor}")

    def scale(bucket: Bucket) -> Bucket:
        return replace(bucket, batch=max(1, round(bucket.batch * factor)))

    stages = tuple(Stage(until=s.until, buckets=tuple(map(scale, s.buckets))) for s in config.stages)
    return replace(config, stages=stages)


def _absolute(item: str) -> str:
    path, weight = parse_source(item)
    return str(path.resolve()) + (f"={weight:g}" if weight != 1 else "")


def _train(
    config: TrainConfig, options: argparse.Namespace, device: torch.device, group: Group, signals: Signals
) -> bool:
    check_folder(options.out, options.resume)
    display = progress_display(group.first)
    trainer = Trainer(config, device, group)
    resumed_at = _start(trainer, options, display)
    training, held_out = samplers(config, group)
    degrade = Degrade(config.degrade).to(device)
    batches = Batches(config, training, degrade, device, trainer.progress_at)
    group.wait()  # before this, the first process's files would look like another run's to the others
    validation = build_validation(config, held_out, degrade, trainer)
    if group.first:
        options.out.mkdir(parents=True, exist_ok=True)
        save_config(config, options.out / CONFIG_NAME)
    outputs = Outputs(
        folder=options.out,
        log=Log(options.out, resumed_at if group.first else None),
        board=Board(options.out, options.tensorboard if group.first else False),
        progress=display,
    )
    announce(config, trainer, batches, outputs)
    try:
        return Run(config, trainer, batches, validation, outputs).train(signals)
    finally:
        batches.close()
        if held_out:
            held_out.close()
        outputs.board.close()
        display.close()


def check_folder(run: Path, resume: bool) -> None:
    """Refuses to write over another run.

    Raises:
        OptionError: a run is there, and it is not to be resumed.
    """
    if not resume and ((run / CONFIG_NAME).exists() or checkpoints(run / "checkpoints")):
        raise OptionError(f"--out {run}: a run is there already; go on with --resume, or choose another folder")


def _start(trainer: Trainer, options: argparse.Namespace, display: Progress) -> int | None:
    """Loads what the run starts from; returns the step resumed at, or None in a new run."""
    if options.resume:
        state = newest_checkpoint(options.out)
        if state is not None:
            trainer.load_state_dict(state)
            display.say(f"resumed at step {trainer.step}")
            return trainer.step
        display.say("no checkpoint yet: the run starts from its beginning")
    if trainer.config.init:
        trainer.start_from(load_generator(trainer.config.init))
        display.say(f"warm start from {trainer.config.init}")
    return 0 if options.resume else None


def samplers(config: TrainConfig, group: Group) -> tuple[CropSampler, CropSampler | None]:
    """Where crops come from: for training, and of held-out faces (None where nothing is held out).

    Raises:
        DataError: a data set is not usable.
    """
    parsed = [parse_source(item) for item in config.data]
    held_out = 0.0 if config.validate or not config.validate_every else config.held_out
    splits = [split_faces(path, held_out) for path, _ in parsed]
    workers = max(2, min(8, (os.cpu_count() or 2) // group.world))
    room = config.cache_mib // len(parsed)
    stores = [FaceStore(train, room) for train, _ in splits]
    weights = [weight for _, weight in parsed]
    training = CropSampler(
        stores, weights, seed=config.seed, rank=group.rank, workers=workers, flat_share=config.flat_share
    )
    kept = [(FaceStore(valid, 64), w) for (_, valid), w in zip(splits, weights, strict=True) if valid.names]
    if not kept or config.validate or not config.validate_every:
        return training, None
    return training, CropSampler([s for s, _ in kept], [w for _, w in kept], seed=SEED, workers=2)


def announce(config: TrainConfig, trainer: Trainer, batches: Batches, outputs: Outputs) -> None:
    """Says what is trained, on what, in which batches."""
    world = trainer.group.world
    parameters = sum(p.numel() for p in trainer.generator.module.parameters())
    precision = str(trainer.dtype).removeprefix("torch.")
    say = outputs.progress.say
    say(f"recipe {config.recipe}: {config.generator.kind} generator, {parameters / 1e6:.2f} M parameters")
    say(f"device {trainer.device}, {precision}, {world} process{'es' if world > 1 else ''}, seed {config.seed}")
    for store in batches.sampler.stores:
        say(f"faces {store.sources.root}: {len(store)} for training")
    sizes: dict[str, int] = {}
    for bucket in (b for stage in config.stages for b in stage.buckets):
        name = f"{bucket.width}x{bucket.height}"
        if batches.sampler.fitting(bucket) < LEAST_FITTING:
            say(f"crops of {name} px left out: too few faces fit them")
            continue
        sizes[name] = bucket.batch * world * config.accumulate
        if world * config.accumulate > 1:
            parts = f"{bucket.batch} x {world} processes x {config.accumulate} accumulated"
            say(f"effective batch at {name} px: {parts} = {sizes[name]}")
    if trainer.group.first:
        entry = {"step": trainer.step, "recipe": config.recipe, "parameters": parameters, "processes": world}
        outputs.log.write("start", entry | {"effective_batch": sizes, "device": str(trainer.device)})
