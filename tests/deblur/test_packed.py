"""The generator through oneDNN's own convolutions is the same function, and keeps only so many orders of weights."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from benchmarks.generator import sample
from deblur.generator import build, gated
from deblur.inference import Runner
from deblur.packed import LARGEST_PX, Convolution, PackedUNet, runs_here
from deblur.weights import load_weights

LEVEL = 1 / 255
pytestmark = pytest.mark.skipif(not runs_here(torch.float32), reason="needs an x86-64 CPU with AVX2")
needs_bf16 = pytest.mark.skipif(not runs_here(torch.bfloat16), reason="needs a CPU that multiplies bfloat16")


@pytest.fixture(params=[4, 2])
def generator(request) -> nn.Module:
    torch.manual_seed(0)
    made = build(gated(stem=request.param, widths=[8, 16, 24], down=[1, 2, 1], up=[1, 1])).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return made


@pytest.mark.parametrize("shape", [(1, 3, 48, 48), (3, 3, 37, 53), (2, 3, 16, 80), (1, 3, 1, 1), (1, 3, 5, 130)])
def test_any_size_is_answered_alike_before_and_after_its_weights_are_ordered(generator, shape):
    packed, given = PackedUNet(generator, torch.float32), torch.rand(shape)
    kept = given.clone()
    with torch.inference_mode():
        expected = generator(given)
        for _ in range(3):
            torch.testing.assert_close(packed(given), expected, rtol=0, atol=1e-5)
    assert torch.equal(given, kept)


def test_weights_are_ordered_for_a_size_that_comes_again_and_old_sizes_are_dropped(generator):
    packed = PackedUNet(generator, torch.float32, kept=2)
    sides = lambda: {size[1] for size, layers in packed._sizes.items() if layers}  # noqa: E731
    least = generator.config.multiple
    for side in (least, 2 * least):
        packed(torch.rand(1, 3, side, side))
    assert not sides()
    for _ in range(2):
        packed(torch.rand(1, 3, least, least))
    assert sides() == {least // generator.config.stem}
    for side in (2 * least, 3 * least):
        for _ in range(2):
            packed(torch.rand(1, 3, side, side))
    assert len(packed._sizes) == 2
    assert sides() == {2 * least // generator.config.stem, 3 * least // generator.config.stem}


def test_orders_are_shared_by_batches_and_freed_with_the_last_that_uses_them(generator):
    packed = PackedUNet(generator, torch.float32, kept=2)
    layers = sum(isinstance(module, nn.Conv2d) for module in generator.modules())
    for count in (1, 1, 2, 2):
        packed(torch.rand(count, 3, 64, 64))
    assert layers <= len(packed._shared) < 2 * layers
    for side in (32, 32, 96, 96):
        packed(torch.rand(1, 3, side, side))
    assert {size[1] for size in packed._sizes} == {32 // generator.config.stem, 96 // generator.config.stem}
    assert len(packed._shared) <= 2 * layers  # those for 64 px are gone


def test_a_large_input_keeps_no_weights(generator):
    packed, side = PackedUNet(generator, torch.float32), int(LARGEST_PX**0.5) + generator.config.multiple
    for _ in range(2):
        packed(torch.rand(1, 3, side, side))
    assert not packed._sizes


def test_threads_may_share_it(generator):
    packed = PackedUNet(generator, torch.float32, kept=1)
    given = [torch.rand(1, 3, side, side) for side in (32, 48, 64, 32, 48, 64)] * 3
    with torch.inference_mode():
        expected = [generator(x) for x in given]
    with ThreadPoolExecutor(4) as pool:
        for answer, wanted in zip(pool.map(packed, given), expected, strict=True):
            torch.testing.assert_close(answer, wanted, rtol=0, atol=1e-5)


@needs_bf16
def test_bundled_weights_are_within_a_hundredth_of_a_level_in_float32_and_a_level_in_bfloat16():
    generator, given = load_weights().generator, sample(128, 2)
    with torch.inference_mode():
        exact = generator(given)
        full, low = (PackedUNet(generator, dtype) for dtype in (torch.float32, torch.bfloat16))
        for _ in range(2):  # the second time with weights in order
            assert (full(given) - exact).abs().max() < 0.01 * LEVEL
            off = (low(given) - exact).abs()
            assert 0 < off.max() < LEVEL
            assert off.mean() < 0.1 * LEVEL


@needs_bf16
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_cpu_runs_it(generator, dtype):
    assert isinstance(Runner(generator, torch.device("cpu"), dtype)._call, PackedUNet)
    assert not isinstance(Runner(generator, torch.device("cpu"), torch.float16)._call, PackedUNet)


def test_operators_of_another_pytorch_are_done_without(generator, monkeypatch, caplog):
    def differs(*_):
        raise TypeError("_convolution_pointwise(): another signature")

    monkeypatch.setattr(Convolution, "__call__", differs)
    runner, given = Runner(generator, torch.device("cpu"), torch.float32), torch.rand(1, 3, 32, 32)
    torch.testing.assert_close(runner.launch(given)(), generator(given).detach(), rtol=0, atol=1e-5)
    assert "another signature" in caplog.text
