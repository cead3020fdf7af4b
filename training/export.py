"""Writes a run's averaged weights as the file that `deblur` loads: `python -m training.export RUN OUT.safetensors`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from deblur.errors import DataError, DeblurError
from deblur.weights import save_weights
from training.checkpoint import averaged, read_state
from training.config import load_config
from training.run import weights_metadata


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="training.export", description=__doc__)
    parser.add_argument("source", type=Path, metavar="RUN|CHECKPOINT", help="a run takes its newest checkpoint")
    parser.add_argument("out", type=Path, metavar="OUT.safetensors")
    parser.add_argument("--note", action="append", default=[], metavar="KEY=VALUE", help="more metadata")
    options = parser.parse_args(arguments)
    try:
        sha256 = export(options.source, options.out, dict(_note(text) for text in options.note))
    except (DeblurError, OSError) as error:
        sys.stderr.write(f"export: {error}\n")
        return 3
    sys.stdout.write(f"{options.out}  {options.out.stat().st_size / 2**20:.2f} MiB  sha256 {sha256}\n")
    return 0


def export(source: Path, out: Path, notes: dict[str, Any] | None = None) -> str:
    """Writes the averaged weights of a run or checkpoint.

    Args:
        source: a run's folder, or a checkpoint.
        out: the weights file.
        notes: more metadata.

    Returns:
        The file's sha256.

    Raises:
        DataError: the source is not usable, or the file's name is not one that `deblur` would load.
    """
    if out.suffix != ".safetensors":
        raise DataError(f"{out}: expected a name that ends in .safetensors")
    state, run = read_state(source)
    generator = averaged(state, run)
    described: dict[str, Any] = {}
    if (run / "config.json").is_file():
        config = load_config(run / "config.json")
        described = weights_metadata(config, state["step"], state["seen"], state["elapsed"])
    out.parent.mkdir(parents=True, exist_ok=True)
    return save_weights(generator, out, described | (notes or {}))


def _note(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise DataError(f"--note {text}: expected KEY=VALUE")
    return key, value


if __name__ == "__main__":
    sys.exit(main())
