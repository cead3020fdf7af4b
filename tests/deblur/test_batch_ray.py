"""The Ray engine gives what a run on this machine gives."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data

import deblur
from deblur.batch import Options, Settings, run
from deblur.cli import main
from deblur.generator import build, gated
from deblur.images import decode
from deblur.weights import save_weights

ray = pytest.importorskip("ray")
pytest.importorskip("pyarrow")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray warns of many things that are not ours


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    generator = build(gated(widths=(4, 8), down=(1, 1), up=(1,)))
    for parameter in generator.parameters():
        if not parameter.abs().sum():
            torch.nn.init.normal_(parameter, std=0.01)
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_weights(generator, path, {"version": "test"})
    return str(path)


@pytest.fixture
def folder(tmp_path):
    import cv2

    root = tmp_path / "in"
    (root / "sub").mkdir(parents=True)
    portrait = np.ascontiguousarray(cv2.filter2D(data.astronaut()[:240, 110:330], -1, np.eye(13) / 13))
    Image.fromarray(portrait).save(root / "a.jpg", quality=95)
    Image.fromarray(portrait).save(root / "a.png")
    Image.fromarray(portrait[:, ::-1]).save(root / "sub" / "名前 x.gif")
    Image.new("RGB", (40, 30), (33, 25, 23)).save(root / "sub" / "flat.png")
    (root / "bad.png").write_text("no picture")
    return root


def on_ray(source, output, weights, *more):
    return main(["restore", str(source), "-o", str(output), "--engine", "ray", "--weights", weights, "--quiet", *more])


def results(output):
    return {
        str(path.relative_to(output)): path.read_bytes()
        for path in sorted(output.rglob("*"))
        if path.is_file() and not str(path.relative_to(output)).startswith("deblur-")
    }


def local(folder, output, weights):
    restorer = deblur.load(weights)
    return run(Options(inputs=(folder,), settings=Settings(output=output)), lambda: restorer)


def rows(output):
    import pyarrow.parquet as parquet

    files = sorted((output / "deblur-journal").glob("rows-*.parquet"))
    return [row for file in files for row in parquet.read_table(file).to_pylist()]


def test_results_equal_those_of_one_machine_and_a_second_run_does_nothing(cluster, folder, tmp_path, weights, capsys):
    summary = local(folder, tmp_path / "local", weights)
    assert summary.restored >= 1
    assert on_ray(folder, tmp_path / "ray", weights) == 1
    assert results(tmp_path / "ray") == results(tmp_path / "local")
    failed = [row for row in rows(tmp_path / "ray") if row["status"] == "failed"]
    assert [Path(row["source"]).name for row in failed] == ["bad.png"]
    assert "bad.png" in capsys.readouterr().err
    count = len(rows(tmp_path / "ray"))
    assert count == 5
    (folder / "bad.png").unlink()
    assert on_ray(folder, tmp_path / "ray", weights) == 0
    assert len(rows(tmp_path / "ray")) == count


def test_pictures_of_a_killed_actor_are_done_again(cluster, folder, tmp_path, weights, monkeypatch):
    import deblur.batch.ray_engine as engine

    flag = str(tmp_path / "died")

    class Dying(engine.Worker):
        def __call__(self, batch):
            if not os.path.exists(flag):  # noqa: PTH110
                open(flag, "w").close()  # noqa: PTH123
                os._exit(1)
            return engine.Worker.__call__(self, batch)

    monkeypatch.setattr(engine, "Worker", Dying)
    assert on_ray(folder, tmp_path / "ray", weights) == 1
    assert Path(flag).exists()
    local(folder, tmp_path / "local", weights)
    assert results(tmp_path / "ray") == results(tmp_path / "local")


def test_uris_and_shards(cluster, folder, tmp_path, weights):
    shard = tmp_path / "in.tar"
    with tarfile.open(shard, "w") as tar:
        for path in (folder / "a.png", folder / "sub/名前 x.gif", folder / "bad.png"):
            tar.add(path, arcname=path.name)
        label = tarfile.TarInfo("a.cls")
        label.size = 1
        tar.addfile(label, io.BytesIO(b"7"))
    local(folder, tmp_path / "local", weights)
    assert on_ray(shard, tmp_path / "shards", weights) == 1
    with tarfile.open(tmp_path / "shards/in.tar") as tar:
        content = {member.name: tar.extractfile(member).read() for member in tar}
    assert next(iter(content)) == "a.png"
    assert content["a.cls"] == b"7"
    assert content["bad.png"] == b"no picture"
    assert content["a.png"] == (tmp_path / "local/a.png").read_bytes()
    assert any(name.startswith("名前 x.gif") for name in content)
    assert on_ray(shard, tmp_path / "shards", weights) == 0  # done before

    assert on_ray(f"file://{folder}", f"file://{tmp_path}/uri", weights) == 1
    assert results(tmp_path / "uri") == results(tmp_path / "local")
    assert decode(tmp_path / "uri/a.jpg").format == "JPEG"


def test_uris_need_the_engine(tmp_path, weights, capsys):
    assert main(["restore", "s3://bucket/x", "-o", str(tmp_path), "--weights", weights]) == 2
    assert "--engine ray" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["名前 x.gif", "100%41#?.png"])
def test_names_that_are_no_uri_as_they_are(tmp_path, name):
    from deblur.batch.plan import Selection
    from deblur.batch.remote import ParquetJournal, UriStore, scan

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(b"content")
    options = Options(inputs=(), settings=Settings(output=tmp_path / "out"), selection=Selection())
    found = scan([f"file://{tmp_path}/in"], str(tmp_path / "out"), options, ParquetJournal(str(tmp_path / "out")))
    assert [job.output for job in found.jobs] == [name]
    content, _ = UriStore(f"file://{tmp_path}").read(found.jobs[0].source, Settings(output=tmp_path).limits)
    assert content == b"content"
