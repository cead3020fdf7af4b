"""Weights: a name or a file in, a verified generator out.

A weights file is safetensors whose metadata says how to build the generator and what it was trained on. Bundled
files are listed with their sha256 in assets/weights.json and are checked each time they are loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import deblur.generator as generators
from deblur.errors import OptionError, WeightsError

ASSETS = Path(__file__).parent / "assets"
FORMAT = "deblur-generator-1"
MAX_BYTES = 512 * 2**20


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A loaded generator and where it came from.

    Attributes:
        generator: module in eval mode, float32, on the CPU.
        name: bundled name, or the file's stem.
        path: the file.
        sha256: hex digest of the file.
        metadata: `format`, `generator` (its config), `value_range`, `training_data`, `version`, `recipe` ...
    """

    generator: nn.Module
    name: str
    path: Path
    sha256: str
    metadata: dict[str, Any]


def bundled() -> dict[str, dict[str, str]]:
    """Bundled weights by name: `file`, `sha256` and a `summary` of what each is for.

    Raises:
        WeightsError: the list is absent or damaged.
    """
    path = ASSETS / "weights.json"
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise WeightsError(f"weights: the list of bundled files {path} cannot be read; install again") from error


def load_weights(name_or_path: str | os.PathLike[str] = "default") -> Weights:
    """Loads and verifies weights.

    Args:
        name_or_path: a bundled name (see `bundled`), or a path to a weights file or to what `deblur export --onnx`
            wrote. A word without a suffix or a separator is a name.

    Raises:
        WeightsError: the file is absent, empty, damaged, of another kind, or not the one that was bundled.
        OptionError: the name is not known.
    """
    text = os.fspath(name_or_path)
    if Path(text).suffix == ".onnx":
        from deblur.onnx_weights import load_onnx

        return load_onnx(Path(text))
    if Path(text).suffix or os.sep in text or "/" in text:
        return _load(Path(text), Path(text).stem, None)
    known = bundled()
    if text not in known:
        raise OptionError(f"weights {text!r}: expected one of {', '.join(known)}, or a path to a .safetensors file")
    entry = known[text]
    return _load(ASSETS / entry["file"], text, entry["sha256"])


def save_weights(generator: nn.Module, path: Path, metadata: Mapping[str, Any]) -> str:
    """Writes a generator's weights as float16 safetensors, whole or not at all.

    Args:
        generator: module with a `config`.
        path: where to; replaced if it is there.
        metadata: what is known of the training; plain JSON values.

    Returns:
        The file's sha256.
    """
    from safetensors.torch import save

    state = {k: v.detach().to("cpu", torch.float16).contiguous() for k, v in generator.state_dict().items()}
    config = generator.config
    assert isinstance(config, generators.GeneratorConfig)
    described = {"value_range": "RGB in [0, 1]", **metadata, "format": FORMAT, "generator": config.to_dict()}
    content = save(state, {k: v if isinstance(v, str) else json.dumps(v) for k, v in described.items()})
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_bytes(content)
    temporary.replace(path)
    return hashlib.sha256(content).hexdigest()


def _load(path: Path, name: str, expected: str | None) -> Weights:
    content = _read(path, expected)
    digest = hashlib.sha256(content).hexdigest()
    if expected is not None and digest != expected:
        raise WeightsError(
            f"weights {path}: expected sha256 {expected}, got {digest}. The file is damaged or was replaced; "
            "install the package again"
        )
    metadata = _metadata(content, path)
    config = generators.GeneratorConfig.from_dict(metadata["generator"])
    generator = generators.build(config)
    _fill(generator, content, path)
    return Weights(
        generator=generator.eval().requires_grad_(False),
        name=name,
        path=path,
        sha256=digest,
        metadata=metadata,
    )


def _read(path: Path, expected: str | None) -> bytes:
    hint = f" (expected sha256 {expected})" if expected else ""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise WeightsError(f"weights {path}: expected at most {MAX_BYTES >> 20} MiB, got {size >> 20} MiB")
        content = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"weights {path}: cannot be read{hint}: {error.strerror}") from error
    if not content:
        raise WeightsError(f"weights {path}: the file is empty{hint}; copy or download it again")
    if content.lstrip()[:1] == b"<":
        raise WeightsError(f"weights {path}: this is a web page, not weights{hint}; download the file itself")
    return content


def _metadata(content: bytes, path: Path) -> dict[str, Any]:
    problem = f"weights {path}: expected safetensors of format {FORMAT}"
    try:
        (length,) = struct.unpack("<Q", content[:8])
        if length > min(len(content) - 8, 2**24):
            raise ValueError("its header is longer than the file")
        texts = json.loads(content[8 : 8 + length]).get("__metadata__", {})
        found = {k: _parsed(v) for k, v in texts.items()}
    except (ValueError, struct.error, AttributeError) as error:
        raise WeightsError(f"{problem}; {error}") from error
    if found.get("format") != FORMAT or not isinstance(found.get("generator"), dict):
        raise WeightsError(f"{problem}, got format {found.get('format')!r}; export it with `python -m training.export`")
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _fill(generator: nn.Module, content: bytes, path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        state = load(content)
        generator.load_state_dict({k: v.float() for k, v in state.items()})
    except (SafetensorError, RuntimeError) as error:
        raise WeightsError(f"weights {path}: the tensors do not fit the generator described: {error}") from error
    bad = next((k for k, v in generator.state_dict().items() if not torch.isfinite(v).all()), None)
    if bad:
        raise WeightsError(f"weights {path}: {bad} holds values that are not finite")
