"""Small faces, and a configuration that trains on them in seconds."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from data_synth import Degrade
from tests.deblur.recogniser_file import write_recogniser
from tests.training.pictures import picture, write_picture
from training.config import TrainConfig
from training.data import Pair
from training.perceptual import _vgg
from training.recipes import recipe
from training.trainer import Trainer


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    folder = tmp_path / "faces"
    for i in range(12):
        write_picture(folder / f"{i:06}.png", picture(i))
    return folder


@pytest.fixture
def tiny() -> TrainConfig:
    return recipe("tiny")


@pytest.fixture(scope="session")
def degrade() -> Degrade:
    return Degrade(recipe("tiny").degrade)


@pytest.fixture
def batch(degrade: Degrade) -> Callable[[int], list[Pair]]:
    """The pairs of a step, always the same for the same number."""

    def make(step: int) -> list[Pair]:
        levels = np.stack([picture(100 * step + i, 32, 32) for i in range(4)])
        sharp = torch.from_numpy(levels).permute(0, 3, 1, 2).float() / 255
        return [(degrade(sharp, seeds=torch.arange(4) + 10 * step)[0], sharp)]

    return make


@pytest.fixture(scope="session")
def vgg_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Writes random weights of a VGG up to a layer, under torchvision's names."""

    def write(net: str, layer: str) -> Path:
        generator = torch.Generator().manual_seed(0)
        features, _ = _vgg(net, (layer,))
        state = {
            f"features.{k}": (torch.randn(v.shape, generator=generator) / max(1, v[0].numel()) ** 0.5).half()
            for k, v in features.state_dict().items()
        }
        path = tmp_path_factory.mktemp("vgg") / f"{net}.safetensors"
        save_file(state, path, {"architecture": f"torchvision {net}"})
        return path

    return write


@pytest.fixture(scope="session")
def recogniser_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of the face recogniser, as dlib stores them."""
    path = tmp_path_factory.mktemp("recogniser") / "net.dat"
    write_recogniser(path)
    return path


@pytest.fixture
def trainer(tiny: TrainConfig) -> Callable[..., Trainer]:
    """A trainer of the tiny recipe with changes."""

    def make(**changes: object) -> Trainer:
        return Trainer(replace(tiny, **changes), torch.device("cpu"))

    return make
