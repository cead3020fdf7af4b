"""Whole runs by the command line: folders, logs, breaks and warm starts."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from deblur.weights import load_weights
from training.checkpoint import checkpoints, load_checkpoint, newest_checkpoint
from training.train import main
from training.watch import read_log

Start = Callable[..., int]


@pytest.fixture
def start(faces: Path, tmp_path: Path) -> Start:
    """Runs the command on the faces, with the tiny recipe unless told otherwise."""

    def run(*more: object, out: str = "run", recipe: str | None = "tiny") -> int:
        base = ["--data", str(faces), "--out", str(tmp_path / out)] + (["--recipe", recipe] if recipe else [])
        return main([*base, *map(str, more)])

    return run


def test_a_run_leaves_weights_a_log_and_pictures(start: Start, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert start("--steps", 20, "--no-tensorboard") == 0
    weights = load_weights(run / "weights.safetensors")
    assert weights.metadata["recipe"] == "tiny"
    assert weights.metadata["training_data"] == ["faces"]
    assert weights.metadata["pictures_seen"] == 80
    assert str(tmp_path) not in json.dumps(weights.metadata)
    events = read_log(run)
    assert [e["event"] for e in events] == ["start", *["train"] * 2, "validate", *["train"] * 2, "validate"]
    assert {"total", "pixel", "adversarial", "d_sharp", "d_restored", "rate", "img_per_s", "eta_s"} <= set(events[1])
    assert {"psnr", "psnr_blurred", "ssim", "ssim_blurred", "worse"} <= set(events[-1])
    assert events[3]["psnr_blurred"] == events[-1]["psnr_blurred"]  # the pairs are fixed
    assert load_weights(run / "best.safetensors").metadata["psnr"] == pytest.approx(
        max(e["psnr"] for e in events if e["event"] == "validate"), abs=1e-3
    )
    assert sorted(p.name for p in (run / "pictures").iterdir()) == ["step-00000010.png", "step-00000020.png"]
    assert not list(run.rglob("*.partial"))


def test_an_existing_run_is_not_written_over(start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert start("--steps", 2) == 0
    before = (tmp_path / "run" / "config.json").read_bytes()
    assert start("--steps", 3) == 3
    assert "--resume" in capsys.readouterr().err
    assert (tmp_path / "run" / "config.json").read_bytes() == before


def _tensors(run: Path) -> dict[str, Tensor]:
    state = newest_checkpoint(run)
    assert state is not None
    found = {f"{part}/{k}": v for part in ("generator", "ema", "discriminator") for k, v in state[part].items()}
    for part in ("optimizer", "d_optimizer"):
        for number, moments in state[part]["state"].items():
            found |= {f"{part}/{number}/{k}": v for k, v in moments.items()}
    return found


class _StopAfter:
    """Stands in for a signal that comes after a number of steps."""

    def __init__(self, steps: int):
        self._left = steps

    def __enter__(self) -> "_StopAfter":
        return self

    def __exit__(self, *problem: object) -> None:
        pass

    def __call__(self) -> bool:
        self._left -= 1
        return self._left <= 0


def test_k_and_k_steps_are_two_k_steps(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert start("--steps", 12, "--log-every", 4, out="straight") == 0
    with monkeypatch.context() as patch:
        patch.setattr("training.start.Signals", lambda: _StopAfter(6))
        assert start("--steps", 12, "--log-every", 4, out="broken") == 0
    assert newest_checkpoint(tmp_path / "broken")["step"] == 6  # type: ignore[index]
    assert start("--resume", out="broken") == 0
    expected, got = _tensors(tmp_path / "straight"), _tensors(tmp_path / "broken")
    assert expected.keys() == got.keys()
    for name, value in expected.items():
        assert torch.equal(value, got[name]), name
    validated = [
        [e["psnr"] for e in read_log(tmp_path / n) if e["event"] == "validate"] for n in ("straight", "broken")
    ]
    assert validated[0] == validated[1]


def test_steps_lost_in_a_crash_are_logged_once(start: Start, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert start("--steps", 10) == 0
    with (run / "log.jsonl").open("a") as log:
        log.write('{"event": "train", "step": 15, "total": 9}\n{"event": "train", "st')
    assert start("--steps", 20, "--resume", recipe=None) == 0
    steps = [e["step"] for e in read_log(run) if e["event"] == "train"]
    assert steps == [5, 10, 15, 20]


def test_a_run_starts_from_another_runs_config(start: Start, tmp_path: Path, faces: Path) -> None:
    assert start("--steps", 4, "--seed", 7) == 0
    first, second = tmp_path / "run", tmp_path / "again"
    assert main(["--config", str(first / "config.json"), "--out", str(second)]) == 0
    assert (first / "config.json").read_bytes() == (second / "config.json").read_bytes()
    assert all(torch.equal(a, b) for a, b in zip(_tensors(first).values(), _tensors(second).values(), strict=True))


def test_the_last_checkpoints_are_kept_and_a_damaged_one_is_passed_over(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert start("--steps", 6, "--checkpoint-minutes", 0, "--keep", 3) == 0
    assert [p.name for p in checkpoints(run / "checkpoints")] == [f"step-{i:08}.pt" for i in (4, 5, 6)]
    newest = checkpoints(run / "checkpoints")[-1]
    newest.write_bytes(newest.read_bytes()[:2000])
    assert start("--resume", recipe=None) == 0
    assert "resumed at step 5" in capsys.readouterr().err
    assert load_checkpoint(newest)["step"] == 6


@pytest.mark.parametrize("source", ["run", "run/weights.safetensors", "run/checkpoints/step-00000004.pt"])
def test_a_warm_start_takes_weights_and_their_generator(source: str, start: Start, tmp_path: Path) -> None:
    assert start("--steps", 4) == 0
    assert start("--steps", 1, "--rate", 0, "--init", tmp_path / source, out="warm") == 0
    before, after = (load_weights(tmp_path / n / "weights.safetensors").generator for n in ("run", "warm"))
    for a, b in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-3)
    assert any(p.abs().sum() > 0 for p in after.head.parameters())  # type: ignore[union-attr,operator]


def test_a_warm_start_without_a_recipe_is_finetune(
    start: Start, tmp_path: Path, vgg_file: Any, recogniser_file: Path
) -> None:
    assert start("--steps", 1) == 0
    options = ["--validate-every", 0, "--batch-scale", 0.05, "--identity-weights", recogniser_file]
    options += ["--perceptual-weights", vgg_file("vgg16", "relu3_3"), "--init", tmp_path / "run"]
    for i in range(3):
        from tests.training.pictures import picture, write_picture

        write_picture(tmp_path / "faces" / f"large{i}.png", picture(i, 70, 70))
    assert start("--steps", 1, *options, out="warm", recipe=None) == 0
    config = json.loads((tmp_path / "warm" / "config.json").read_text())
    assert config["recipe"] == "finetune"
    assert config["loss"]["identity_weight"] > 0
    assert config["generator"]["widths"] == [8, 16]
    assert config["optimizer"]["learning_rate"] == 3e-4


def test_resume_without_a_checkpoint_begins(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    assert start("--steps", 2, "--resume") == 0
    assert "from its beginning" in capsys.readouterr().err


def test_minutes_end_a_run(start: Start, tmp_path: Path) -> None:
    began = time.monotonic()
    assert start("--minutes", 0.02, "--validate-every", 0) == 0
    state = newest_checkpoint(tmp_path / "run")
    assert state is not None
    assert 1.2 <= state["elapsed"] < 10
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--init", "absent.safetensors"], "absent.safetensors"),
        (["--device", "quantum"], "device"),
        (["--steps", "0"], "--steps or --minutes"),
        (["--batch-scale", "0"], "--batch-scale"),
        (["--validate", "nowhere"], "nowhere"),
        (["--perceptual", "1", "--perceptual-weights", "none.safetensors"], "none.safetensors"),
        (["--identity", "1", "--identity-weights", "none.dat"], "none.dat"),
        (["--config", "none.json", "--recipe", "tiny"], "--recipe and --config"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    options: list[str], named: str, start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(*options) == 3
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("train: ")
    assert named in said
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_place_where_nothing_can_be_written_is_named(
    start: Start, faces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("--steps", 2, out="faces/000000.png/run") == 3
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("train: ")
    assert str(faces / "000000.png" / "run") in said


def test_tensorboard_holds_curves_and_pictures(start: Start, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert start("--steps", 10, "--tensorboard") == 0
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    scalars = set(events.Tags()["scalars"])
    assert {"train/total", "train/rate", "train/d_sharp", "validate/psnr", "validate/ssim"} <= scalars
    assert events.Tags()["images"] == ["blurred_restored_sharp"]


def test_tensorboard_that_is_not_installed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("training.watch.find_spec", lambda name: None)
    assert start("--steps", 1, "--tensorboard") == 3
    assert "pip install 'face-deblur[train]'" in capsys.readouterr().err
    assert start("--steps", 1, out="other") == 0
    assert not (tmp_path / "other" / "tensorboard").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_writes_a_checkpoint_and_says_how_to_go_on(number: int, faces: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "training/train.py", "--data", str(faces), "--out", str(run), "--recipe", "tiny"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, "--steps", "100000", "--validate-every", "0", "--no-tensorboard"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step"):
                break
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert "--resume" in said
    state = newest_checkpoint(run)
    assert state is not None
    assert 0 < state["step"] < 100000
    assert load_weights(run / "weights.safetensors").metadata["steps"] == state["step"]
