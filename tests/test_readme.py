"""What the README and its neighbours promise is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    p for p in ROOT.rglob("*.md") if not {".venv", "node_modules", "demo", "runs"} & set(p.relative_to(ROOT).parts)
]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), target


def test_the_two_commands_are_make_targets():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", readme, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_that_a_page_runs_is_there(page):
    for module in re.findall(r"python3? -m ([\w.]+)", page.read_text(encoding="utf-8")):
        if module.split(".")[0] in {"deblur", "data_synth", "training", "serving", "benchmarks", "scripts"}:
            path = ROOT.joinpath(*module.split("."))
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_samples_are_all_accounted_for():
    listed = (ROOT / "samples" / "SOURCES.md").read_text(encoding="utf-8")
    for folder in ("blurred", "sharp"):
        for path in (ROOT / "samples" / folder).iterdir():
            assert f"`{path.name}`" in listed, path.name
