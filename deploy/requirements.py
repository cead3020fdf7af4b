"""Prints the requirements of one install step, from pyproject.toml, so that they stand in one place only.

    python requirements.py pyproject.toml torch|dependencies

`torch` are torch and torchvision, which come from an index of their own; `dependencies` are the library's others
and those of the extra `serve`.
"""

import re
import sys
import tomllib
from pathlib import Path

SEPARATE = ("torch", "torchvision")


def requirements(pyproject: Path, step: str) -> list[str]:
    """The requirements of a step, as pip reads them."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    everything = [*project["dependencies"], *project["optional-dependencies"]["serve"]]
    separate = [line for line in everything if re.split(r"[^A-Za-z0-9_.\-]", line)[0].lower() in SEPARATE]
    if step == "torch":
        return separate
    if step == "dependencies":
        return [line for line in everything if line not in separate]
    raise SystemExit(f"requirements.py: expected torch or dependencies, got {step!r}")


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path(sys.argv[1]), sys.argv[2])) + "\n")
