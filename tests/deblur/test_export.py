import subprocess
import sys

import numpy as np
import pytest
import torch

import deblur
from deblur.cli import main
from deblur.errors import OptionError, WeightsError
from deblur.generator import GeneratorConfig, build, gated, resnet
from deblur.images import Picture
from deblur.weights import load_weights, save_weights

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

from deblur.onnx_backend import OnnxGenerator, restore_whole  # noqa: E402
from deblur.openvino_backend import OpenVinoGenerator  # noqa: E402

CONFIGS = {"gated": gated(stem=4, widths=[8, 16], down=[1, 1], up=[1]), "resnet": resnet(width=4, blocks=1)}


def weights_file(folder, config: GeneratorConfig):
    torch.manual_seed(0)
    generator = build(config).eval()
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    save_weights(generator, folder / "tiny.safetensors", {"training_data": ["none"], "version": "7"})
    return folder / "tiny.safetensors"


@pytest.fixture(scope="module", params=list(CONFIGS))
def exported(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    source = weights_file(folder, CONFIGS[request.param])
    assert main(["export", "--onnx", str(folder / "tiny.onnx"), "--weights", str(source)]) == 0
    return source, folder / "tiny.onnx"


@pytest.mark.parametrize("size", [(1, 1), (7, 40), (33, 47), (64, 64), (131, 257)])
def test_the_exported_generator_equals_pytorch_at_any_size_and_count(exported, size):
    source, path = exported
    given = torch.rand(2, 3, *size)
    with torch.inference_mode():
        expected = load_weights(source).generator(given)
    np.testing.assert_allclose(OnnxGenerator(path)(given.numpy()), expected.numpy(), atol=0.5 / 255)


def test_the_file_says_its_opset_and_where_it_comes_from(exported):
    source, path = exported
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [o.version for o in model.opset_import if o.domain == ""] == [20]
    metadata = OnnxGenerator(path).metadata
    assert metadata["weights_sha256"] == load_weights(source).sha256
    assert metadata["training_data"] == ["none"]


def test_a_whole_picture_equals_pytorch_within_a_level(exported, monkeypatch):
    source, path = exported
    # Instance norm averages over the tile, so only the gated generator's tiles equal the whole.
    monkeypatch.setattr("deblur.tiling.TILE_PX", 96 if "gated" in str(path) else 1024)
    picture = np.random.default_rng(0).integers(0, 256, (150, 203, 3)).astype(np.uint8)
    ours = restore_whole(Picture(levels=picture), OnnxGenerator(path)).levels
    torches = deblur.load(source, device="cpu", precision="fp32").restore(picture, mode="whole").image
    through = deblur.load(path, device="cpu").restore(picture, mode="whole").image
    for restored in (ours, through):
        assert np.abs(restored.astype(int) - torches).max() <= 1
    assert not np.array_equal(ours, picture)


def test_the_backend_works_where_torch_cannot_be_imported(exported, tmp_path):
    from PIL import Image

    _, path = exported
    Image.fromarray(np.full((40, 50, 3), 99, np.uint8)).save(tmp_path / "photo.png")
    code = "import sys; sys.modules['torch'] = None; from deblur.onnx_backend import main; sys.exit(main(sys.argv[1:]))"
    words = [str(path), str(tmp_path / "photo.png"), "-o", str(tmp_path / "out.png")]
    assert subprocess.run([sys.executable, "-c", code, *words], check=False).returncode == 0
    with Image.open(tmp_path / "out.png") as restored:
        assert restored.size == (50, 40)
    assert subprocess.run([sys.executable, "-c", code, *words], check=False, capture_output=True).returncode == 3


def test_a_folder_that_cannot_be_made_is_named_before_anything_is_exported(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["export", "--onnx", str(tmp_path / "file" / "new" / "x.onnx")]) == 3
    assert "file/new: cannot be made" in capsys.readouterr().err


def test_what_is_there_is_not_replaced_unless_asked(exported, capsys):
    source, path = exported
    before = path.read_bytes()
    assert main(["export", "--onnx", str(path), "--weights", str(source)]) == 3
    assert "--overwrite" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert main(["export", "--onnx", "out.txt"]) == 2


@pytest.mark.parametrize("content", [None, b"", b"<html>", b"\x08\x01nonsense"])
def test_a_file_that_is_no_generator_is_named(tmp_path, content):
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"bad\.onnx"):
        load_weights(path)


