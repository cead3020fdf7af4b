"""`python -m serving` and `python -m serving.benchmark` as programs: interruptions, backends that are not there."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.serving.support import ROOT, encoded, free_port, noise

needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")


def environment(**changes):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DEBLUR_", "OTEL_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **changes}


def wait_until(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.005)


def has_loaded(process, library):
    return library in Path(f"/proc/{process.pid}/maps").read_text()


@needs_proc
@pytest.mark.parametrize(
    ("library", "workers"), [("pydantic_core", "1"), ("libtorch_cpu", "1"), ("pydantic_core", "2")]
)
def test_ctrl_c_while_it_is_being_imported_is_quiet(library, workers):
    variables = environment(DEBLUR_PORT="0", DEBLUR_WORKERS=workers)
    with subprocess.Popen(
        [sys.executable, "-m", "serving"], env=variables, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: has_loaded(process, library))
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error == ""


def test_ctrl_c_ends_a_running_service_gracefully(serve):
    server = serve().wait_ready()
    server.process.send_signal(signal.SIGINT)
    status, log = server.outcome()
    assert status == 0
    assert "draining" in log
    assert "Traceback" not in log


def test_a_backend_whose_extra_is_not_installed_is_named_with_its_remedy(tmp_path):
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('not here')\n", encoding="utf-8")
    (tmp_path / "face.onnx").write_bytes(b"never read")
    variables = environment(DEBLUR_PORT="0", DEBLUR_BACKEND="onnx", DEBLUR_WEIGHTS=str(tmp_path / "face.onnx"))
    variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-m", "serving"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3
    assert "face-deblur[onnx]" in done.stderr
    assert "Traceback" not in done.stderr


def descendants(pid):
    try:
        children = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    except OSError:
        return {}


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("stage", [b"--bare-loop", b"serving\0"])
def test_a_benchmark_that_is_told_to_end_leaves_nothing_running(tmp_path, weights, number, stage):
    picture = tmp_path / "picture.png"
    picture.write_bytes(encoded(noise(32, 32)))
    options = ["--mode", "whole", "--count", "1", "--rounds", "1", "--port", str(free_port())]
    command = [sys.executable, "-m", "serving.benchmark", str(picture), *options]
    variables = environment(DEBLUR_WEIGHTS=str(weights))
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:

        def started():
            assert process.poll() is None, "it ended too early"
            return [child for child, line in descendants(process.pid).items() if line.endswith(stage) or stage in line]

        wait_until(started)
        (child,) = started()
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode != 0
    wait_until(lambda: not Path(f"/proc/{child}").exists(), 5)
