"""The service in processes of its own: failures at the start, signals, supervision, rude clients."""

import json
import os
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.serving.support import encoded, noise, running


def post(server, content, query="mode=whole", timeout=60, **headers):
    request = urllib.request.Request(f"{server.url}/deblur?{query}", content, {"Content-Type": "image/png", **headers})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


# Weights


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("absent.safetensors", None, "cannot be read"),
        ("empty.safetensors", b"", "empty"),
        ("page.safetensors", b"<!doctype html><html>quota exceeded</html>", "web page"),
        ("damaged.safetensors", "cut", "safetensors"),
    ],
)
def test_bad_weights_are_never_ready_and_the_reason_is_told(settings_for, tmp_path, weights, name, content, said):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(weights.read_bytes()[:5000] if content == "cut" else content)
    with running(settings_for(weights=str(path), on_load_failure="stay"), ready=False) as client:
        until = time.monotonic() + 20
        while "could not be loaded" not in client.get("/readyz").text and time.monotonic() < until:
            time.sleep(0.05)
        for reply in (client.get("/readyz"), client.post("/deblur", content=b"x")):
            assert reply.status_code == 503
            assert reply.json()["code"] == "not-ready"
            assert str(path) in reply.json()["detail"]
            assert said in reply.json()["detail"]
        assert client.get("/healthz").status_code == 200


def test_bundled_weights_that_were_replaced_are_named_with_the_hash_expected(settings_for, tmp_path, monkeypatch):
    import deblur.weights

    index = {"default": {"file": "default.safetensors", "sha256": "0" * 64, "summary": ""}}
    (tmp_path / "weights.json").write_text(json.dumps(index), encoding="utf-8")
    (tmp_path / "default.safetensors").write_bytes(b"something else")
    monkeypatch.setattr(deblur.weights, "ASSETS", tmp_path)
    with running(settings_for(weights="default", on_load_failure="stay"), ready=False) as client:
        until = time.monotonic() + 20
        while "could not be loaded" not in client.get("/readyz").text and time.monotonic() < until:
            time.sleep(0.05)
        assert "0" * 64 in client.get("/readyz").json()["detail"]


def test_bad_weights_end_the_process_with_status_3_and_the_path(serve, tmp_path):
    path = tmp_path / "page.safetensors"
    path.write_text("<html>quota exceeded</html>", encoding="utf-8")
    status, log = serve(weights=path).outcome()
    assert status == 3
    assert str(path) in log
    assert "Traceback" not in log


# Signals


@pytest.mark.parametrize(
    "command", [None, ["-m", "uvicorn", "--factory", "serving.app:create_app", "--port", "{port}"]]
)
def test_sigterm_under_load_loses_no_accepted_request(serve, command):
    server = serve(command, drain_delay_s=2).wait_ready()
    content = encoded(noise(300, 300))
    answers, told = [], threading.Event()

    def client(_):
        while not told.is_set():
            try:
                answers.append(post(server, content)[0])
            except (urllib.error.URLError, ConnectionError) as error:
                answers.append(error)

    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(client, i) for i in range(8)]
        while len(answers) < 8:
            time.sleep(0.01)
        server.process.terminate()
        until = time.monotonic() + 1.5
        while server.status("/readyz") == 200 and time.monotonic() < until:
            time.sleep(0.01)
        assert server.status("/readyz") == 503
        assert server.status("/healthz") == 200
        assert post(server, content)[0] == 503
        told.set()
        [job.result() for job in jobs]
    status, log = server.outcome()
    assert set(answers) <= {200, 503}, answers  # finished, or told to go elsewhere; nobody was cut off
    assert status in ((0,) if command is None else (0, -signal.SIGTERM))
    assert "draining" in log


def test_a_request_longer_than_the_drain_delay_is_finished(serve):
    server = serve(max_pixels=10_000_000).wait_ready()
    content = encoded(noise(1500, 1500), "JPEG")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, server, content)
        time.sleep(0.4)
        assert not answer.done()
        server.process.terminate()
        assert answer.result()[0] == 200
    assert server.outcome()[0] == 0


def children(pid):
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def serving_children(pid):
    lines = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in children(pid)}
    return [child for child, line in lines.items() if b"spawn_main" in line]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_a_killed_worker_is_replaced_and_the_others_go_on(serve):
    server = serve(workers=2).wait_ready()
    until = time.monotonic() + 60
    while len(serving_children(server.process.pid)) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    before = set(serving_children(server.process.pid))
    victim = sorted(before)[0]
    os.kill(victim, signal.SIGKILL)
    content, answers = encoded(noise(40, 40)), []
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            answers.append(post(server, content)[0])
        except (urllib.error.URLError, ConnectionError):
            answers.append("cut")  # it was in the backlog of the one that was killed
        if server.log().count('"message": "ready"') == 3:
            break
        time.sleep(0.05)
    now = serving_children(server.process.pid)
    assert len(now) == 2
    assert victim not in now
    assert answers.count("cut") <= 2
    assert set(answers) - {"cut"} == {200}  # above all no 503 from the one that was still loading
    server.end()


