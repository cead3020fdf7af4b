"""Puts a weights file into the package: copies it to deblur/assets and lists its sha256.

`python -m scripts.bundle NAME[,NAME ...] FILE "what it is for"`; the file is called by the first name.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from deblur.weights import ASSETS, load_weights

MAX_MIB = 16


def main(names: str, source: str, summary: str) -> None:
    """Checks, copies and lists one file, and removes those that no name stands for any more."""
    weights = load_weights(Path(source))
    size = weights.path.stat().st_size
    if size > MAX_MIB * 2**20:
        sys.exit(f"{source}: expected at most {MAX_MIB} MiB, got {size / 2**20:.1f} MiB")
    index_path = ASSETS / "weights.json"
    index = json.loads(index_path.read_text(encoding="utf-8")) if index_path.exists() else {}
    file = f"{names.split(',')[0]}.safetensors"
    shutil.copyfile(source, ASSETS / file)
    before = {entry["file"] for entry in index.values()}
    index |= {name: {"file": file, "sha256": weights.sha256, "summary": summary} for name in names.split(",")}
    for unused in before - {entry["file"] for entry in index.values()}:
        (ASSETS / unused).unlink()
    index_path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    print(f"{names}: {file}, {size / 2**20:.2f} MiB, sha256 {weights.sha256}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(f"usage: python -m scripts.bundle NAME[,NAME ...] FILE SUMMARY; {__doc__}")
    main(*sys.argv[1:])
