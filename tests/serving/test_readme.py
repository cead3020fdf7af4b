"""The examples in the service's README, run as they stand."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.support import encoded, noise, opened

README = (Path(__file__).parents[2] / "serving" / "README.md").read_text(encoding="utf-8")
HOST = "http://127.0.0.1:8000"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "blurred.jpg").write_bytes(encoded(noise(80, 60), "JPEG"))
    return tmp_path


def run(command, folder):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_line(client, folder):
    (line,) = re.findall(r"^curl .*", README, re.M)
    done = run(shlex.split(line.replace(HOST, str(client.base_url).rstrip("/"))), folder)
    assert done.returncode == 0, done.stderr
    picture = opened((folder / "restored.png").read_bytes())
    assert (picture.format, picture.size) == ("PNG", (80, 60))


def python_example(client):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    return code.replace(HOST, str(client.base_url).rstrip("/"))


def test_the_python_client(client, folder):
    done = run([sys.executable, "-c", python_example(client)], folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "faces: 0 -> 0"
    assert opened((folder / "restored.png").read_bytes()).size == (80, 60)


def test_the_python_client_waits_while_the_service_is_busy(client, folder):
    admission = client.app.state.service.admission
    admission.draining = True
    process = subprocess.Popen([sys.executable, "-c", python_example(client)], cwd=folder)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.5)
    finally:
        admission.draining = False
    assert process.wait(30) == 0


def test_the_python_client_tells_a_refusal(client, folder):
    (folder / "blurred.jpg").write_bytes(b"text")
    done = run([sys.executable, "-c", python_example(client)], folder)
    assert done.returncode == 1
    assert "not a picture" in done.stderr


def test_every_problem_code_is_documented():
    from serving.errors import PROBLEMS

    for code, (status, _) in PROBLEMS.items():
        (row,) = [line for line in README.splitlines() if re.match(r"\| \d", line) and f"`{code}`" in line]
        assert str(status) in row.split("|")[1]
