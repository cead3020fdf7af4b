"""Import directions, and an import of the library that stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "deblur": set(),
    "data_synth": {"deblur"},
    "training": {"data_synth", "deblur"},
    "serving": {"deblur"},
}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_go_one_way(package):
    forbidden = set(MAY_IMPORT) - MAY_IMPORT[package] - {package}
    for path in (ROOT / package).rglob("*.py"):
        assert not imported(path) & forbidden, path


def test_one_file_alone_imports_facenet_pytorch():
    users = [p.name for p in (ROOT / "deblur").rglob("*.py") if "facenet_pytorch" in imported(p)]
    assert users == ["faces.py"]


@pytest.mark.parametrize("module", ["deblur", "deblur.cli", "deblur.images"])
def test_importing_stays_light(module):
    heavy = {"torch", "torchvision", "matplotlib"}
    code = f"import sys, {module}; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr


def test_public_names_are_sorted_and_there():
    import deblur

    assert deblur.__all__ == sorted(deblur.__all__)
    for name in deblur.__all__:
        assert getattr(deblur, name)