# Rude clients


@pytest.fixture(scope="module")
def rude(settings_for):
    changes = {"upload_timeout_s": 0.5, "max_body_bytes": 100_000, "request_timeout_s": 30}
    with running(settings_for(**changes)) as client:
        yield client


def talk(client, *pieces, pause_s=0.0, read=True):
    """Sends bytes on a bare connection; the status line of the answer, or what was read."""
    host, port = client.base_url.host, client.base_url.port
    with socket.create_connection((host, port), timeout=20) as connection:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(pause_s)
        answer = b""
        while read and b"\r\n\r\n" not in answer:
            chunk = connection.recv(65536)
            if not chunk:
                break
            answer += chunk
    return answer.split(b"\r\n")[0]


def head(length, content_type="image/png"):
    lines = ["POST /deblur?mode=whole HTTP/1.1", "Host: x", f"Content-Type: {content_type}"]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


def inside(client):
    admission = client.app.state.service.admission
    return admission.requests, admission.bytes, admission.pixels


def wait_empty(client):
    until = time.monotonic() + 20
    while inside(client) != (0, 0, 0) and time.monotonic() < until:
        time.sleep(0.02)
    assert inside(client) == (0, 0, 0)


def test_a_slow_upload_is_cut_off(rude):
    assert b" 408 " in talk(rude, head(1000), b"x", b"x", pause_s=0.4)
    wait_empty(rude)


def test_a_giant_declared_size_is_refused_before_it_comes(rude):
    assert b" 413 " in talk(rude, head(10**12))
    wait_empty(rude)


def test_a_413_reaches_a_client_that_sends_it_all_anyway(rude):
    assert b" 413 " in talk(rude, head(20_000_000), b"x" * 20_000_000)


def test_not_http_and_half_a_request(rude):
    assert talk(rude, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n").startswith(b"HTTP/1.1 400")
    talk(rude, head(1000), b"x" * 10, read=False)
    wait_empty(rude)
    assert rude.get("/healthz").status_code == 200


def clients_gone(client):
    found = re.search(r'deblur_rejected_total\{reason="client-gone"\} ([0-9.]+)', client.get("/metrics").text)
    return float(found[1]) if found else 0.0


def test_a_client_that_leaves_frees_its_place_and_is_counted(rude):
    content = encoded(noise(1000, 1000), "JPEG", quality=20)
    assert len(content) < 100_000
    before = clients_gone(rude)  # tests before this one may have left, too
    for _ in range(3):
        talk(rude, head(len(content), "image/jpeg"), content, pause_s=0.05, read=False)
    wait_empty(rude)
    until = time.monotonic() + 10  # the place is free before the line is written
    while clients_gone(rude) == before and time.monotonic() < until:
        time.sleep(0.02)
    assert clients_gone(rude) > before  # one may have been answered before it left
    text = rude.get("/metrics").text
    assert 'deblur_requests_total{code="499",method="POST",route="/deblur"}' in text
    assert 'code="500"' not in text
    assert rude.app.state.service.fleet.waiting() == 0


def test_a_deadline_gives_504_and_frees_the_place(settings_for):
    with running(settings_for(request_timeout_s=0.05)) as client:
        reply = client.post(
            "/deblur?mode=whole", content=encoded(noise(1500, 1500), "JPEG"), headers={"Content-Type": "image/jpeg"}
        )
        assert reply.status_code == 504
        assert reply.json()["code"] == "deadline"
        wait_empty(client)
        assert client.get("/readyz").status_code == 200


def test_a_reader_that_does_not_read_is_cut_off(settings_for):
    with running(settings_for(download_timeout_s=0.5)) as client:
        content = encoded(noise(2000, 2000, seed=5))
        request = head(len(content)).replace(b"mode=whole", b"mode=faces&format=bmp")
        host, port = client.base_url.host, client.base_url.port
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((host, port))
            connection.sendall(request + content)
            until = time.monotonic() + 20
            while inside(client)[0] == 0 and time.monotonic() < until:
                time.sleep(0.01)
            wait_empty(client)


def test_log_lines_are_json_with_the_request_id_and_no_content(serve):
    server = serve().wait_ready()
    content = encoded(noise(40, 40))
    post(server, content, **{"X-Request-ID": "find-me"})
    _, log = server.end()
    lines = [json.loads(line) for line in log.splitlines()]
    (line,) = [line for line in lines if line.get("request_id") == "find-me" and line["message"] == "request"]
    assert line["status"] == 200
    assert line["pixels"] == 1600
    assert line["bytes_in"] == len(content)
    assert line["faces_before"] == 0
    assert set(line["stages_ms"]) >= {"decode", "infer", "encode"}
    assert not any(line.get("path") == "/readyz" and line["status"] == 200 for line in lines)