def test_restore_takes_the_exported_file_and_refuses_another_for_that_backend(exported, tmp_path, capsys):
    from PIL import Image

    source, path = exported
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    words = ["restore", str(tmp_path / "photo.png"), "--mode", "whole", "--quiet", "--device", "cpu", "-o"]
    for weights, name in ((path, "onnx.png"), (source, "torch.png")):
        more = [str(tmp_path / name), "--weights", str(weights), "--precision", "fp32", "--backend", name[:-4]]
        assert main([*words, *more]) == 0
    onnx_made, torch_made = (np.asarray(Image.open(tmp_path / n).convert("RGB")) for n in ("onnx.png", "torch.png"))
    assert np.abs(onnx_made.astype(int) - torch_made).max() <= 1
    assert not np.array_equal(onnx_made, pixels)
    assert main([*words, str(tmp_path / "other.png"), "--backend", "onnx"]) == 2
    assert "deblur export" in capsys.readouterr().err


@pytest.mark.parametrize("size", [(1, 1), (7, 40), (33, 47), (131, 257)])
def test_openvino_equals_pytorch_at_any_size_and_count(exported, size):
    pytest.importorskip("openvino")
    source, path = exported
    generator = OpenVinoGenerator(path, threads=1)
    for count in (2, 3):
        given = torch.rand(count, 3, *size)
        with torch.inference_mode():
            expected = load_weights(source).generator(given)
        np.testing.assert_allclose(generator(given.numpy()), expected.numpy(), atol=0.5 / 255)


def test_openvino_in_bfloat16_is_within_two_levels_and_never_gives_what_is_not_finite(exported, monkeypatch):
    pytest.importorskip("openvino")
    if "resnet" in str(exported):
        pytest.skip("instance norm over random weights is no measure of bfloat16")
    source, path = exported
    generator = OpenVinoGenerator(path, threads=1, precision="bf16")
    given = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        expected = load_weights(source).generator(given).numpy()
    assert np.abs(generator(given.numpy()) - expected).max() < 2 / 255
    plain = generator._run
    monkeypatch.setattr(
        generator, "_run", lambda x, precision: plain(x, precision) * (np.nan if precision == "bf16" else 1)
    )
    np.testing.assert_allclose(generator(given.numpy()), expected, atol=0.5 / 255)


def test_openvino_keeps_an_answer_and_only_so_many_sizes(exported, monkeypatch):
    pytest.importorskip("openvino")
    monkeypatch.setattr("deblur.openvino_backend.SIZES_KEPT", 2)
    generator = OpenVinoGenerator(exported[1], threads=1)
    given = [np.random.default_rng(i).random((1, 3, 32, 32), np.float32) for i in range(2)]
    first = generator(given[0])
    kept = first.copy()
    assert not np.array_equal(generator(given[1]), kept)
    assert np.array_equal(first, kept)
    for side in (48, 64):
        generator(np.zeros((1, 3, side, side), np.float32))
    assert [shape[2] for shape, _ in generator._compiled] == [48, 64]


@pytest.mark.parametrize("content", [None, b"", b"<html>", b"\x08\x01nonsense"])
def test_openvino_names_a_file_that_is_no_generator(tmp_path, content):
    pytest.importorskip("openvino")
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"bad\.onnx"):
        deblur.load(path, device="cpu", backend="openvino")


def test_restore_through_openvino_equals_pytorch_within_a_level(exported):
    pytest.importorskip("openvino")
    source, path = exported
    picture = np.random.default_rng(0).integers(0, 256, (48, 64, 3)).astype(np.uint8)
    torches, openvinos = (
        deblur.load(file, device="cpu", precision="fp32", backend=backend).restore(picture, mode="whole").image
        for file, backend in ((source, "torch"), (path, "openvino"))
    )
    assert np.abs(torches.astype(int) - openvinos).max() <= 1
    assert not np.array_equal(openvinos, picture)


@pytest.mark.parametrize(("package", "backend"), [("onnxruntime", "onnx"), ("openvino", "openvino")])
def test_a_backend_that_is_not_installed_says_what_to_install(
    exported, monkeypatch, package, backend, tmp_path, capsys
):
    from PIL import Image

    monkeypatch.setitem(sys.modules, package, None)
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / "photo.png")
    words = ["restore", str(tmp_path / "photo.png"), "-o", str(tmp_path / "out.png"), "--backend", backend]
    assert main([*words, "--weights", str(exported[1])]) == 2
    assert f"face-deblur[{backend}]" in capsys.readouterr().err


@pytest.mark.parametrize(("backend", "weights"), [("magic", "default"), ("openvino", "default"), ("compile", "a.onnx")])
def test_a_backend_that_cannot_run_the_weights_is_refused(backend, weights):
    with pytest.raises(OptionError, match=backend):
        deblur.load(weights, backend=backend)
