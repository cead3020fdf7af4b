"""What a run is: frozen dataclasses, and recipes as functions that return a whole one."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from data_synth import DegradeConfig, shen2018
from data_synth import default as default_blur
from deblur.errors import OptionError
from deblur.generator import GeneratorConfig, gated, resnet


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One size of crops. Each step draws its whole batch from one bucket.

    Attributes:
        height: crop height, px.
        width: crop width, px. Faces from smaller pictures are never enlarged: they go to smaller buckets.
        batch: samples a step and process.
        share: how often this bucket is drawn, relative to the others of its stage.
        zoom: range of crop side over the picture's shorter side at the working scale, log-uniform: 1 takes as
            much of the picture as the crop's shape allows, 1.5 a region half as large again.
        max_side: pictures whose longer side is larger than this do not enter; 0 takes all. It keeps a bucket
            for small pictures at their own scale.
    """

    height: int
    width: int
    batch: int
    share: float = 1.0
    zoom: tuple[float, float] = (1.0, 1.4)
    max_side: int = 0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Buckets used until a fraction of the run is over.

    Attributes:
        until: end of the stage, as a fraction of the run in 0..1.
        buckets: sizes drawn from in this stage.
    """

    until: float
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights of the generator's losses; a weight of 0 leaves the loss out and costs nothing.

    Attributes:
        pixel: `charbonnier` (robust L1), `mse`, or `psnr` (mean log MSE of each sample).
        pixel_weight: weight of the pixel loss.
        fft_weight: weight of the L1 distance of orthonormal 2-D spectra.
        perceptual_weight: weight of the distance in feature space.
        perceptual_net: `vgg16` or `vgg19`, torchvision's, ImageNet weights.
        perceptual_layers: names of the feature maps compared, such as `relu3_3`.
        perceptual_distance: `l1` relative to the sharp features' mean size, or `mse`.
        adversarial: form of the adversarial loss: `hinge`, `ralsgan` (relativistic average least squares) or
            `wgan-gp` (Wasserstein with gradient penalty).
        adversarial_weight: weight of the generator's adversarial loss.
        critic_steps: discriminator steps before each generator step.
        gradient_penalty: weight of the gradient penalty (`wgan-gp` only).
    """

    pixel: Literal["charbonnier", "mse", "psnr"] = "charbonnier"
    pixel_weight: float = 1.0
    fft_weight: float = 0.1
    perceptual_weight: float = 0.0
    perceptual_net: Literal["vgg16", "vgg19"] = "vgg16"
    perceptual_layers: tuple[str, ...] = ("relu2_2", "relu3_3")
    perceptual_distance: Literal["l1", "mse"] = "l1"
    adversarial: Literal["hinge", "ralsgan", "wgan-gp"] = "hinge"
    adversarial_weight: float = 0.0
    critic_steps: int = 1
    gradient_penalty: float = 10.0


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How weights move.

    Attributes:
        kind: `adamw`, `adam`, or `muon` (orthogonalised momentum for convolutions, AdamW for the rest).
        learning_rate: peak learning rate (of AdamW; Muon's is `muon_rate`).
        betas: decay of the first and second moment.
        weight_decay: decoupled weight decay.
        clip_norm: gradients are scaled down to this norm; 0 leaves them.
        warmup_steps: steps of linear warm-up.
        final_rate: learning rate at the end over the peak; the way there is a half cosine.
        muon_rate: peak learning rate of Muon.
        discriminator_rate: learning rate of the discriminator, constant after warm-up.
    """

    kind: Literal["adamw", "adam", "muon"] = "adamw"
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 1e-4
    clip_norm: float = 1.0
    warmup_steps: int = 200
    final_rate: float = 0.01
    muon_rate: float = 0.02
    discriminator_rate: float = 2e-4


@dataclass(frozen=True, kw_only=True)
class DiscriminatorConfig:
    """A patch discriminator.

    Attributes:
        width: channels after the first convolution.
        layers: stride-2 convolutions; each doubles the channels, up to eight times the width.
        norm: `spectral` (on the weights), `instance`, or `none`. The gradient penalty of `wgan-gp` is per
            sample, which batch statistics would break: batch norm is not offered.
    """

    width: int = 48
    layers: int = 3
    norm: Literal["spectral", "instance", "none"] = "spectral"


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole run.

    Attributes:
        generator: network that is trained.
        discriminator: network that judges; built only when an adversarial loss is on.
        degrade: blur, noise and compression of the pairs, which are made on the fly.
        loss: the losses and their weights.
        optimizer: how weights move.
        stages: crop sizes over the run.
        steps: length in generator steps; 0 leaves it to `minutes`.
        minutes: length in minutes of training time; 0 leaves it to `steps`.
        ema_decay: decay of the averaged weights, which are what is validated and exported.
        precision: `auto` (bf16 where the device multiplies it fast), `fp32`, `bf16` or `fp16`.
        seed: seed of everything.
        accumulate: batches summed into one step.
        compile: compile the generator.
        validate_every: generator steps between validations; 0 never.
        validation_count: validation pairs.
        detect: run the face detector in validation.
        checkpoint_minutes: minutes between checkpoints.
        keep: checkpoints kept.
        log_every: steps between log lines.
        bad_steps: stop after this many steps in a row without finite numbers.
        cache_mib: decoded faces kept in memory, MiB.
    """

    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    discriminator: DiscriminatorConfig = field(default_factory=DiscriminatorConfig)
    degrade: DegradeConfig = field(default_factory=default_blur)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    stages: tuple[Stage, ...]
    steps: int = 0
    minutes: float = 0.0
    ema_decay: float = 0.999
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    seed: int = 0
    accumulate: int = 1
    compile: bool = False
    validate_every: int = 1000
    validation_count: int = 96
    detect: bool = False
    checkpoint_minutes: float = 4.0
    keep: int = 2
    log_every: int = 50
    bad_steps: int = 20
    cache_mib: int = 4096

    def __post_init__(self) -> None:
        if not self.stages or not all(stage.buckets for stage in self.stages):
            raise OptionError("stages: expected at least one stage with at least one bucket")
        ends = [stage.until for stage in self.stages]
        if ends != sorted(ends) or ends[-1] != 1.0:
            raise OptionError(f"stages: expected rising `until` that end at 1, got {ends}")

    def buckets_at(self, progress: float) -> tuple[Bucket, ...]:
        """Buckets of the stage that the run is in at a progress in 0..1."""
        return next((s.buckets for s in self.stages if progress < s.until), self.stages[-1].buckets)

    @property
    def adversarial(self) -> bool:
        """Whether a discriminator is trained."""
        return self.loss.adversarial_weight > 0


def fast() -> TrainConfig:
    """The default generator with pixel, perceptual and adversarial losses on mixed sizes."""
    return dataclasses.replace(
        pixels(),
        loss=LossConfig(perceptual_weight=0.1, adversarial_weight=0.01),
        optimizer=OptimizerConfig(learning_rate=2e-4),
        minutes=60.0,
    )


def pixels() -> TrainConfig:
    """The first phase of the bundled weights: pixel losses only, small crops first."""
    small = Bucket(height=64, width=64, batch=32, zoom=(1.0, 1.5))
    celeba = Bucket(height=104, width=88, batch=20, zoom=(1.0, 1.1), max_side=120)
    middle = Bucket(height=128, width=128, batch=16)
    large = Bucket(height=256, width=256, batch=4, share=0.15)
    return TrainConfig(
        generator=gated(stem=4, widths=[64, 128, 192], down=[2, 3, 5], up=[2, 2]),
        stages=(
            Stage(until=0.2, buckets=(small,)),
            Stage(
                until=0.9,
                buckets=(dataclasses.replace(celeba, share=0.4), middle),
            ),
            Stage(until=1.0, buckets=(dataclasses.replace(celeba, share=0.4), middle, large)),
        ),
        degrade=dataclasses.replace(default_blur(), rotation_share=0.35, noise_share=0.95),
        optimizer=OptimizerConfig(learning_rate=1.5e-3),
        minutes=60.0,
    )


def paper() -> TrainConfig:
    """The DeblurGAN form (Kupyn et al. 2018, section 3): resnet generator, WGAN-GP critic, content loss."""
    return TrainConfig(
        generator=resnet(),
        discriminator=DiscriminatorConfig(width=64, layers=3, norm="instance"),
        degrade=shen2018(),
        loss=LossConfig(
            pixel_weight=0.0,
            fft_weight=0.0,
            perceptual_weight=100.0,
            perceptual_net="vgg19",
            perceptual_layers=("relu3_3",),
            perceptual_distance="mse",
            adversarial="wgan-gp",
            adversarial_weight=1.0,
            critic_steps=5,
            gradient_penalty=10.0,
        ),
        optimizer=OptimizerConfig(
            kind="adam",
            learning_rate=1e-4,
            betas=(0.5, 0.999),
            weight_decay=0.0,
            clip_norm=0.0,
            final_rate=0.0,
            discriminator_rate=1e-4,
        ),
        stages=(Stage(until=1.0, buckets=(Bucket(height=128, width=128, batch=1),)),),
        steps=300_000,
    )


def tiny() -> TrainConfig:
    """Seconds on a CPU: for tests and a first contact."""
    return TrainConfig(
        generator=gated(widths=[8, 16], down=[1, 1], up=[1]),
        discriminator=DiscriminatorConfig(width=8, layers=2),
        degrade=dataclasses.replace(default_blur(), bank_size=256),
        loss=LossConfig(adversarial_weight=0.01),
        stages=(Stage(until=1.0, buckets=(Bucket(height=32, width=32, batch=4),)),),
        optimizer=OptimizerConfig(warmup_steps=2),
        steps=20,
        validate_every=10,
        validation_count=4,
        log_every=5,
        precision="fp32",
        cache_mib=64,
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {"fast": fast, "pixels": pixels, "paper": paper, "tiny": tiny}


def recipe(name: str) -> TrainConfig:
    """A recipe's config by its name.

    Raises:
        OptionError: there is no such recipe.
    """
    if name not in RECIPES:
        raise OptionError(f"recipe: expected one of {', '.join(RECIPES)}, got {name!r}")
    return RECIPES[name]()


def save_config(config: TrainConfig, path: Path) -> None:
    """Writes a config as JSON that `load_config` reads back."""
    path.write_text(json.dumps(dataclasses.asdict(config), indent=2) + "\n", encoding="utf-8")


def load_config(path: Path) -> TrainConfig:
    """Reads a config written by `save_config`.

    Raises:
        OptionError: the file is absent, not JSON, or has a key or value that does not fit.
    """
    try:
        return from_plain(TrainConfig, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise OptionError(f"run config {path}: expected the JSON that a run writes beside it; {error}") from error


def from_plain(kind: Any, value: Any) -> Any:
    """Rebuilds dataclasses and tuples from plain JSON values, by the annotations."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        unknown = set(value) - set(hints)
        if unknown:
            raise OptionError(f"{kind.__name__}: unknown keys {sorted(unknown)}")
        return kind(**{k: from_plain(hints[k], v) for k, v in value.items()})  # type: ignore[operator]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(from_plain(k, v) for k, v in zip(kinds, value, strict=True))
    if origin in (types.UnionType, typing.Union):
        inner = [a for a in arguments if a is not type(None)]
        return None if value is None else from_plain(inner[0], value)
    return value
