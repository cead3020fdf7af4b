"""Pictures without faces, a client in this process, and the service in a process of its own."""

import io
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import uvicorn
from PIL import Image

from serving.app import create_app

ROOT = Path(__file__).parents[2]


@contextmanager
def running(settings, ready=True):
    """A client of the application, on a thread of this process; `client.app` is the application."""
    app = create_app(settings)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=10))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="test-server")
    thread.start()
    client = httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60, trust_env=False)
    client.app = app

    def status():
        failure = app.state.service.fleet.failure
        if ready and failure is not None:
            raise AssertionError("the model could not be loaded") from failure
        return client.get("/readyz" if ready else "/healthz").status_code

    try:
        wait_ready(status)
        yield client
    finally:
        client.close()
        server.should_exit = True
        thread.join()
        listener.close()


def wait_ready(status, seconds=60):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if status() == 200:
                return
        except (OSError, httpx.TransportError):
            pass
        time.sleep(0.02)
    raise AssertionError("the service did not become ready")


def noise(width=64, height=48, seed=0, mode="RGB"):
    """A picture without a face."""
    random = np.random.default_rng(seed)
    small = random.integers(40, 215, (max(1, height // 8), max(1, width // 8), 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def encoded(picture, format="PNG", **options):
    buffer = io.BytesIO()
    picture.save(buffer, format, **options)
    return buffer.getvalue()


def opened(content):
    return Image.open(io.BytesIO(content))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """The service in a process of its own, as operators run it."""

    def __init__(self, weights, command=None, python=sys.executable, cwd=None, **changes):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        values = {"weights": weights, "devices": "cpu", "precision": "fp32", "port": self.port, **changes}
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("DEBLUR_", "OTEL_"))}
        for name, value in values.items():
            environment[name if name.isupper() else f"DEBLUR_{name.upper()}"] = str(value)
        environment |= {"PYTHONPATH": "" if cwd else str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [part.format(port=self.port) for part in command or ["-m", "serving"]]
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - a pipe that nobody reads fills up
        self._printed = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self.process = subprocess.Popen(
            [python, *command], env=environment, cwd=cwd, stderr=self._log, stdout=self._printed
        )

    def status(self, path="/readyz"):
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def wait_ready(self):
        def status():
            if self.process.poll() is not None:
                raise AssertionError(f"the service ended with {self.process.returncode}: {self.log()}")
            return self.status()

        wait_ready(status)
        return self

    def end(self, seconds=30):
        """Exit status and log, after SIGTERM."""
        self.process.terminate()
        return self.outcome(seconds)

    def outcome(self, seconds=30):
        try:
            self.process.wait(timeout=seconds)
        finally:
            self.kill()
        return self.process.returncode, self.log()

    def log(self):
        self._log.seek(0)
        return self._log.read()

    def printed(self):
        self._printed.seek(0)
        return self._printed.read()

    def close(self):
        self._log.close()
        self._printed.close()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
