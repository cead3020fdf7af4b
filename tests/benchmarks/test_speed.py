"""Each speed benchmark runs in its smoke mode and ends with its ratios; nothing here is timed."""

import importlib
import json
import subprocess
import sys

import pytest
import torch

from deblur.generator import build, gated
from deblur.tiling import HALO_PX
from deblur.weights import save_weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_weights(build(gated(stem=4, widths=[8, 16], down=[1, 1], up=[1])), path, {})
    return path


@pytest.mark.parametrize(
    ("name", "expected", "options"),
    [
        ("generator", "resnet/default 64 px x1 bf16", ["--threads", "1"]),
        ("gpu_table", "host to host/device 64 px", ["--device", "cpu"]),
        ("restore", "generate share, 2 face(s)", ["--threads", "1"]),
        ("tiling", f"levels at the halo of {HALO_PX} px", ["--threads", "1", "--plot", "TMP/plot.png"]),
    ],
)
def test_the_smoke_mode_ends_with_ratios(name, expected, options, weights, tmp_path, monkeypatch, capfd):
    words = [word.replace("TMP", str(tmp_path)) for word in options]
    monkeypatch.setattr(sys, "argv", [name, "--smoke", "--weights", str(weights), *words])
    threads = torch.get_num_threads()
    try:
        importlib.import_module(f"benchmarks.{name}").main()
    finally:
        torch.set_num_threads(threads)
    printed = capfd.readouterr().out
    ratios = json.loads(printed.splitlines()[-1])
    assert expected in ratios
    assert all(value >= 0 for value in ratios.values())
    assert "| --- |" in printed
    assert name != "tiling" or (tmp_path / "plot.png").is_file()
    assert name != "gpu_table" or "| graphs |" in printed


def test_the_gpu_table_needs_no_detector():
    code = "import sys; sys.modules['facenet_pytorch'] = None; import benchmarks.gpu_table"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
