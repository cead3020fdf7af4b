"""The application: `uvicorn --factory serving.app:create_app`."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware.cors import CORSMiddleware

from deblur import __version__
from serving import errors, logs, telemetry
from serving.draining import drain_on_signals
from serving.memory import bound_memory
from serving.middleware import Frame
from serving.routes import build_router
from serving.schemas import ProblemReport, Report
from serving.service import Service
from serving.settings import Settings

logger = logging.getLogger("serving.app")

_TEXT = "Restores motion-blurred faces in photographs and reports the faces found before and after."
#: How long a thread that runs Python keeps others waiting. The default, 5 ms for each busy thread, would be most of
#: what a probe waits for.
_SWITCH_INTERVAL_S = 0.0005
_EXPOSED = [
    "X-Request-ID",
    "X-Model-Version",
    "X-Faces-Before",
    "X-Faces-After",
    "X-Detection-Confidence-Before",
    "X-Detection-Confidence-After",
    "Server-Timing",
    "Retry-After",
]


def create_app(settings: Settings | None = None) -> FastAPI:
    """Builds the application; the model is loaded when it starts, not here.

    Args:
        settings: what to serve and how; read from the environment and `.env` when None.
    """
    settings = settings or Settings()
    logs.configure(settings.log_level, settings.log_format)
    bound_memory()
    service = Service(settings)
    app = FastAPI(
        title="Face deblurring",
        description=_TEXT,
        version=__version__,
        lifespan=_lifespan,
        docs_url=None,  # they load scripts from a CDN
        redoc_url=None,
    )
    app.state.service = service
    telemetry.configure(app)
    errors.install(app)
    app.add_middleware(Frame, metrics=service.metrics, check=service.check)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key", "X-Request-ID"],
            expose_headers=_EXPOSED,
        )
    app.include_router(build_router(service))
    _describe(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    loading = service.start()
    exits = service.settings.on_load_failure == "exit"
    if multiprocessing.parent_process() is not None:
        # One of several workers on one socket: what it accepts before it is ready, a ready one would have served.
        await loading
        if exits and service.fleet.failure is not None:
            raise service.fleet.failure
    elif exits:
        loading.add_done_callback(lambda _: _exit_if_failed(service))
    try:
        with drain_on_signals(service.drain, service.settings.drain_delay_s):
            yield
    finally:
        await service.stop()
        await asyncio.to_thread(telemetry.shutdown)


def _exit_if_failed(service: Service) -> None:
    """Ends the server as from outside; `python -m serving` then exits with a status of its own."""
    if service.fleet.failure is not None and threading.current_thread() is threading.main_thread():
        os.kill(os.getpid(), signal.SIGTERM)


def _describe(app: FastAPI) -> None:
    """Completes the OpenAPI description with the schemas that only hand-written parts refer to."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=_TEXT, routes=app.routes)
            known = schema.setdefault("components", {}).setdefault("schemas", {})
            for model in (Report, ProblemReport):
                described = model.model_json_schema(ref_template="#/components/schemas/{model}")
                known.update(described.pop("$defs", {}))
                known[model.__name__] = described
            for name in ("HTTPValidationError", "ValidationError"):
                known.pop(name, None)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
