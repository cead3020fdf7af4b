"""Pack, export, plot, and the one command from a packed file to weights."""

import json
import subprocess
import sys
import tarfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from data_synth.sources import open_sources
from deblur.images import decode
from deblur.weights import load_weights
from tests.training.pictures import picture, write_picture
from training import export, pack, plot, single, train
from training.checkpoint import newest_checkpoint
from training.watch import read_log


@pytest.fixture
def run(faces: Path, tmp_path: Path) -> Path:
    assert train.main(["--data", str(faces), "--out", str(tmp_path / "run"), "--recipe", "tiny", "--steps", "10"]) == 0
    return tmp_path / "run"


@pytest.mark.parametrize("source", ["", "checkpoints/step-00000010.pt"])
def test_export_writes_the_average_as_deblur_loads_it(source: str, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "exported" / "face.safetensors"
    assert export.main([str(run / source), str(out), "--note", "terms=research only"]) == 0
    weights = load_weights(out)
    state = newest_checkpoint(run)
    assert state is not None
    for name, value in weights.generator.state_dict().items():
        assert torch.allclose(value, state["ema"][name], atol=1e-3)
    assert weights.metadata["steps"] == 10
    assert weights.metadata["terms"] == "research only"


def test_export_of_the_first_versions_checkpoint_reads_the_runs_config(run: Path, tmp_path: Path) -> None:
    path = run / "checkpoints" / "step-00000010.pt"
    state = torch.load(path, weights_only=True)
    for key in ("generator_config", "learner", "d_learner", "best", "bad_in_row"):
        del state[key]
    torch.save(state, path)
    assert export.main([str(run), str(tmp_path / "w.safetensors")]) == 0


@pytest.mark.parametrize(
    ("source", "out", "named"),
    [
        ("absent.pt", "w.safetensors", "absent.pt"),
        ("", "w.pth", ".safetensors"),
        ("pictures", "w.safetensors", "found none"),
    ],
)
def test_export_says_what_is_wrong(
    source: str, out: str, named: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export.main([str(run / source), str(tmp_path / out)]) == 3
    assert named in capsys.readouterr().err


def test_plot_draws_a_panel_for_what_was_logged(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert plot.main([str(run)]) == 0
    with Image.open(run / "curves.png") as drawn:
        assert drawn.width > 1000
        assert np.asarray(drawn.convert("L")).std() > 5
    assert plot.main([str(run), str(run), "--against", "minutes", "-o", str(tmp_path / "two.png")]) == 0
    assert (tmp_path / "two.png").stat().st_size > 5000


def test_plot_without_a_log_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plot.main([str(tmp_path)]) == 3
    assert "log" in capsys.readouterr().err


def test_a_pack_holds_reduced_pictures(tmp_path: Path) -> None:
    write_picture(tmp_path / "in" / "large.png", picture(0, 300, 200))
    write_picture(tmp_path / "in" / "sub" / "größe 1.png", picture(1, 50, 60))
    out = tmp_path / "faces.tar"
    assert pack.main([str(tmp_path / "in"), str(out), "--max-side", "100"]) == 0
    packed = open_sources(out)
    sizes = {name: decode(packed.read(name)).levels.shape for name in packed.names}
    assert sizes == {"0/large.webp": (100, 67, 3), "0/sub/größe 1.webp": (50, 60, 3)}
    difference = decode(packed.read("0/sub/größe 1.webp")).levels.astype(int) - picture(1, 50, 60)[:, :, ::-1]
    assert np.abs(difference).mean() < 4


def test_a_pack_keeps_its_limit_and_says_what_it_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for i in range(40):
        write_picture(tmp_path / "in" / f"{i}.png", rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    (tmp_path / "in" / "bad.png").write_bytes(b"no picture")
    out = tmp_path / "faces.tar"
    assert pack.main([str(tmp_path / "in"), str(out), "--max-mib", "0.1"]) == 0
    assert 0.05 * 2**20 < out.stat().st_size <= 0.1 * 2**20
    held = len(open_sources(out).names)
    assert 0 < held < 40
    said = capsys.readouterr().out
    assert f"{held} pictures" in said
    assert "left out for" in said


def test_the_same_faces_give_the_same_bytes(faces: Path, tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        assert pack.main([str(faces), str(tmp_path / name)]) == 0
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_a_pack_is_not_written_over_unless_asked(faces: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.tar"
    out.write_bytes(b"mine")
    assert pack.main([str(faces), str(out)]) == 3
    assert out.read_bytes() == b"mine"
    assert pack.main([str(faces), str(out), "--force"]) == 0
    assert tarfile.is_tarfile(out)


def test_faces_are_cut_out_with_a_margin() -> None:
    levels = np.zeros((100, 80, 3), np.uint8)
    levels[40:60, 30:50] = 255
    cut = pack._around(levels, (30, 40, 50, 60))
    assert cut.shape == (32, 32, 3)
    assert (cut[6:26, 6:26] == 255).all()
    assert pack._around(levels, (-10, -10, 30, 30)).shape[:2] == (42, 42)


def _packed(faces: Path, tmp_path: Path, *more: object) -> Path:
    out = tmp_path / "faces.tar"
    assert pack.main([str(faces), str(out), *map(str, more)]) == 0
    return out


def test_one_command_goes_from_a_pack_to_weights(faces: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert single.main([str(_packed(faces, tmp_path)), str(out), "--minutes", "0.02", "--recipe", "tiny"]) == 0
    found = {p.name for p in out.iterdir()}
    assert found == {"weights.safetensors", "best.safetensors", "log.jsonl", "config.json", "sheet.png"}
    assert load_weights(out / "weights.safetensors").metadata["minutes"] == 0.0
    assert read_log(out)[-1]["event"] == "validate"
    with Image.open(out / "sheet.png") as sheet:
        assert sheet.mode == "RGB"


def test_weights_that_are_packed_along_are_used(faces: Path, run: Path, vgg_file: Any, tmp_path: Path) -> None:
    for i in range(4):
        write_picture(faces / f"large{i}.png", picture(i, 70, 70))
    vgg, init = vgg_file("vgg16", "relu3_3"), run / "weights.safetensors"
    packed = _packed(faces, tmp_path, "--perceptual-weights", vgg, "--init", init)
    work, out = tmp_path / "work", tmp_path / "out"
    options = ["--minutes", "0.02", "--work", str(work), "--batch-scale", "0.05", "--validate-every", "0"]
    assert single.main([str(packed), str(out), *options]) == 0
    config = json.loads((out / "config.json").read_text())
    assert config["recipe"] == "finetune"
    assert config["loss"]["perceptual_weight"] > 0
    assert Path(config["perceptual_weights"]).read_bytes() == vgg.read_bytes()
    assert Path(config["init"]).read_bytes() == init.read_bytes()
    assert newest_checkpoint(work / "run") is not None


def test_without_perceptual_weights_it_trains_on_and_says_so(
    faces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "no-cache"))
    options = Namespace(recipe=None, init=None, perceptual_weights=None, batch_scale=None, minutes=1.0, device="cpu")
    options.pack = _packed(faces, tmp_path)
    arguments = single.train_arguments(options, tmp_path)
    assert arguments[-2:] == ["--perceptual", "0"]
    assert "WITHOUT the perceptual loss" in capsys.readouterr().err


def test_identity_weights_by_file_need_no_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = single.find_spec
    monkeypatch.setattr(single, "find_spec", lambda name: None if name == single.PACKAGE else installed(name))
    assert single._identity(Namespace(identity_weights="net.dat"), "finetune") == ["--identity-weights", "net.dat"]
    assert single._identity(Namespace(identity_weights=None), "finetune") == ["--identity", "0"]
    assert f"WITHOUT the identity loss: not installed: {single.PACKAGE}" in capsys.readouterr().err
    assert single._identity(Namespace(identity_weights=None), "fast") == []


# What a bare machine has not; an import of any of them would end the command.
_ABSENT = ("facenet_pytorch", "tqdm", "tensorboard", "matplotlib", "albumentations", "skimage", "lpips", "scipy")
_BARE = """
import sys
for name in {absent!r}:
    sys.modules[name] = None
import socket
def no_network(*_, **__):
    raise OSError("no network here")
socket.socket.connect = no_network
from training import single
sys.exit(single.main({arguments!r}))
"""


def _bare(arguments: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    script = _BARE.format(absent=_ABSENT, arguments=arguments)
    root = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=seconds, check=False
    )


def test_it_needs_neither_network_nor_other_packages(faces: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = [str(_packed(faces, tmp_path)), str(out), "--minutes", "0.02", "--recipe", "tiny"]
    done = _bare(arguments, 120)
    assert done.returncode == 0, done.stderr
    assert (out / "weights.safetensors").is_file()


@pytest.mark.slow
def test_one_minute_of_the_default_recipe(tmp_path: Path, vgg_file: Any) -> None:
    for i in range(60):
        write_picture(tmp_path / "in" / f"{i}.png", picture(i, 300, 280))
    packed = _packed(tmp_path / "in", tmp_path, "--perceptual-weights", vgg_file("vgg16", "relu3_3"))
    out = tmp_path / "out"
    done = _bare([str(packed), str(out), "--minutes", "1"], 600)
    assert done.returncode == 0, done.stderr
    assert packed.stat().st_size <= 50 * 2**20
    assert (out / "weights.safetensors").stat().st_size <= 16 * 2**20
    assert load_weights(out / "weights.safetensors").metadata["recipe"] == "fast"
    assert read_log(out)[-1]["progress"] == 1.0
    assert (out / "sheet.png").is_file()
