"""Settings of the service: environment variables `DEBLUR_*`, or a `.env` file in the working directory.

The table in serving/README.md is this class, row by row; `describe` prints it and a test compares the two.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from deblur.backends import check_backend
from deblur.errors import OptionError

MEBI = 1024 * 1024


def _default_codec_threads() -> int:
    return max(2, min(8, os.cpu_count() or 2))


class Settings(BaseSettings):
    """Everything that an operator may set; each field is the variable `DEBLUR_<NAME>`.

    Lists are comma-separated. Bodies are in bytes, pictures in pixels, times in the unit that ends the name.
    """

    model_config = SettingsConfigDict(env_prefix="DEBLUR_", env_file=".env", extra="ignore", frozen=True)

    host: str = Field(default="127.0.0.1", description="Address that `python -m serving` listens on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port that it listens on; 0 picks a free one.")
    workers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes, each with its own model and queue; one is right for GPUs.",
    )

    weights: str = Field(
        default="default",
        description="Name of bundled weights, or path of a weights file or of what `deblur export --onnx` wrote.",
    )
    backend: str = Field(
        default="auto",
        description="What runs the generator: `auto`, `torch`, `compile`, `graphs`, `onnx` or `openvino`.",
    )
    devices: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("auto",),
        description="Devices, e.g. `cuda:0,cuda:1`. `auto`: every CUDA device, else MPS, else the CPU.",
    )
    precision: str = Field(default="auto", description="The generator's arithmetic: `auto`, `fp32`, `bf16` or `fp16`.")
    on_load_failure: Literal["exit", "stay"] = Field(
        default="exit",
        description="When the model cannot be loaded: `exit` non-zero, or `stay` with /readyz at 503.",
    )
    warm_up: bool = Field(default=True, description="Restore one small picture on each device before being ready.")

    max_body_bytes: int = Field(default=32 * MEBI, ge=1024, description="Largest upload; beyond it 413.")
    max_pixels: int = Field(
        default=50_000_000,
        ge=1,
        description="Largest picture, all frames summed, from its header; beyond it 422.",
    )
    max_requests: int = Field(default=256, ge=1, description="Requests being read or worked on; beyond it 503.")
    queue_pixels: int = Field(
        default=100_000_000,
        ge=1,
        description="Pixels of the pictures being worked on; beyond it 503. A lone picture always gets in.",
    )
    queue_bytes: int = Field(default=512 * MEBI, ge=1024, description="Upload bytes held in memory; beyond it 503.")
    queue_age_s: float = Field(
        default=10.0, gt=0, description="Longest wait for the generator; whoever waited longer gets 503."
    )
    request_timeout_s: float = Field(
        default=60.0, gt=0, description="Deadline of a request from when it is read; then 504."
    )
    upload_timeout_s: float = Field(default=30.0, gt=0, description="Longest time to send a body; beyond it 408.")
    download_timeout_s: float = Field(default=60.0, gt=0, description="Longest time to take a reply; then cut off.")

    batch_pixels: int = Field(
        default=0,
        ge=0,
        description="Pixels of one generator batch; 0: 2^18 on CPU, 2^20 (the library's own bound) elsewhere.",
    )
    lanes: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Batches under way at once on a device; they share its processors. 0: on a CPU one for each "
        "processor, up to 8, under the backend `torch`; else 1.",
    )
    batch_wait_ms: float = Field(
        default=4.0,
        ge=0,
        le=1000,
        description="Longest wait for a batch to fill; a lone request does not wait.",
    )
    codec_threads: int = Field(
        default_factory=_default_codec_threads,
        ge=1,
        le=256,
        description="Threads that decode, detect and encode; by default the CPUs, from 2 to 8.",
    )

    drain_delay_s: float = Field(
        default=0.0,
        ge=0,
        description="After SIGTERM, time that /readyz answers 503 before the listener closes.",
    )
    drain_timeout_s: float = Field(default=60.0, gt=0, description="After that, time for accepted requests to end.")

    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        default=(), description="Keys for POST /deblur (`X-API-Key` or `Authorization: Bearer`); none: open."
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Origins of other sites whose pages may call this; none: CORS is off."
    )
    web: bool = Field(default=True, description="Serve the web page at `/`.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level to log.")
    log_format: Literal["json", "text"] = Field(default="json", description="One JSON object a line, or plain lines.")

    @field_validator("devices", "api_keys", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("devices")
    @classmethod
    def _some_device(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("expected at least one device, e.g. `auto` or `cpu`, got an empty list")
        return value

    @field_validator("weights")
    @classmethod
    def _expand(cls, value: str) -> str:
        return str(Path(value).expanduser()) if value.startswith("~") else value

    @field_validator("backend")
    @classmethod
    def _known_backend(cls, value: str, info: ValidationInfo) -> str:
        try:
            check_backend(value, info.data.get("weights", "default"))
        except OptionError as error:
            raise ValueError(str(error)) from error
        return value


def _default_text(name: str) -> str:
    field = Settings.model_fields[name]
    if field.default_factory is not None:
        return "CPUs"
    value = field.default
    if isinstance(value, tuple):
        return f"`{','.join(value)}`" if value else "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def describe() -> str:
    """The settings as a Markdown table: variable, default, meaning."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        rows.append(f"| `DEBLUR_{name.upper()}` | {_default_text(name)} | {field.description} |")
    return "\n".join(rows)
