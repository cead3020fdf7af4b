"""`python -m serving`: the service on uvicorn, set up by the environment; `--settings` prints the table."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

from pydantic import ValidationError

from serving.settings import Settings, describe

_HELP = """usage: python -m serving [--settings]

Starts the service. It is set up by environment variables, DEBLUR_PORT=8000 for one; --settings prints all of them."""

EXIT_NOT_LOADED = 3
EXIT_BAD_SETTINGS = 2


def main(arguments: list[str]) -> int:
    """Runs the service until it is told to stop.

    Returns:
        The exit status: 0 after a graceful stop, 2 for settings that are not valid, 3 when the model could
        not be loaded or the address is taken.
    """
    if arguments in (["--settings"], ["--help"], ["-h"]):
        sys.stdout.write(f"{describe() if arguments == ['--settings'] else _HELP}\n")
        return 0
    if arguments:
        sys.stderr.write(f"expected no arguments, got {' '.join(arguments)}\n{_HELP}\n")
        return EXIT_BAD_SETTINGS
    try:
        settings = Settings()
    except ValidationError as error:
        for e in error.errors():
            name = "_".join(["DEBLUR", *(str(part).upper() for part in e["loc"][:1])])
            told = e["type"] == "value_error" or e["loc"][:1] == ("api_keys",)  # what came, or it must not be
            shown = "" if told else f", got {e['input']!r}"
            sys.stderr.write(f"{name}: {e['msg'].removeprefix('Value error, ')}{shown}\n")
        sys.stderr.write("python -m serving --settings prints all of them\n")
        return EXIT_BAD_SETTINGS
    if settings.workers > 1:
        return _run_workers(settings)
    return _run(settings)


def _run(settings: Settings) -> int:
    import uvicorn

    from serving.app import create_app  # takes seconds, which a wrong setting need not wait for

    app = create_app(settings)
    config = uvicorn.Config(app, **_server_options(settings))

    def stop(number: int, frame: FrameType | None) -> None:
        # uvicorn takes signals over before the service starts. Once it has drained it raises them again for whoever
        # handled them before: nothing more is to be done then, so that a graceful stop ends with status 0.
        if not app.state.service.started:
            os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    uvicorn.Server(config).run()
    return EXIT_NOT_LOADED if app.state.service.fleet.failure is not None else 0


def _run_workers(settings: Settings) -> int:
    """Several processes under uvicorn's supervisor, which replaces one that dies."""
    import uvicorn

    signal.signal(signal.SIGINT, signal.default_int_handler)
    uvicorn.run("serving.app:create_app", factory=True, workers=settings.workers, **_server_options(settings))
    return 0


def _server_options(settings: Settings) -> dict[str, Any]:
    return {
        "host": settings.host,
        "port": settings.port,
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": round(settings.drain_timeout_s),
    }
