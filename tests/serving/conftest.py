"""A real engine, small: a randomly initialised generator in a weights file, the real detector, the real service."""

import os

import pytest
import torch

from deblur.generator import build, gated
from deblur.weights import save_weights
from serving.settings import Settings
from tests.serving.support import Server, running


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("DEBLUR_", "OTEL_", "PROMETHEUS_")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """Path of a weights file whose generator changes every picture a little."""
    torch.manual_seed(0)
    generator = build(gated(widths=(4, 8), down=(1, 1), up=(1,)))
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_weights(generator, path, {"training_data": "none: random"})
    return path


@pytest.fixture(scope="session")
def settings_for(weights):
    """Settings for the tiny weights, with named fields changed."""

    def make(**changes):
        values = {"weights": str(weights), "devices": "cpu", "precision": "fp32", "codec_threads": 2, **changes}
        return Settings(_env_file=None, **values)

    return make


@pytest.fixture(scope="session")
def client(settings_for):
    """A client of one application for the whole session."""
    os.environ.pop("DEBLUR_WEIGHTS", None)
    with running(settings_for()) as client:
        yield client


@pytest.fixture
def serve(weights):
    """Starts servers that end with the test."""
    servers = []

    def start(command=None, **changes):
        server = Server(changes.pop("weights", weights), command, **changes)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.kill()
        server.close()
