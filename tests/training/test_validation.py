"""Validation measures what it says, on pairs that never change."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data_synth import Degrade
from data_synth.sources import open_sources
from deblur.errors import DataError
from tests.training.pictures import picture, write_picture
from training.config import Bucket, Stage, TrainConfig
from training.data import CropSampler, FaceStore
from training.sheet import GAP_PX, make_sheet, pick
from training.validation import SEED, Pairs, Validation, better, made_pairs, read_pairs


def pairs(count: int = 3) -> Pairs:
    sharp = [torch.from_numpy(picture(i, 40 + 8 * (i % 2), 40)).permute(2, 0, 1) for i in range(count)]
    blurred = [(s.float() * 0.8 + 20).round().to(torch.uint8) for s in sharp]
    return Pairs(blurred=blurred, sharp=sharp)


def test_doing_nothing_gains_nothing() -> None:
    measures, restored = Validation(pairs(), torch.device("cpu"), detect=False, perceptual=None).measure(lambda x: x)
    assert measures["psnr"] == measures["psnr_blurred"]
    assert measures["ssim"] == measures["ssim_blurred"]
    assert measures["worse"] == 0.0
    assert all(torch.equal(a, b) for a, b in zip(restored, pairs().blurred, strict=True))


def test_undoing_the_damage_gains_and_doing_more_is_counted_as_worse() -> None:
    validation = Validation(pairs(), torch.device("cpu"), detect=False, perceptual=None)
    mended, _ = validation.measure(lambda x: (x - 20 / 255) / 0.8)
    spoiled, _ = validation.measure(lambda x: x * 0.5)
    assert mended["psnr"] > 45 > mended["psnr_blurred"] > spoiled["psnr"]
    assert (mended["worse"], spoiled["worse"]) == (0.0, 1.0)


def test_psnr_is_that_of_the_eight_bit_pictures() -> None:
    flat = torch.full((3, 16, 16), 100, dtype=torch.uint8)
    validation = Validation(
        Pairs(blurred=[flat + 10], sharp=[flat]), torch.device("cpu"), detect=False, perceptual=None
    )
    assert validation.measure(lambda x: x)[0]["psnr"] == pytest.approx(20 * np.log10(255 / 10))


def test_detection_is_measured_against_the_sharp_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("facenet_pytorch")
    from deblur.faces import Face

    class Detector:
        """Finds a face wherever the mean level is at least 100."""

        def __init__(self, *_: object):
            pass

        def detect_batch(self, levels: list[np.ndarray]) -> list[list[Face]]:
            marks = tuple((float(i), float(i)) for i in range(5))
            return [[Face((2.0, 2.0, 30.0, 30.0), 0.95, marks)] if p.mean() >= 100 else [] for p in levels]

    monkeypatch.setattr("deblur.faces.FaceDetector", Detector)
    bright, dark = (torch.full((3, 32, 32), level, dtype=torch.uint8) for level in (120, 60))
    made = Pairs(blurred=[dark, dark], sharp=[bright, bright])
    validation = Validation(made, torch.device("cpu"), detect=True, perceptual=None)
    measures, _ = validation.measure(lambda x: x * 2)
    assert (measures["detection_rate_blurred"], measures["detection_rate"]) == (0.0, 1.0)
    assert (measures["confidence_blurred"], measures["confidence"]) == (0.0, pytest.approx(0.95))


def test_made_pairs_do_not_depend_on_the_runs_seed(faces: Path, degrade: Degrade, tiny: TrainConfig) -> None:
    def made(seed: int) -> Pairs:
        sampler = CropSampler([FaceStore(open_sources(faces), 16)], [1.0], seed=SEED)
        return made_pairs(replace(tiny, seed=seed), sampler, degrade)

    one, other = made(1), made(2)
    assert len(one) == tiny.validation_count
    assert all(torch.equal(a, b) for a, b in zip(one.blurred, other.blurred, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.blurred, one.sharp, strict=True))


def test_made_pairs_take_every_size_of_the_runs_end(faces: Path, degrade: Degrade, tiny: TrainConfig) -> None:
    buckets = (Bucket(height=32, width=32, batch=4), Bucket(height=40, width=36, batch=4))
    config = replace(tiny, stages=(Stage(until=1.0, buckets=buckets),), validation_count=12)
    made = made_pairs(config, CropSampler([FaceStore(open_sources(faces), 16)], [1.0], seed=SEED), degrade)
    assert {tuple(p.shape) for p in made.sharp} == {(3, 32, 32), (3, 40, 36)}
    assert sorted(i for group in made.groups() for i in group) == list(range(12))


def test_a_folder_of_pairs_is_read_and_checked(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="blurred/ is absent"):
        read_pairs(tmp_path)
    for i in range(3):
        write_picture(tmp_path / "sharp" / f"{i}.png", picture(i, 30 + i, 40))
        write_picture(tmp_path / "blurred" / f"{i}.png", picture(i + 10, 30 + i, 40))
    made = read_pairs(tmp_path)
    assert [tuple(p.shape) for p in made.sharp] == [(3, 30, 40), (3, 31, 40), (3, 32, 40)]
    measures, _ = Validation(made, torch.device("cpu"), detect=False, perceptual=None).measure(lambda x: x)
    assert 0 < measures["psnr"] < 40
    write_picture(tmp_path / "sharp" / "1.png", picture(1, 50, 40))
    with pytest.raises(DataError, match=r"1\.png.*one size"):
        read_pairs(tmp_path)


def test_better_knows_which_way_is_up() -> None:
    assert better("psnr", 30.0, 29.0)
    assert not better("psnr", 29.0, 30.0)
    assert better("perceptual", 0.1, 0.2)
    assert better("ssim", 0.5, None)
    assert not better("psnr", float("nan"), None)


def test_the_sheet_shows_every_picture_at_its_own_size() -> None:
    made = pairs()
    sheet = make_sheet(made.blurred, made.sharp, made.sharp)
    assert sheet.dtype == np.uint8
    assert np.array_equal(sheet[:40, :40], made.blurred[0].permute(1, 2, 0).numpy())
    assert np.array_equal(sheet[:40, 41:81], made.sharp[0].permute(1, 2, 0).numpy())
    second_row = 48 + GAP_PX
    assert np.array_equal(sheet[second_row : second_row + 40, :40], made.blurred[2].permute(1, 2, 0).numpy())
    assert pick(3, 12) == [0, 1, 2]
    assert pick(100, 3) == [0, 50, 99] or pick(100, 3) == [0, 49, 99]
