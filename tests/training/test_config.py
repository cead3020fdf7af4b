"""Configs are written, read back whole, and refuse what does not fit."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from deblur.errors import OptionError
from training.config import Bucket, LossConfig, Stage, TrainConfig, load_config, save_config
from training.recipes import RECIPES, recipe


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_is_read_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    config = replace(recipe(name), data=("/a=2", "/b"), validate="/c")
    save_config(config, tmp_path / "config.json")
    assert load_config(tmp_path / "config.json") == config


def test_an_older_config_takes_defaults_for_what_it_lacks(tmp_path: Path, tiny: TrainConfig) -> None:
    save_config(tiny, tmp_path / "config.json")
    values = json.loads((tmp_path / "config.json").read_text())
    del values["held_out"], values["loss"]["discriminator_warmup"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert load_config(tmp_path / "config.json") == tiny


@pytest.mark.parametrize(
    ("key", "value"),
    [("stepz", 3), ("steps", "many"), ("steps", 2.5), ("precision", "fp8"), ("compile", 1), ("loss", 3)],
)
def test_a_key_or_value_that_does_not_fit_is_named(key: str, value: object, tmp_path: Path, tiny: TrainConfig) -> None:
    save_config(tiny, tmp_path / "config.json")
    values = json.loads((tmp_path / "config.json").read_text()) | {key: value}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(OptionError, match=key):
        load_config(tmp_path / "config.json")


def test_stages_follow_progress() -> None:
    small, large = Bucket(height=32, width=32, batch=4), Bucket(height=64, width=64, batch=2)
    stages = (Stage(until=0.5, buckets=(small,)), Stage(until=1.0, buckets=(small, large)))
    config = TrainConfig(stages=stages)
    assert config.buckets_at(0.0) == (small,)
    assert config.buckets_at(0.5) == config.buckets_at(1.0) == (small, large)


def test_stages_must_rise_to_one() -> None:
    bucket = Bucket(height=32, width=32, batch=4)
    with pytest.raises(OptionError, match="until"):
        TrainConfig(stages=(Stage(until=0.7, buckets=(bucket,)),))


def test_losses_must_weigh_something() -> None:
    with pytest.raises(OptionError, match="loss"):
        LossConfig(pixel_weight=0, fft_weight=0)


def test_the_paper_recipe_is_that_of_deblurgan() -> None:
    config = recipe("paper")
    loss, optimizer = config.loss, config.optimizer
    assert config.generator.kind == "resnet"
    assert config.generator.down == (9,)
    assert (loss.adversarial, loss.critic_steps, loss.gradient_penalty) == ("wgan-gp", 5, 10.0)
    assert (loss.perceptual_net, loss.perceptual_layers) == ("vgg19", ("conv3_3",))
    assert (loss.perceptual_distance, loss.perceptual_weight) == ("mse", 100.0)
    assert (loss.pixel_weight, loss.fft_weight) == (0.0, 0.0)
    assert (optimizer.kind, optimizer.learning_rate, optimizer.betas[0]) == ("adam", 1e-4, 0.5)
    assert (optimizer.discriminator_rate, optimizer.discriminator_betas[0]) == (1e-4, 0.5)
    assert config.discriminator.norm != "batch"
