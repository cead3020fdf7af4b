"""The identity loss: what it looks at and where its gradients go."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from deblur.errors import OptionError, WeightsError
from deblur.faces import FaceDetector
from deblur.images import decode, to_levels
from training.config import LossConfig, TrainConfig
from training.data import Pair
from training.identity import LEAST_EYES_PX, IdentityLoss
from training.losses import GeneratorLoss
from training.trainer import Trainer

FACE = Path(__file__).parents[2] / "samples" / "sharp" / "hopper.jpg"


@pytest.fixture(scope="module")
def sharp() -> Tensor:
    """Two pictures: a face, and nothing."""
    face = torch.from_numpy(decode(FACE).levels.copy()).permute(2, 0, 1).float() / 255
    return torch.stack([face, torch.full_like(face, 0.5)])


def test_it_is_zero_on_equal_pictures_alone(recogniser_file: Path, sharp: Tensor) -> None:
    loss = IdentityLoss(recogniser_file)
    assert loss(sharp, sharp).item() == pytest.approx(0, abs=1e-6)
    assert loss(sharp.roll(8, dims=3), sharp).item() > 0.01


def test_gradients_flow_to_restored_faces_alone(recogniser_file: Path, sharp: Tensor) -> None:
    loss, wanted = IdentityLoss(recogniser_file), sharp.clone().requires_grad_(True)
    restored = (sharp + 0.1 * torch.rand(sharp.shape)).requires_grad_(True)
    loss(restored, wanted).backward()
    assert wanted.grad is None
    assert restored.grad is not None
    assert [bool(g.any()) for g in restored.grad] == [True, False]
    assert all(p.grad is None for p in loss.parameters())


def test_without_a_face_it_is_zero_and_can_be_stepped_on(recogniser_file: Path, sharp: Tensor) -> None:
    restored = sharp[1:].clone().requires_grad_(True)
    value = IdentityLoss(recogniser_file)(restored, sharp[1:])
    value.backward()
    assert value.item() == 0
    assert restored.grad is not None
    assert not restored.grad.any()


def test_it_looks_at_its_share_of_the_batch(recogniser_file: Path, sharp: Tensor) -> None:
    loss = GeneratorLoss(LossConfig(identity_weight=1.0, identity_share=0.5), identity_weights=recogniser_file)
    pictures = sharp[[0, 0]]
    restored = (pictures + 0.1 * torch.rand(pictures.shape)).requires_grad_(True)
    loss(restored, pictures, progress=0.0)["identity"].backward()
    assert restored.grad is not None
    assert [bool(g.any()) for g in restored.grad] == [True, False]


def test_a_trainer_steps_on_it(
    recogniser_file: Path, sharp: Tensor, tiny: TrainConfig, batch: Callable[[int], list[Pair]]
) -> None:
    config = replace(tiny, loss=LossConfig(identity_weight=0.1), identity_weights=str(recogniser_file))
    trainer = Trainer(config, torch.device("cpu"))
    losses = trainer.train_step([(sharp.roll(3, dims=3), sharp)])
    assert losses["identity"] > 0
    assert losses["skipped"] == 0
    assert trainer.train_step(batch(0))["identity"] == 0  # no face in these


def test_small_faces_are_left_out(recogniser_file: Path, sharp: Tensor) -> None:
    loss = IdentityLoss(recogniser_file)
    rows, landmarks = loss.find(sharp)
    assert rows == [0]
    small = torch.nn.functional.interpolate(
        sharp, scale_factor=0.7 * LEAST_EYES_PX / eye_distance(landmarks[0]), mode="area"
    )
    assert loss.find(small)[0] == []
    assert FaceDetector(threshold=0.8).detect(to_levels(small[0], np.uint8))


def eye_distance(landmarks: Tensor) -> float:
    return float((landmarks[1] - landmarks[0]).norm())


def test_missing_weights_and_odd_shares_are_explained(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"face recogniser.*--identity 0"):
        IdentityLoss(tmp_path / "absent.dat")
    with pytest.raises(OptionError, match="identity_share"):
        LossConfig(identity_share=0.0)
