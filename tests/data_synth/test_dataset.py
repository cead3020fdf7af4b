import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import data_synth
from data_synth import DegradeConfig
from data_synth.__main__ import main
from data_synth.dataset import Job, read_records, rebuild, write_dataset
from data_synth.pairs import PairPlan, crop_square
from data_synth.preview import draw_sheet
from data_synth.sources import open_sources
from deblur.errors import DataError, OptionError


@pytest.fixture(autouse=True)
def _small_bank(monkeypatch):
    """Recipes with a small bank: drawing 20,000 paths takes longer than a test."""
    import dataclasses

    from data_synth import config

    for name, build in list(config.RECIPES.items()):
        small = dataclasses.replace(build(), bank_size=32)
        monkeypatch.setitem(config.RECIPES, name, lambda small=small: small)


def picture(seed: int, width: int = 60, height: int = 50) -> Image.Image:
    levels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(levels).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def faces(tmp_path):
    """Six usable pictures in odd places, two bad ones, and things that are no pictures."""
    root = tmp_path / "faces"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / ".hidden").mkdir()
    for seed, name in enumerate(["a.jpg", "a.png", "sub/a.jpg", "sub/naïve ф 顔.JPEG", "sub/deep/b.webp", "z.png"]):
        picture(seed).save(root / name)
    (root / "broken.jpg").write_bytes((root / "a.jpg").read_bytes()[:200])
    (root / "text.png").write_text("no picture")
    (root / "notes.txt").write_text("no picture either")
    (root / ".hidden" / "x.png").write_bytes((root / "a.png").read_bytes())
    return root


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def contents(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name not in {".lock"}
    }


