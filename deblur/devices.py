"""Which device and which precision; and memory that is kept for the next batch instead of given back."""

from __future__ import annotations

import ctypes
import sys

import torch

from deblur.errors import DeviceError, OptionError

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")


def resolve_device(name: str | torch.device) -> torch.device:
    """A device by name; `auto` takes CUDA, then Apple's GPU, then the CPU.

    Raises:
        DeviceError: the device is not there.
        OptionError: the name is not that of a device.
    """
    if isinstance(name, torch.device):
        name = str(name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise OptionError(f"device: expected one of {', '.join(DEVICES)} or cuda:N, got {name!r}") from error
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if device.type not in there:
        raise OptionError(f"device: expected one of {', '.join(DEVICES)} or cuda:N, got {name!r}")
    if (device.index or 0) >= there[device.type]:
        raise DeviceError(f"device {name!r} is not there: this machine has {there[device.type]}; use auto or cpu")
    return device


def resolve_precision(name: str, device: torch.device) -> torch.dtype:
    """A number format by name; `auto` takes bfloat16 where the device multiplies it fast, else float32.

    Raises:
        OptionError: the name is not that of a precision, or float16 is asked of a CPU.
    """
    if name not in PRECISIONS:
        raise OptionError(f"precision: expected one of {', '.join(PRECISIONS)}, got {name!r}")
    if name == "fp16" and device.type == "cpu":
        raise OptionError("precision fp16 needs a GPU; on the CPU use auto, bf16 or fp32")
    if name == "auto":
        name = "bf16" if _multiplies_bfloat16(device) else "fp32"
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    known = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return any(known.get(name) for name in ("amx_tile", "amx_bf16", "avx512_bf16"))


def keep_freed_memory() -> None:
    """Lets the C library keep freed blocks for the next batch (Linux with glibc; elsewhere nothing happens).

    By default every large tensor is a fresh mapping whose pages fault in one by one, which on a CPU costs more than
    many a layer's arithmetic. For programs, not for import: it changes the whole process.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # malloc.h
    mallopt(mmap_threshold, 1 << 30)
    mallopt(trim_threshold, (1 << 31) - 1)
    mallopt(top_pad, 64 << 20)
