"""`python -m serving`: the service on uvicorn, set up by the environment; `--settings` prints the table."""

from __future__ import annotations

import contextlib
import signal
import sys

from pydantic import ValidationError

from serving.settings import Settings, describe

EXIT_NOT_LOADED = 3
EXIT_BAD_SETTINGS = 2


def main(arguments: list[str]) -> int:
    """Runs the service until it is told to stop.

    Returns:
        The exit status: 0 after a graceful stop, 2 for settings that are not valid, 3 when the model could
        not be loaded or the address is taken.
    """
    if arguments:
        print(describe() if arguments == ["--settings"] else __doc__)
        return 0 if arguments == ["--settings"] else EXIT_BAD_SETTINGS
    try:
        settings = Settings()
    except ValidationError as error:
        for e in error.errors():
            name = "_".join(["DEBLUR", *(str(part).upper() for part in e["loc"][:1])])
            shown = "" if e["loc"][:1] == ("api_keys",) else f", got {e['input']!r}"
            print(f"{name}: {e['msg']}{shown}", file=sys.stderr)
        print("python -m serving --settings prints all of them", file=sys.stderr)
        return EXIT_BAD_SETTINGS
    if settings.workers > 1:
        return _run_workers(settings)
    return _run(settings)


def _run(settings: Settings) -> int:
    import uvicorn

    from serving.app import create_app  # takes seconds, which a wrong setting need not wait for

    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=round(settings.drain_timeout_s),
    )
    # uvicorn raises the signal again once it has drained, for whoever handled it before: this, so that a
    # graceful stop ends with status 0 rather than by the signal.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run()
    return EXIT_NOT_LOADED if app.state.service.fleet.failure is not None else 0


def _run_workers(settings: Settings) -> int:
    """Several processes under uvicorn's supervisor, which replaces one that dies."""
    import uvicorn

    uvicorn.run(
        "serving.app:create_app",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=round(settings.drain_timeout_s),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