def test_a_folder_becomes_pairs_with_a_manifest_and_bad_files_are_listed(faces, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(faces, out, "--workers", 1, "--size", 32, "--count", 16, "--seed", 3) == 1  # some were bad
    records, bad = read_records(out / "manifest.jsonl"), read_records(out / "bad.jsonl")
    assert {record["source"] for record in bad} == {"broken.jpg", "text.png"}
    assert all(name in record["error"] for record in bad for name in [record["source"]])
    assert sorted(r["pair"] for r in records + bad) == list(range(16))
    assert len({record["source"] for record in records}) == 6
    assert len({record["seed"] for record in records}) == len(records)
    for record in records:
        for kind in ("blurred", "sharp"):
            with Image.open(out / record[kind]) as written:
                assert written.size == (32, 32)
        assert {"extent_px", "noise_sigma", "trajectory", "jpeg_quality", "mode"} <= record.keys()
    assert "12 pairs written, 0 kept, 4 bad" in capsys.readouterr().out
    assert len(list((out / "blurred").iterdir())) == len(list((out / "sharp").iterdir())) == 12


@pytest.mark.parametrize("format", ["png", "jpeg", "webp"])
def test_every_pair_is_rebuilt_bit_for_bit_from_the_manifest(faces, tmp_path, format):
    out, again = tmp_path / "out", tmp_path / "again"
    run(faces, out, "--workers", 1, "--size", 40, "--recipe", "hard", "--format", format)
    assert run("rebuild", out, faces, "-o", again) == 0
    made = {
        path.relative_to(out): path.read_bytes() for kind in ("blurred", "sharp") for path in (out / kind).iterdir()
    }
    assert made == {path.relative_to(again): path.read_bytes() for path in again.rglob("*.*")}
    assert len(made) == 12


def test_a_changed_source_or_unknown_pair_is_named_by_rebuild(faces, tmp_path, capsys):
    out = tmp_path / "out"
    run(faces, out, "--workers", 1, "--size", 32)
    assert run("rebuild", out, faces, "--pair", 99) == 1
    picture(77).save(faces / "a.jpg")
    assert run("rebuild", out, faces) == 1
    assert "a.jpg: is not the file" in capsys.readouterr().err


def test_the_ladder_asked_for_is_the_ladder_made(faces, tmp_path):
    out = tmp_path / "out"
    run(faces, out, "--workers", 1, "--size", 48, "--extents", "0,5,9.5", "--count", 9)
    for record in read_records(out / "manifest.jsonl"):
        assert record["extent_px"] == (0, 5, 9.5)[record["pair"] % 3]


def test_tar_shards_hold_the_same_pairs_and_are_equal_from_run_to_run(faces, tmp_path):
    folder, tar, again = tmp_path / "folder", tmp_path / "tar", tmp_path / "again"
    common = ["--workers", 1, "--size", 32, "--count", 10]
    run(faces, folder, *common)
    for out in (tar, again):
        run(faces, out, *common, "--layout", "tar", "--shard-size", 4)
    assert contents(tar) == contents(again)
    samples: dict[str, dict[str, bytes]] = {}
    for shard in sorted(tar.glob("*.tar")):
        with tarfile.open(shard) as archive:
            for member in archive:
                key, _, kind = member.name.partition(".")
                samples.setdefault(key, {})[kind] = archive.extractfile(member).read()
    assert len(list(tar.glob("*.tar"))) == 3
    records = {f"{r['pair']:08d}": r for r in read_records(folder / "manifest.jsonl")}
    assert samples.keys() == records.keys()
    for key, sample in samples.items():
        assert sample["blurred.png"] == (folder / records[key]["blurred"]).read_bytes()
        assert json.loads(sample["json"])["seed"] == records[key]["seed"]


def job(faces: Path, out: Path, count: int, **changes: object) -> Job:
    plan = PairPlan(config=DegradeConfig(bank_size=32), side_px=24, format="webp")
    return Job(plan=plan, sources=open_sources(faces), out=out, count=count, **changes)


@pytest.mark.slow
def test_worker_count_changes_nothing(faces, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    seen: list[int] = []
    for out, workers in ((one, 1), (two, 2)):
        summary = write_dataset(job(faces, out, 40, workers=workers), seen.append)
        assert (summary.written, summary.kept, summary.bad) == (30, 0, 10)
        assert sum(seen) == 40
        seen.clear()
    assert contents(one) == contents(two)


def begin(faces: Path, out: Path, **changes: object) -> "subprocess.Popen[bytes]":
    """A run of its own process, as the command would start it, on far more pairs than it gets time for."""
    code = (
        "import pickle, sys\nfrom data_synth.dataset import write_dataset\n"
        "if __name__ == '__main__':\n    write_dataset(pickle.loads(bytes.fromhex(sys.argv[1])))"
    )
    script = out.parent / "begin.py"
    script.write_text(code)
    given = pickle.dumps(job(faces, out, 5000, **changes)).hex()
    search = {**os.environ, "PYTHONPATH": str(Path(data_synth.__file__).parents[1])}
    return subprocess.Popen([sys.executable, str(script), given], env=search, start_new_session=True)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"workers": 2, "layout": "tar", "shard_size": 8}])
def test_a_run_killed_in_the_middle_goes_on_without_a_double_or_missing_pair(faces, tmp_path, changes):
    out = tmp_path / "out"
    process = begin(faces, out, **changes)
    deadline = time.monotonic() + 120
    while len(read_records(out / "manifest.jsonl")) < 20 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    before = read_records(out / "manifest.jsonl")
    assert 20 <= len(before) < 3700
    # What a kill may leave behind at worst: a torn line and a half-written file.
    with (out / "manifest.jsonl").open("ab") as file:
        file.write(b'{"pair": 9')
    (out / ".00000001.png.1.part").write_bytes(b"half")
    count = max(record["pair"] for record in before) + 25
    run_file = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**run_file, "count": count}))  # the rest of 5000 is not wanted
    summary = write_dataset(job(faces, out, count, **{**changes, "workers": 1}))
    records, bad = read_records(out / "manifest.jsonl"), read_records(out / "bad.jsonl")
    assert sorted(r["pair"] for r in records + bad) == list(range(count))
    assert summary.written + summary.kept == len(records)
    assert summary.kept > 0
    assert not list(out.rglob(".*.part"))
    pair = rebuild(out, before[0]["pair"], open_sources(faces))
    assert pair.record["blurred_sha256"] == before[0]["blurred_sha256"]


