"""The image and what stands around it. No container engine is needed: the steps are run and the paths are checked."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.serving.support import encoded, noise

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def instructions():
    """(instruction, rest) of every line of the Dockerfile, continuation lines joined."""
    joined = re.sub(r"\\\n\s*", " ", DOCKERFILE)
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return [line.split(maxsplit=1) for line in lines]


def copied():
    """Paths that the image takes from this folder."""
    paths = []
    for instruction, rest in instructions():
        if instruction == "COPY" and "--from" not in rest:
            paths += rest.split()[:-1]
    return paths


def ignored(path):
    """Whether .dockerignore leaves a path out."""
    left_out = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.lstrip("!").rstrip("/")
        if not pattern or line.startswith("#"):
            continue
        parts = [path, *map(str, Path(path).parents)]
        if any(fnmatch.fnmatch(part, pattern) for part in parts) or pattern == "*":
            left_out = not line.startswith("!")
    return left_out


def test_every_path_that_is_copied_is_there_and_not_ignored():
    assert {"deblur", "serving", "pyproject.toml", "deploy/install.sh"} <= {p.removeprefix("./") for p in copied()}
    for path in copied():
        assert (ROOT / path).exists(), path
        assert not ignored(path), path


def test_the_context_holds_nothing_else():
    wanted = set(copied())
    for entry in ROOT.iterdir():
        if entry.name not in wanted and entry.name != "deploy":
            assert ignored(entry.name), entry.name
    assert ignored("deploy/grafana")


def test_the_stages_are_whole():
    names = [rest.split(" AS ")[1] for instruction, rest in instructions() if instruction == "FROM"]
    assert names[-1] == "cpu"  # the default target
    assert "cuda" in names
    sources = re.findall(r"--from=(\S+)", DOCKERFILE)
    assert set(sources) <= set(names)
    text = dict(reversed([(i, r) for i, r in instructions() if i in ("USER", "HEALTHCHECK", "ENTRYPOINT")]))
    assert text["USER"] not in ("root", "0")
    assert "serving.probe" in text["HEALTHCHECK"]
    assert json.loads(text["ENTRYPOINT"]) == ["python", "-m", "serving"]


def test_dependencies_come_before_the_code():
    """So that a change of the code rebuilds the last, small layer alone."""
    for stage in DOCKERFILE.split("\nFROM ")[2:4]:
        assert stage.index("install.sh /venv dependencies") < stage.index("COPY deblur") < stage.index("/venv package")


def test_compose_names_what_is_there():
    yaml = pytest.importorskip("yaml")
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    services = compose["services"]
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (ROOT / source).exists(), source
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    targets = {service["build"]["target"] for service in services.values() if "build" in service}
    assert targets == {"cpu", "cuda"}
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    host, port = scraped["scrape_configs"][0]["static_configs"][0]["targets"][0].split(":")
    assert host in services["deblur"]["networks"]["default"]["aliases"]
    assert services["deblur"]["ports"][0].endswith(f":{port}")
    for name in scraped["rule_files"]:
        assert (ROOT / "deploy/prometheus" / name).exists()


def test_dashboard_and_alerts_use_metrics_and_labels_that_exist(client):
    client.post("/deblur?mode=whole", content=encoded(noise()), headers={"Content-Type": "image/png"})
    exposed = client.get("/metrics").text
    known = set(re.findall(r"^(deblur_\w+)", exposed, re.M)) | set(re.findall(r"^# TYPE (deblur_\w+)", exposed, re.M))
    labels = set(re.findall(r"[{,](\w+)=", exposed)) | {"le", "reason", "what"}
    board = json.loads((ROOT / "deploy/grafana/dashboards/deblur.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += re.findall(r"expr: (.*)", (ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))
    assert len(queries) > 20
    for query in queries:
        names = set(re.findall(r"\bdeblur_\w+", query))
        assert names, query
        assert names <= known | {"deblur_rejected_total", "deblur_kept_original_total"}, query
        used = set(re.findall(r"(\w+)=\"", query)) | {
            w for by in re.findall(r"by \(([^)]*)\)", query) for w in by.split(", ")
        }
        assert used <= labels, query


def test_requirements_are_those_of_the_project():
    def printed(step):
        command = [sys.executable, ROOT / "deploy/requirements.py", ROOT / "pyproject.toml", step]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")

    assert [line.split(">")[0] for line in printed("torch") if line] == ["torch", "torchvision"]
    rest = " ".join(printed("dependencies"))
    assert "facenet-pytorch" in rest
    assert "fastapi" in rest
    assert "torchvision" not in rest


@pytest.mark.slow
@pytest.mark.network
def test_the_install_steps_make_a_service_that_runs_without_the_checkout(tmp_path, serve):
    """The image's steps in a clean environment; torch and other large wheels come from this one."""
    context = tmp_path / "src"
    context.mkdir()
    for path in copied():
        source, target = ROOT / path, context / Path(path).name
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, ignore=skip, dirs_exist_ok=True) if source.is_dir() else shutil.copy(
            source, target
        )
    shutil.move(context / "serving", tmp_path / "serving")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    ask = [venv / "bin/python", "-c", "import site; print(site.getsitepackages()[0])"]
    site = Path(subprocess.check_output(ask, text=True).strip())
    (site / "outer.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    steps = re.findall(r"sh install\.sh /venv (\w+)", DOCKERFILE.split("AS build-cpu")[1].split("\nFROM")[0])
    assert steps == ["torch", "dependencies", "package"]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TORCH_INDEX")}
    for step in steps:
        done = subprocess.run(
            ["sh", "install.sh", venv, step], cwd=context, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    check = (
        "import deblur, deblur.weights, serving; print(deblur.__file__); print(deblur.weights.load_weights().sha256)"
    )
    found = subprocess.run(
        [venv / "bin/python", "-c", check], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert str(venv) in found.stdout.splitlines()[0]  # the wheel, weights inside
    assert not (site / "serving").exists()  # which ships the library alone
    server = serve(["-m", "serving"], weights="default", python=venv / "bin/python", cwd=tmp_path).wait_ready()
    probe = {**environment, "DEBLUR_PORT": str(server.port)}
    for arguments, status in (([], 0), (["--ready"], 0)):
        command = [venv / "bin/python", "-m", "serving.probe", *arguments]
        assert subprocess.run(command, cwd=tmp_path, env=probe).returncode == status
    assert server.end()[0] == 0
    assert subprocess.run([venv / "bin/python", "-m", "serving.probe"], cwd=tmp_path, env=probe).returncode == 1
