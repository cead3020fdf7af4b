import copy

import pytest
import torch
from torch import nn

from deblur.batching import in_batches
from deblur.errors import OptionError
from deblur.folding import folded
from deblur.generator import build, gated, resnet
from deblur.inference import Runner, SizeGraphs

CPU = torch.device("cpu")


@pytest.fixture
def generator() -> nn.Module:
    torch.manual_seed(0)
    made = build(gated(stem=4, widths=[8, 16], down=[1, 2], up=[1])).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return made


def test_folding_changes_no_answer_and_leaves_the_generator_as_it_was(generator):
    before, given = copy.deepcopy(generator.state_dict()), torch.rand(2, 3, 40, 56)
    with torch.inference_mode():
        expected = generator(given)
        torch.testing.assert_close(folded(generator, torch.float32)(given), expected, rtol=0, atol=1e-6)
    assert all(torch.equal(v, before[k]) for k, v in generator.state_dict().items())


def test_low_precision_keeps_the_picture_that_the_residual_is_added_to(generator):
    with torch.no_grad():
        generator.head.weight.zero_()
        generator.head.bias.zero_()
    given = torch.rand(1, 3, 32, 32)
    assert torch.equal(Runner(generator, CPU, torch.bfloat16).launch(given)(), given)


def test_low_precision_is_within_a_level(generator):
    given = torch.rand(2, 3, 64, 64)
    exact, fast = (Runner(generator, CPU, dtype).launch(given)() for dtype in (torch.float32, torch.bfloat16))
    assert not torch.equal(exact, fast)
    assert (exact - fast).abs().max() < 1 / 255


@pytest.mark.parametrize("config", [gated(stem=4, widths=[8], down=[1], up=[]), resnet(width=4, blocks=1)])
def test_answers_that_are_not_finite_come_from_float32(config):
    generator = build(config).eval()
    first = next(m for m in generator.modules() if isinstance(m, nn.Conv2d))
    first.weight.data *= 1e7  # float16 has no such numbers
    runner = Runner(generator, CPU, torch.float16)
    given = torch.rand(1, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(runner.launch(given)(), generator(given.contiguous(memory_format=torch.channels_last)))


def test_graphs_answer_like_the_plain_call_at_any_count(generator):
    plain, graphs = (Runner(generator, CPU, torch.float32, optimize) for optimize in ("none", "graphs"))
    for count, side in ((1, 32), (3, 32), (2, 64), (4, 32), (3, 32)):
        given = torch.rand(count, 3, side, side)
        torch.testing.assert_close(graphs.launch(given)(), plain.launch(given)(), rtol=0, atol=1e-6)


def test_an_answer_is_not_overwritten_by_the_next(generator):
    graphs = Runner(generator, CPU, torch.float32, "graphs")
    first, second = torch.rand(1, 3, 32, 32), torch.rand(1, 3, 32, 32)
    flying = graphs.launch(first), graphs.launch(second)
    with torch.inference_mode():
        for land, given in zip(flying, (first, second), strict=True):
            torch.testing.assert_close(land(), generator(given), rtol=0, atol=1e-6)


def test_counts_share_a_graph_up_to_the_power_of_two_and_old_sizes_are_dropped():
    sizes: list[tuple[int, ...]] = []

    def call(given: torch.Tensor) -> torch.Tensor:
        sizes.append(tuple(given.shape))
        return given + 1

    graphs = SizeGraphs(call, CPU, kept=2)
    for count in (3, 4, 1):
        given = torch.rand(count, 3, 8, 8)
        torch.testing.assert_close(graphs(given), given + 1)
    assert {s[0] for s in sizes} == {1, 4}
    graphs(torch.rand(1, 3, 16, 16))
    assert list(graphs._captured) == [(1, 3, 8, 8), (1, 3, 16, 16)]


def test_an_unknown_way_to_optimize_is_named(generator):
    with pytest.raises(OptionError, match="graphs"):
        Runner(generator, CPU, torch.float32, "magic")


def test_the_next_batch_is_launched_before_the_last_has_landed():
    events: list[str] = []

    def launch(batch):
        side = batch.shape[-1]
        events.append(f"launch {side}")

        def land():
            events.append(f"land {side}")
            return batch

        return land

    given = [torch.rand(3, s, s) for s in (8, 16, 8, 24)]
    for output, source in zip(in_batches(given, launch), given, strict=True):
        assert torch.equal(output, source)
    assert events == ["launch 8", "launch 16", "land 8", "launch 24", "land 16", "land 24"]
    assert in_batches([], launch) == []
