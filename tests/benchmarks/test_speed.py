"""Each speed benchmark runs in its smoke mode and ends with its ratios; nothing here is timed."""

import json
import os
import subprocess
import sys

import pytest

from deblur.generator import build, gated
from deblur.weights import save_weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_weights(build(gated(stem=4, widths=[8, 16], down=[1, 1], up=[1])), path, {})
    return path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("generator", "resnet/default 64 px x1 bf16"),
        ("gpu_table", "host to host/device 64 px"),
        ("restore", "generate share, 10 face(s)"),
        ("tiling", "levels at the halo of 224 px"),
    ],
)
def test_the_smoke_mode_ends_with_ratios(name, expected, weights, tmp_path):
    options = {"gpu_table": ["--device", "cpu"], "tiling": ["--plot", str(tmp_path / "plot.png")]}.get(name, [])
    command = [sys.executable, "-m", f"benchmarks.{name}", "--smoke", "--weights", str(weights), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    ratios = json.loads(done.stdout.splitlines()[-1])
    assert expected in ratios
    assert all(value >= 0 for value in ratios.values())
    assert "| --- |" in done.stdout
    assert name != "tiling" or (tmp_path / "plot.png").is_file()
    if name == "gpu_table":
        assert "| graphs |" in done.stdout


def test_the_gpu_table_needs_no_detector():
    code = "import sys; sys.modules['facenet_pytorch'] = None; import benchmarks.gpu_table"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
