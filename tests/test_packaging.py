"""The wheel: the library alone, with its weights, and it works where it is installed."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(out.glob("*.whl"))


def test_the_wheel_ships_the_library_alone_with_its_assets(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {n.split("/")[0] for n in names if not n.split("/")[0].endswith(".dist-info")}
    assert tops == {"deblur"}
    shipped = {n.removeprefix("deblur/assets/") for n in names if n.startswith("deblur/assets/")}
    listed = json.loads((ROOT / "deblur" / "assets" / "weights.json").read_text(encoding="utf-8"))
    assert {entry["file"] for entry in listed.values()} | {"weights.json"} <= shipped
    assert "deblur/py.typed" in names


def test_the_wheel_restores_a_picture_away_from_the_checkout(wheel, tmp_path):
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r}); import deblur;"
        f"assert deblur.__file__.startswith({str(site)!r}), deblur.__file__;"
        f"r = deblur.load(device='cpu').restore({str(ROOT / 'samples' / 'blurred' / 'crop.png')!r}, mode='whole');"
        "print(r.image.size)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "(128, 128)"