@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_run(faces, tmp_path):
    out = tmp_path / "out"
    process = begin(faces, out, workers=2)
    deadline = time.monotonic() + 120
    while not (out / "manifest.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    while time.monotonic() < deadline:  # the session that it led is empty once its workers are gone
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("workers are still there after their parent was killed")


def test_a_finished_run_is_left_as_it_is(faces, tmp_path, capsys):
    out = tmp_path / "out"
    run(faces, out, "--workers", 1, "--size", 32)
    before = contents(out)
    capsys.readouterr()
    run(faces, out, "--workers", 1, "--size", 32)
    assert "0 pairs written, 6 kept, 2 bad" in capsys.readouterr().out
    assert contents(out) == before


def test_other_options_in_the_same_folder_are_refused(faces, tmp_path, capsys):
    out = tmp_path / "out"
    run(faces, out, "--workers", 1, "--size", 32)
    assert run(faces, out, "--workers", 1, "--size", 32, "--seed", 9) == 2
    assert "plan" in capsys.readouterr().err
    assert run(faces, faces) == 2


def test_an_output_folder_inside_the_faces_is_not_taken_for_faces(faces):
    out = faces / "out"
    run(faces, out, "--workers", 1, "--size", 32)
    assert len(open_sources(faces, exclude=out).names) == 8


def test_a_second_run_at_the_same_time_is_refused(faces, tmp_path, capsys):
    fcntl = pytest.importorskip("fcntl")
    out = tmp_path / "out"
    out.mkdir()
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run(faces, out, "--workers", 1) == 1
    assert "another run" in capsys.readouterr().err


def celeba(root: Path) -> Path:
    (root / "img_align_celeba").mkdir(parents=True)
    for number in range(1, 7):
        picture(number, 89, 109).save(root / "img_align_celeba" / f"{number:06d}.jpg")
    lines = [f"{number:06d}.jpg {part}" for number, part in zip(range(1, 9), "00012200", strict=True)]
    (root / "list_eval_partition.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.mark.parametrize(
    ("split", "numbers"), [("train", [1, 2, 3]), ("valid", [4]), ("test", [5, 6]), ("all", range(1, 7))]
)
def test_a_celeba_root_gives_the_part_asked_for(tmp_path, split, numbers):
    names = tuple(f"img_align_celeba/{number:06d}.jpg" for number in numbers)
    assert open_sources(celeba(tmp_path / "root"), split).names == names
    assert open_sources(celeba(tmp_path / "above" / "celeba").parent, split).names == names


def test_a_zip_is_read_without_unpacking(faces, tmp_path):
    archive, out = tmp_path / "img_align_celeba.zip", tmp_path / "out"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(faces.rglob("*.*")):
            file.write(path, path.relative_to(faces).as_posix())
        file.writestr("__MACOSX/._a.jpg", b"x")
    assert run(archive, out, "--workers", 1, "--size", 32) == 1
    assert len(read_records(out / "manifest.jsonl")) == 6
    assert run("rebuild", out, archive) == 0


def test_a_quota_page_saved_as_a_zip_is_named_as_such(tmp_path):
    page = tmp_path / "img_align_celeba.zip"
    page.write_text("<!DOCTYPE html><html><title>Google Drive - Quota exceeded</title></html>")
    with pytest.raises(DataError, match="web page"):
        open_sources(page)
    page.write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(DataError, match="neither"):
        open_sources(page)


def test_no_faces_is_an_error_that_names_the_place(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty", tmp_path / "out") == 1
    assert run(tmp_path / "missing", tmp_path / "out") == 1
    assert "missing" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_named(faces, tmp_path, capsys):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert run(faces, tmp_path / "locked" / "out", "--workers", 1) == 1
    assert "locked" in capsys.readouterr().err


def test_a_file_in_the_place_of_the_output_folder_is_named(faces, tmp_path, capsys):
    (tmp_path / "out").write_text("a file")
    assert run(faces, tmp_path / "out", "--workers", 1) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_crops_are_central_squares_never_enlarged():
    levels = np.zeros((40, 100, 3), dtype=np.uint8)
    levels[:, 30:70] = 200
    assert crop_square(levels, 20).shape == (20, 20, 3)
    assert (crop_square(levels, 20) == 200).all()
    assert crop_square(levels, 64).shape == (40, 40, 3)
    assert crop_square(levels, 0).shape == (40, 100, 3)
    deep = np.full((10, 10, 3), 65535, dtype=np.uint16)
    assert (crop_square(deep, 8) == 255).all()


def test_grey_and_transparent_and_deep_sources_are_used(tmp_path):
    root = tmp_path / "faces"
    root.mkdir()
    picture(1).convert("L").save(root / "grey.png")
    picture(2).convert("RGBA").save(root / "alpha.png")
    Image.fromarray(np.full((40, 40), 30000, dtype=np.uint16)).save(root / "deep.png")
    assert run(root, tmp_path / "out", "--workers", 1, "--size", 32) == 0
    assert len(read_records(tmp_path / "out" / "manifest.jsonl")) == 3


@pytest.mark.parametrize(
    "values", [{"format": "bmp"}, {"side_px": 4}, {"side_px": -1}, {"extents_px": (-1.0,)}, {"extents_px": (1e6,)}]
)
def test_a_plan_out_of_range_is_refused(values):
    from data_synth import default

    with pytest.raises(OptionError):
        PairPlan(config=default(), **values)


def test_a_plan_survives_json():
    from data_synth import hard

    plan = PairPlan(config=hard(), seed=5, side_px=64, extents_px=(1.0, 2.5), format="webp")
    assert PairPlan.from_json(json.loads(json.dumps(plan.as_json()))) == plan


def test_preview_draws_a_sheet_that_changes_with_the_extent(faces, tmp_path):
    for name in ("broken.jpg", "text.png"):
        (faces / name).unlink()
    sheet = tmp_path / "sheet.png"
    assert run("preview", faces, "-o", sheet, "--size", 32, "--extents", "0,4,9", "--faces-shown", 2) == 0
    with Image.open(io.BytesIO(sheet.read_bytes())) as drawn:
        assert drawn.size == (64 + 3 * 36, 18 + 8 * 36)  # path, kernel, 3 kinds of 2 faces


def test_the_sheet_shows_sharp_faces_at_zero_and_blurred_ones_beyond():
    from data_synth import DegradeConfig

    face = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    still = DegradeConfig(noise_share=0, jpeg_share=0, bayer_share=0, saturation_share=0, bank_size=8)
    sheet = draw_sheet([face], still, rungs_px=(0.0, 8.0))
    top, left, pitch = 18 + 2 * 44, 64, 44
    first, second = (sheet[top : top + 40, left + i * pitch : left + i * pitch + 40].astype(int) for i in range(2))
    assert np.abs(first - face).max() <= 1
    assert second.std() < 0.7 * face.std()


def test_wrong_usage_exits_with_two(faces, tmp_path, capsys):
    assert run(faces, tmp_path / "out", "--recipe", "nope") == 2
    assert run(faces, tmp_path / "out", "--count", 0) == 2
    assert run("preview", faces, "--faces-shown", 0) == 2
    with pytest.raises(SystemExit):
        run(faces, tmp_path / "out", "--extents", "a,b")
    capsys.readouterr()
