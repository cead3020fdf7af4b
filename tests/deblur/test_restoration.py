"""The restorer on real pictures with the bundled weights, and its promises with a generator that does as told."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import deblur
from deblur.errors import ImageError, OptionError, OutOfMemory
from deblur.generator import build, gated
from deblur.images import decode
from deblur.restoration import Restorer
from deblur.weights import Weights

SAMPLES = Path(__file__).parents[2] / "samples"


class Spoiler(nn.Module):
    """A real module that returns its input changed by a constant: lets a test provoke each kind of harm."""

    def __init__(self, shift: float = 0.0, noise: float = 0.0):
        super().__init__()
        self.shift, self.noise, self.sizes = shift, noise, list[tuple[int, ...]]()
        self.room = 10**9

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(tuple(x.shape))
        if x.shape[0] > self.room:
            raise RuntimeError("out of memory")
        rng = torch.Generator().manual_seed(0)
        return x + self.shift + self.noise * torch.randn(x.shape, generator=rng)


def restorer_with(generator: nn.Module) -> Restorer:
    weights = Weights(generator=generator.eval(), name="test", path=Path("test"), sha256="0", metadata={})
    return Restorer(weights, device="cpu", precision="fp32")


@pytest.fixture(scope="module")
def bundled() -> Restorer:
    return deblur.load(device="cpu")


@pytest.fixture(scope="module")
def group() -> np.ndarray:
    return decode(SAMPLES / "blurred" / "group.jpg").levels


def test_a_group_photo_gets_its_faces_restored_and_the_rest_stays_equal(bundled, group):
    result = bundled.restore(group)
    assert result.mode == "faces"
    assert sum(f.restored for f in result.faces) >= 2
    assert len(result.faces_after) == len(result.faces_before)
    changed = (result.image != group).any(axis=2)
    assert changed.any()
    near = np.zeros(changed.shape, bool)
    for face in result.faces:
        x0, y0, x1, y1 = (int(v) for v in face.before.box)
        reach = 2 * max(x1 - x0, y1 - y0)
        near[max(0, y0 - reach) : y1 + reach, max(0, x0 - reach) : x1 + reach] = True
    assert not changed[~near].any()
    assert not changed[:, :10].any()


def test_a_sharp_picture_comes_back_as_it_was_and_says_so(bundled):
    picture = decode(SAMPLES / "sharp" / "astronaut.jpg").levels
    result = bundled.restore(picture)
    assert np.array_equal(result.image, picture)
    assert [f.kept_original for f in result.faces] == ["sharp"]
    assert not result.changed


def test_a_picture_without_a_face_comes_back_and_counts_none(bundled):
    picture = decode(SAMPLES / "blurred" / "coffee.jpg").levels
    result = bundled.restore(picture)
    assert np.array_equal(result.image, picture)
    assert result.report["faces_before"] == result.report["faces_after"] == 0
    assert "no face" in result.kept_original


@pytest.mark.parametrize("mode", ["auto", "faces", "whole"])
@pytest.mark.parametrize("size", [(1, 1), (8, 8), (19, 19), (12, 300), (31, 33)])
def test_small_and_odd_pictures_come_back_at_their_size(bundled, mode, size):
    picture = np.full((*size, 3), 99, np.uint8)
    assert bundled.restore(picture, mode=mode).image.shape == picture.shape


@pytest.mark.parametrize("size", [(64, 64), (131, 257), (540, 960)])
def test_a_flat_picture_stays_flat(bundled, size):
    picture = np.full((*size, 3), (33, 25, 23), np.uint8)
    out = bundled.restore(picture, mode="whole").image.astype(int)
    assert np.abs(out - picture).max() <= 3


def test_the_same_kind_comes_back(bundled, tmp_path):
    path = SAMPLES / "blurred" / "crop.png"
    content = path.read_bytes()
    assert isinstance(bundled.restore(content).image, bytes)
    assert isinstance(bundled.restore(np.asarray(Image.open(path))).image, np.ndarray)
    assert isinstance(bundled.restore(Image.open(path)).image, Image.Image)
    assert isinstance(bundled.restore(str(path)).image, Image.Image)
    assert Image.open(io.BytesIO(bundled.restore(content).image)).format == "PNG"


def test_steps_one_by_one_equal_restore(bundled, group):
    picture = decode(group)
    plan = bundled.plan(picture)
    result = bundled.finish(plan, bundled.generate(plan.inputs), group)
    assert np.array_equal(result.image, bundled.restore(group).image)


@pytest.mark.parametrize(
    ("spoiler", "reason"),
    [(Spoiler(noise=0.6), "confidence|no longer|landmarks"), (Spoiler(shift=0.1), "colour")],
    ids=["noise", "tint"],
)
def test_a_face_made_worse_is_left_as_it_was(group, spoiler, reason):
    result = restorer_with(spoiler).restore(group)
    assert spoiler.sizes
    assert np.array_equal(result.image, group)
    for face in result.faces:
        assert face.kept_original
    assert any(re.search(reason, f.kept_original) for f in result.faces)
    assert result.report["mode"] == "none"


def test_faces_of_one_size_share_a_batch():
    spoiler = Spoiler()
    outputs = restorer_with(spoiler).generate([torch.rand(3, 64, 64) for _ in range(3)] + [torch.rand(3, 96, 96)])
    assert sorted(spoiler.sizes) == [(1, 3, 96, 96), (3, 3, 64, 64)]
    assert [tuple(o.shape) for o in outputs] == [(3, 64, 64)] * 3 + [(3, 96, 96)]


def test_out_of_memory_is_halved_once_then_an_error():
    spoiler = Spoiler()
    restorer = restorer_with(spoiler)
    inputs = [torch.rand(3, 64, 64) for _ in range(4)]
    spoiler.room = 2
    outputs = restorer.generate(inputs)
    assert [s[0] for s in spoiler.sizes] == [4, 2, 2]
    torch.testing.assert_close(torch.stack(outputs), torch.stack(inputs))
    spoiler.room = 1
    with pytest.raises(OutOfMemory):
        restorer.generate(inputs)
    spoiler.room = 4
    assert len(restorer.generate(inputs)) == 4  # healthy again


def test_a_generator_that_fails_in_low_precision_is_asked_again_in_float32():
    class Overflows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if not torch.is_autocast_enabled("cpu") else x * float("nan")

    weights = Weights(generator=Overflows(), name="t", path=Path("t"), sha256="0", metadata={})
    restorer = Restorer(weights, device="cpu", precision="bf16")
    given = torch.rand(3, 32, 32)
    torch.testing.assert_close(restorer.generate([given])[0], given)


def test_bfloat16_is_close_to_float32(bundled, group):
    exact, fast = (deblur.load(device="cpu", precision=p) for p in ("fp32", "bf16"))
    inputs = exact.plan(decode(group)).inputs
    for a, b in zip(exact.generate(inputs), fast.generate(inputs), strict=True):
        mse = float(((a.clamp(0, 1) - b.clamp(0, 1)) ** 2).mean())
        assert -10 * np.log10(mse) > 45


def test_tiles_equal_the_whole(monkeypatch):
    torch.manual_seed(0)
    generator = build(gated(widths=[4, 8], down=[1, 1], up=[1]))
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    restorer = restorer_with(generator)
    picture = np.random.default_rng(0).integers(0, 256, (700, 800, 3)).astype(np.uint8)
    monkeypatch.setattr("deblur.tiling.TILE_PX", 256)
    tiled = restorer.restore(picture, mode="whole").image
    monkeypatch.setattr("deblur.tiling.TILE_PX", 10_000)
    whole = restorer.restore(picture, mode="whole").image
    assert np.abs(tiled.astype(int) - whole).max() <= 1


def test_sixteen_bits_and_grey_come_back_as_such(bundled):
    crop = decode(SAMPLES / "blurred" / "crop.png").levels
    deep = crop.astype(np.uint16) * 257
    assert bundled.restore(deep, mode="whole").image.dtype == np.uint16
    grey = Image.fromarray(crop).convert("L")
    assert bundled.restore(grey, mode="whole").image.mode == "L"


def test_wrong_arguments_are_named(bundled, tmp_path):
    with pytest.raises(OptionError, match="auto, faces, whole"):
        bundled.restore(np.zeros((8, 8, 3), np.uint8), mode="all")
    with pytest.raises(OptionError, match="precision"):
        deblur.load(precision="int8")
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(ImageError, match=r"text\.png"):
        bundled.restore(tmp_path / "text.png")
