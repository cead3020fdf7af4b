"""The service on Ray Serve keeps the contract."""

import socket
import time
from pathlib import Path

import httpx
import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.serve")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray warns of many things that are not ours
SAMPLE = Path(__file__).parents[2] / "samples" / "blurred" / "astronaut.jpg"
JPEG = {"content-type": "image/jpeg"}


@pytest.fixture
def address(monkeypatch):
    from ray import serve

    monkeypatch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "120")
    monkeypatch.setenv("DEBLUR_DEVICE", "cpu")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"port": port})
        from serving.ray_serve import app

        serve.run(app, name="deblur")
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


def test_contract(address):
    assert httpx.get(f"{address}/healthz", timeout=60).status_code == 200
    deadline = time.monotonic() + 240
    while httpx.get(f"{address}/readyz", timeout=60).status_code != 200:
        assert time.monotonic() < deadline, "not ready in time"
        time.sleep(1)
    reply = httpx.post(f"{address}/deblur", content=SAMPLE.read_bytes(), headers=JPEG, timeout=120)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "image/jpeg"
    assert reply.headers["x-faces-before"] == "1"
    refused = httpx.post(f"{address}/deblur", content=b"no picture", headers=JPEG, timeout=60)
    assert refused.status_code in (415, 422)
    assert refused.headers["content-type"] == "application/problem+json"
