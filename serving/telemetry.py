"""OpenTelemetry traces, when its packages are installed and its standard variables are set.

Nothing here is needed: without `opentelemetry-sdk`, or with none of `OTEL_TRACES_EXPORTER`,
`OTEL_EXPORTER_OTLP_ENDPOINT` and `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, every function does nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI

try:
    from opentelemetry import trace
except ImportError:  # pragma: no cover - depends on what is installed
    trace = None  # type: ignore[assignment]

logger = logging.getLogger("serving.telemetry")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def current_trace_id() -> str:
    """The trace id of the span at hand as 32 hex digits, or an empty string."""
    if trace is None:
        return ""
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""


@contextmanager
def span(name: str, **attributes: str | int | float) -> Iterator[None]:
    """A span around a stage of the work; does nothing without OpenTelemetry."""
    if trace is None:
        yield
        return
    with trace.get_tracer("face-deblur").start_as_current_span(name, attributes=attributes):
        yield


def requested() -> bool:
    """Whether the standard variables ask for traces."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "")
    if exporter:
        return exporter != "none"
    return any(os.environ.get(name) for name in _ENDPOINTS)


def _exporter() -> Any:
    if os.environ.get("OTEL_TRACES_EXPORTER") == "console":
        return importlib.import_module("opentelemetry.sdk.trace.export").ConsoleSpanExporter()
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
    )
    flavour = "grpc" if protocol == "grpc" else "http"
    module = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{flavour}.trace_exporter")
    return module.OTLPSpanExporter()


def configure(app: FastAPI) -> bool:
    """Sets up the export of traces and the spans around requests, if asked for and possible.

    A provider that is already there (`opentelemetry-instrument python -m serving`) is left alone.

    Returns:
        Whether traces are exported by a provider set up here.
    """
    if trace is None or not requested():
        return False
    try:
        sdk = importlib.import_module("opentelemetry.sdk.trace")
        if isinstance(trace.get_tracer_provider(), sdk.TracerProvider):
            return False
        provider = sdk.TracerProvider()  # reads OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER and their kin
        export = importlib.import_module("opentelemetry.sdk.trace.export")
        provider.add_span_processor(export.BatchSpanProcessor(_exporter()))
    except ImportError as error:
        logger.warning("traces were asked for but %s is not installed", error.name)
        return False
    trace.set_tracer_provider(provider)
    _instrument(app)
    return True


def _instrument(app: FastAPI) -> None:
    if importlib.util.find_spec("fastapi.telemetry"):
        return  # newer FastAPI makes the spans around requests by itself
    try:
        module = importlib.import_module("opentelemetry.instrumentation.fastapi")
    except ImportError:
        logger.warning("no spans around whole requests: opentelemetry-instrumentation-fastapi is missing")
        return
    module.FastAPIInstrumentor.instrument_app(app)


def shutdown() -> None:
    """Sends what is still held back."""
    provider = trace.get_tracer_provider() if trace is not None else None
    if hasattr(provider, "force_flush"):
        provider.force_flush(5000)
