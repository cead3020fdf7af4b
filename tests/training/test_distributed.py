"""Several processes, and the three ways to start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from training.checkpoint import newest_checkpoint
from training.distributed import Group, launched, local_device
from training.watch import read_log

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


# Importing TensorBoard takes longer than all these runs.
LIGHT = ["--no-tensorboard", "--validate-every", "0"]


def started(command: list[str], *options: object) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *map(str, options)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_two_processes_train_as_one(faces: Path, tmp_path: Path) -> None:
    both = tmp_path / "both"
    common = ["--data", faces, "--recipe", "tiny", "--steps", "6", "--accumulate", "2", "--log-every", "3"]
    common.append("--no-tensorboard")
    said = started([*TORCHRUN, "training/train.py"], *common, "--out", both)
    assert "effective batch at 32x32 px: 4 x 2 processes x 2 accumulated = 16" in said
    assert said.count("device cpu") == 1  # the second process is silent
    events = read_log(both)
    assert events[0]["effective_batch"] == {"32x32": 16}
    assert events[0]["processes"] == 2
    assert [e["step"] for e in events if e["event"] == "train"] == [3, 6]
    state = newest_checkpoint(both)
    assert state is not None
    assert state["seen"] == 6 * 16
    started([*TORCHRUN, "training/train.py"], "--out", both, "--resume", "--steps", "7", *LIGHT)
    resumed = newest_checkpoint(both)
    assert resumed is not None
    assert resumed["step"] == 7


_SAME = """
import sys, torch, torch.distributed as dist
from pathlib import Path
sys.path.insert(0, str(Path.cwd()))
from dataclasses import replace
from training.distributed import join
from training.recipes import recipe
from training.trainer import Trainer

group = join(torch.device("cpu"))
made = Trainer(replace(recipe("tiny"), bad_steps=5), torch.device("cpu"), group)
for step in range(3):
    rng = torch.Generator().manual_seed(10 * step + group.rank)
    blurred, sharp = torch.rand(2, 4, 3, 32, 32, generator=rng)
    if step == 1 and group.rank == 1:
        sharp = sharp * torch.nan  # in one process alone: both must skip
    made.train_step([(blurred, sharp)])
assert made.skipped == 1, made.skipped
flat = torch.cat([p.detach().flatten() for p in made.generator.module.parameters()])
other = flat.clone()
dist.broadcast(other, 0)
assert torch.equal(flat, other), "the processes hold different weights"
assert torch.isfinite(flat).all()
assert group.largest([float(group.rank), 5.0], torch.device("cpu")) == [1.0, 5.0]
group.leave()
"""


def test_processes_hold_the_same_weights_and_skip_together(tmp_path: Path) -> None:
    script = tmp_path / "same.py"
    script.write_text(_SAME)
    started([*TORCHRUN, str(script)])


def test_gradients_are_averaged_over_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_reduce(flat: torch.Tensor, *_: object) -> None:
        flat += 3.0  # what the other process has

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    layer = torch.nn.Linear(2, 1)
    layer.weight.grad = torch.tensor([[1.0, 5.0]])  # the bias has no gradient, here and there
    loss = Group(rank=0, world=2).average_gradients(layer.parameters(), torch.tensor(1.0))
    assert layer.weight.grad.tolist() == [[2.0, 4.0]]
    assert loss.item() == 2.0
    assert layer.bias.grad is None


def test_each_process_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not launched()
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert local_device(torch.device("cuda")) == torch.device("cuda", 1)
    assert local_device(torch.device("cuda:0")) == torch.device("cuda", 0)
    assert local_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize(
    "command",
    [[sys.executable, "training/train.py"], [sys.executable, "-m", "training.train"]],
    ids=["file", "module"],
)
def test_it_starts_as_a_file_and_as_a_module(command: list[str], faces: Path, tmp_path: Path) -> None:
    started(command, "--data", faces, "--out", tmp_path / "run", "--recipe", "tiny", "--steps", "1", *LIGHT)
    assert (tmp_path / "run" / "weights.safetensors").is_file()
