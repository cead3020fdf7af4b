"""Every layout that faces come in, and batches that depend on the seed and the step alone."""

import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data_synth import Degrade
from data_synth.sources import open_sources
from deblur.errors import DataError, OptionError
from tests.training.pictures import picture, write_picture
from training.config import Bucket, Stage, TrainConfig
from training.data import Batches, CropSampler, FaceStore, fits, parse_source, random_crop, split_faces
from training.train import main

BUCKET = Bucket(height=32, width=32, batch=4)


def celeba(root: Path, *, packed: bool = False, partition: bool = True) -> Path:
    """Nine pictures: six to train on, two to validate on, one to test on."""
    root.mkdir()
    for i in range(9):
        write_picture(root / "img_align_celeba" / f"{i:06}.jpg", picture(i, 55, 45))
    if partition:
        lines = [f"{i:06}.jpg {0 if i < 6 else 1 if i < 8 else 2}" for i in range(9)]
        (root / "list_eval_partition.txt").write_text("\n".join(lines) + "\n")
    if packed:
        with zipfile.ZipFile(root / "img_align_celeba.zip", "w") as archive:
            for path in sorted((root / "img_align_celeba").iterdir()):
                archive.write(path, f"img_align_celeba/{path.name}")
                path.unlink()
        (root / "img_align_celeba").rmdir()
    return root


def tar_of(folder: Path, out: Path) -> Path:
    with tarfile.open(out, "w") as tar:
        tar.add(folder, "packed")
    return out


def layout(kind: str, tmp_path: Path, faces: Path) -> Path:
    root = tmp_path / "set"
    if kind == "folder":
        return faces
    if kind == "tar":
        return tar_of(faces, tmp_path / "faces.tar")
    if kind == "a tar in a folder":
        root.mkdir()
        tar_of(faces, root / "faces.tar")
        return root
    if kind == "celeba":
        return celeba(root)
    if kind == "the folder above celeba":
        (tmp_path / "data").mkdir()
        celeba(tmp_path / "data" / "celeba")
        return tmp_path / "data"
    if kind == "the aligned zip in its root":
        return celeba(root, packed=True)
    return celeba(root, packed=True, partition=kind.endswith("beside it")) / "img_align_celeba.zip"


LAYOUTS = {
    "folder": 12,
    "tar": 12,
    "a tar in a folder": 12,
    "celeba": 6,
    "the folder above celeba": 6,
    "the aligned zip in its root": 6,
    "the aligned zip with the partition beside it": 6,
    "the aligned zip alone": 9,
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_every_layout_is_read(kind: str, tmp_path: Path, faces: Path) -> None:
    train, valid = split_faces(layout(kind, tmp_path, faces), held_out=0.1)
    assert len(train.names) + len(valid.names) == LAYOUTS[kind] + (2 if LAYOUTS[kind] == 6 else 0)
    assert not set(train.names) & set(valid.names)
    assert len(valid.names) >= 1
    store = FaceStore(train, 16)
    assert {store[i].shape for i in range(len(store))} <= {(48, 40, 3), (55, 45, 3)}
    assert not store.bad


@pytest.mark.parametrize("kind", ["folder", "tar", "celeba", "the aligned zip in its root"])
def test_every_layout_trains(kind: str, tmp_path: Path, faces: Path) -> None:
    data = layout(kind, tmp_path, faces)
    assert main(["--data", str(data), "--out", str(tmp_path / "run"), "--recipe", "tiny", "--steps", "2"]) == 0
    assert (tmp_path / "run" / "weights.safetensors").is_file()


def test_a_quota_page_saved_as_the_zip_is_named_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "img_align_celeba.zip"
    page.write_bytes(b"<!DOCTYPE html><html><head><title>Google Drive - Quota exceeded</title></head></html>")
    for given in (page, tmp_path):  # the file, and the root that it lies in
        assert main(["--data", str(given), "--out", str(tmp_path / "run"), "--recipe", "tiny"]) == 3
        message = capsys.readouterr().err
        assert "web page" in message
        assert "quota" in message
        assert str(page) in message


def test_a_cut_off_zip_is_not_taken_for_a_tar(tmp_path: Path) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("a.jpg", bytes(5000))
    (tmp_path / "faces.zip").write_bytes(whole.getvalue()[:3000])
    with pytest.raises(DataError, match="is the download whole"):
        open_sources(tmp_path / "faces.zip")


def test_missing_celeba_says_what_to_download_and_where_to_put_it(tmp_path: Path) -> None:
    (tmp_path / "celeba").mkdir()
    for missing in (tmp_path / "celeba", tmp_path / "absent"):
        with pytest.raises(DataError, match=r"img_align_celeba\.zip .*list_eval_partition\.txt.*mmlab.*one folder"):
            open_sources(missing)


def test_held_out_faces_stay_the_same_when_others_are_added(faces: Path) -> None:
    _, before = split_faces(faces, held_out=0.3)
    for i in range(50, 60):
        write_picture(faces / f"{i:06}.png", picture(i))
    train, after = split_faces(faces, held_out=0.3)
    assert set(before.names) <= set(after.names)
    assert len(train.names) + len(after.names) == 22


def test_unreadable_pictures_are_noted_and_replaced(faces: Path) -> None:
    (faces / "000003.png").write_bytes(b"not a picture")
    store = FaceStore(open_sources(faces), 16)
    assert np.array_equal(store[3], store[4])
    assert list(store.bad) == ["000003.png"]


def test_a_set_without_a_readable_picture_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"none of 1 pictures.*a\.png"):
        FaceStore(open_sources(tmp_path), 16)[0]


