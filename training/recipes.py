"""Recipes: functions that return a whole run's config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from data_synth import default as default_blur
from data_synth import shen2018
from deblur.errors import OptionError
from deblur.generator import gated, resnet
from training.config import Bucket, DiscriminatorConfig, LossConfig, OptimizerConfig, Stage, TrainConfig

SMALL = Bucket(height=64, width=64, batch=32, zoom=(1.0, 1.5))
# CelebA at half size: its own shape at its own scale.
CELEBA = Bucket(height=104, width=88, batch=20, zoom=(1.0, 1.1), max_side=120, share=0.4)
MIDDLE = Bucket(height=128, width=128, batch=16)
LARGE = Bucket(height=256, width=256, batch=4, share=0.15)
# Parts of large faces at their full scale.
CLOSE = Bucket(height=128, width=128, batch=16, zoom=(1.4, 3.0), share=0.2)
MIXED = (replace(SMALL, share=0.25), CELEBA, MIDDLE, CLOSE, LARGE)
# For people and detectors: sharp eyes and mouths are worth a few tenths of a dB.
SHARP = LossConfig(
    pixel="psnr",
    fft_weight=0.0,
    perceptual_weight=0.35,
    perceptual_layers=("relu1_2", "relu2_2", "relu3_3"),
    perceptual_share=0.25,
    adversarial_weight=0.03,
    discriminator_warmup=150,
)


def fast() -> TrainConfig:
    """From nothing to weights: pixel losses on growing crops first, then every loss on all sizes."""
    small_first = (Stage(until=0.2, buckets=(SMALL,)), Stage(until=0.6, buckets=(CELEBA, MIDDLE)))
    return replace(
        pixels(),
        stages=(*small_first, Stage(until=1.0, buckets=MIXED)),
        loss=replace(SHARP, perceptual_from=0.6, adversarial_from=0.6),
    )


def finetune() -> TrainConfig:
    """From pixel-loss weights (`--init`) on: every loss, all sizes from the start, a low rate.

    The only recipe that asks a face recogniser, so that the face stays the same person's.
    """
    return replace(
        pixels(),
        stages=(Stage(until=1.0, buckets=MIXED),),
        loss=replace(SHARP, identity_weight=0.1, identity_share=0.5),
        optimizer=OptimizerConfig(learning_rate=3e-4, warmup_steps=50, final_rate=0.05),
        best_by="perceptual",
    )


def pixels() -> TrainConfig:
    """The first phase of the bundled weights: pixel losses only, small crops first."""
    return TrainConfig(
        generator=gated(stem=4, widths=[64, 128, 192], down=[2, 3, 5], up=[2, 2]),
        stages=(
            Stage(until=0.2, buckets=(SMALL,)),
            Stage(until=0.9, buckets=(CELEBA, MIDDLE)),
            Stage(until=1.0, buckets=(CELEBA, MIDDLE, LARGE)),
        ),
        # Mean PSNR itself: Charbonnier listens to strong blur most, where errors are largest.
        loss=LossConfig(pixel="psnr", fft_weight=0.0),
        degrade=replace(default_blur(), extent_fraction=(0.02, 0.34), rotation_share=0.35, noise_share=0.95),
        optimizer=OptimizerConfig(learning_rate=1.5e-3),
        minutes=60.0,
    )


def paper() -> TrainConfig:
    """The DeblurGAN form (Kupyn et al. 2018, sections 3 and 4.2).

    ResNet generator, WGAN-GP critic with five steps to one of the generator, 100 times the MSE of VGG19's conv3_3
    features, Adam at 1e-4 with beta1 0.5, constant for half of the run and then falling linearly to zero, batch 1.
    """
    return TrainConfig(
        generator=resnet(),
        discriminator=DiscriminatorConfig(width=64, layers=3, norm="instance"),
        degrade=shen2018(),
        loss=LossConfig(
            pixel_weight=0.0,
            fft_weight=0.0,
            perceptual_weight=100.0,
            perceptual_net="vgg19",
            perceptual_layers=("conv3_3",),
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
            warmup_steps=0,
            schedule="linear",
            final_rate=0.0,
            discriminator_rate=1e-4,
            discriminator_betas=(0.5, 0.999),
        ),
        stages=(Stage(until=1.0, buckets=(Bucket(height=128, width=128, batch=1),)),),
        steps=300_000,
    )


def tiny() -> TrainConfig:
    """Seconds on a CPU: for tests and a first contact."""
    return TrainConfig(
        generator=gated(widths=[8, 16], down=[1, 1], up=[1]),
        discriminator=DiscriminatorConfig(width=8, layers=2),
        degrade=replace(default_blur(), bank_size=256),
        loss=LossConfig(adversarial_weight=0.01),
        stages=(Stage(until=1.0, buckets=(Bucket(height=32, width=32, batch=4),)),),
        optimizer=OptimizerConfig(warmup_steps=2),
        steps=20,
        validate_every=10,
        validation_count=4,
        detect=False,
        log_every=5,
        precision="fp32",
        cache_mib=64,
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "fast": fast,
    "finetune": finetune,
    "pixels": pixels,
    "paper": paper,
    "tiny": tiny,
}


def recipe(name: str) -> TrainConfig:
    """A recipe's config by its name.

    Raises:
        OptionError: there is no such recipe.
    """
    if name not in RECIPES:
        raise OptionError(f"recipe: expected one of {', '.join(RECIPES)}, got {name!r}")
    return replace(RECIPES[name](), recipe=name)