def sampler(faces: Path, seed: int = 0, rank: int = 0) -> CropSampler:
    return CropSampler([FaceStore(open_sources(faces), 16)], [1.0], seed=seed, rank=rank)


def test_a_batch_depends_on_seed_step_and_process_alone(faces: Path) -> None:
    crops, seeds = sampler(faces).batch(5, BUCKET)
    again, seeds_again = sampler(faces).batch(5, BUCKET)
    assert crops.shape == (4, 32, 32, 3)
    assert crops.dtype == np.uint8
    assert np.array_equal(crops, again)
    assert torch.equal(seeds, seeds_again)
    for other in (
        sampler(faces).batch(6, BUCKET),
        sampler(faces, 1).batch(5, BUCKET),
        sampler(faces, 0, 1).batch(5, BUCKET),
    ):
        assert not np.array_equal(crops, other[0])


def test_weights_draw_a_set_more_often(faces: Path, tmp_path: Path) -> None:
    for i in range(12):
        write_picture(tmp_path / "black" / f"{i}.png", np.zeros((40, 40, 3), np.uint8))
    stores = [FaceStore(open_sources(folder), 16) for folder in (faces, tmp_path / "black")]
    drawn = CropSampler(stores, [1.0, 9.0], seed=0).batch(0, replace(BUCKET, batch=200))[0]
    assert (drawn.max(axis=(1, 2, 3)) == 0).mean() == pytest.approx(0.9, abs=0.06)


def test_a_share_of_crops_is_one_colour(faces: Path) -> None:
    stores = [FaceStore(open_sources(faces), 16)]
    crops, _ = CropSampler(stores, [1.0], seed=0, flat_share=0.25).batch(0, replace(BUCKET, batch=200))
    flat = np.ptp(crops, axis=(1, 2)).max(axis=1) == 0
    assert flat.mean() == pytest.approx(0.25, abs=0.1)
    assert len(np.unique(crops[flat][:, 0, 0], axis=0)) > 20


@pytest.mark.parametrize(
    ("size", "inside"), [((32, 32), True), ((31, 90), False), ((90, 60), True), ((101, 40), False)]
)
def test_faces_are_never_enlarged_nor_taken_beyond_the_limit(size: tuple[int, int], inside: bool) -> None:
    assert fits(size, replace(BUCKET, max_side=100)) == inside


def test_zoom_takes_parts_of_large_faces_at_their_own_scale() -> None:
    levels = np.arange(128 * 128 * 3, dtype=np.int64).reshape(128, 128, 3) % 251
    whole = random_crop(levels.astype(np.uint8), np.random.default_rng(0), replace(BUCKET, zoom=(1.0, 1.0)))
    close = random_crop(levels.astype(np.uint8), np.random.default_rng(0), replace(BUCKET, zoom=(4.0, 4.0)))
    rows = {row.tobytes() for r in levels.astype(np.uint8) for row in (r, r[::-1])}
    assert whole.shape == close.shape == (32, 32, 3)
    assert any(close[0].tobytes() in row for row in rows)  # pixels as they are
    assert not any(whole[0].tobytes() in row for row in rows)  # four of them made into one


def test_crops_that_no_face_fits_are_left_out(faces: Path, degrade: Degrade, tiny: TrainConfig) -> None:
    huge = replace(BUCKET, height=512, width=512)
    config = replace(tiny, stages=(Stage(until=1.0, buckets=(BUCKET, huge)),))
    batches = Batches(config, sampler(faces), degrade, torch.device("cpu"), lambda step: step / 20)
    assert {batches.bucket_at(step) for step in range(20)} == {BUCKET}
    batches.close()
    with pytest.raises(DataError, match="512x512"):
        sampler(faces).usable([huge])


def test_batches_come_in_order_whatever_was_made_ahead(faces: Path, degrade: Degrade, tiny: TrainConfig) -> None:
    def made(steps: list[int]) -> list[torch.Tensor]:
        batches = Batches(replace(tiny, accumulate=2), sampler(faces), degrade, torch.device("cpu"), lambda s: s / 20)
        pairs = [batches.get(step) for step in steps]
        batches.close()
        assert all(len(p) == 2 and p[0][0].shape == (4, 3, 32, 32) for p in pairs)
        return [torch.stack([*blurred_sharp]) for p in pairs for blurred_sharp in p]

    straight, resumed = made([0, 1, 2, 3]), made([2, 3])
    assert all(torch.equal(a, b) for a, b in zip(straight[4:], resumed, strict=True))
    assert not torch.equal(straight[0], straight[1])


def test_sources_may_carry_a_weight(tmp_path: Path) -> None:
    (tmp_path / "a=2").mkdir()
    assert parse_source("/faces=2.5") == (Path("/faces"), 2.5)
    assert parse_source("/faces") == (Path("/faces"), 1.0)
    assert parse_source(str(tmp_path / "a=2")) == (tmp_path / "a=2", 1.0)
    assert parse_source("/run=x/faces") == (Path("/run=x/faces"), 1.0)
    with pytest.raises(OptionError, match="above 0"):
        parse_source("/faces=-1")
