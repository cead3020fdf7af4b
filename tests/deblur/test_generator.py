import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deblur.errors import OptionError
from deblur.generator import GeneratorConfig, build, gated, pad_to_multiple, resnet

TINY = gated(widths=[4, 8], down=[1, 1], up=[1])
CONFIGS = {
    "gated": TINY,
    "gated stem 4": gated(stem=4, widths=[4, 8], down=[1, 1], up=[1]),
    "resnet": resnet(width=4, blocks=2),
}


def trained_a_little(config: GeneratorConfig) -> torch.nn.Module:
    """Fresh gated generators are the identity; random weights make differences visible."""
    torch.manual_seed(0)
    generator = build(config).eval()
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return generator


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@settings(deadline=None, max_examples=15)
@given(height=st.integers(1, 40), width=st.integers(1, 40))
def test_output_has_the_size_of_the_input(config, height, width):
    generator = build(config).eval()
    with torch.inference_mode():
        assert generator(torch.rand(1, 3, height, width)).shape == (1, 3, height, width)


@pytest.mark.parametrize("config", [TINY, CONFIGS["gated stem 4"]], ids=["stem 2", "stem 4"])
def test_a_fresh_gated_generator_returns_its_input(config):
    picture = torch.rand(2, 3, 24, 40)
    torch.testing.assert_close(build(config)(picture), picture, rtol=0, atol=0)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_every_parameter_gets_a_gradient(config):
    generator = trained_a_little(config)
    generator(torch.rand(2, 3, 32, 32)).square().mean().backward()
    # A bias before instance norm is taken out again with the mean, so its gradient is rightly about zero.
    absent = [n for n, p in generator.named_parameters() if p.grad is None]
    dead = [n for n, p in generator.named_parameters() if p.grad is not None and not p.grad.any()]
    assert absent == []
    assert [n for n in dead if not (config.kind == "resnet" and n.endswith("bias"))] == []


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_batch_of_two_equals_two_batches_of_one(config):
    generator, pictures = trained_a_little(config), torch.rand(2, 3, 32, 48)
    with torch.inference_mode():
        together = generator(pictures)
        apart = torch.cat([generator(p[None]) for p in pictures])
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-5)


def test_a_gated_tile_equals_the_whole_beyond_the_receptive_field():
    generator, picture = trained_a_little(TINY), torch.rand(1, 3, 96, 96)
    with torch.inference_mode():
        whole, tile = generator(picture), generator(picture[..., 32:, 32:])
    torch.testing.assert_close(tile[..., 24:, 24:], whole[..., 56:, 56:], rtol=0, atol=1e-5)


@given(height=st.integers(1, 40), width=st.integers(1, 40), multiple=st.sampled_from([2, 8, 16]))
def test_padding_reaches_the_multiple_and_keeps_the_picture(height, width, multiple):
    picture = torch.rand(1, 3, height, width)
    padded = pad_to_multiple(picture, multiple)
    assert padded.shape[2] == -(-height // multiple) * multiple
    assert padded.shape[3] == -(-width // multiple) * multiple
    assert torch.equal(padded[..., :height, :width], picture)


def test_config_round_trips_through_plain_values():
    for config in CONFIGS.values():
        assert GeneratorConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "unet"},
        {"widths": [4, 8], "down": [1], "up": [1]},
        {"kind": "resnet", "widths": [4, 8], "down": [1], "up": []},
        {"colour": 1},
        {"widths": [100_000, 8], "down": [1, 1], "up": [1]},
        {"stem": 3},
    ],
)
def test_a_config_that_cannot_be_built_is_refused(values):
    with pytest.raises(OptionError):
        GeneratorConfig.from_dict(values)


def test_the_resnet_has_two_convolutions_a_block_and_the_size_of_deblurgan():
    parameters = sum(p.numel() for p in build(resnet()).parameters())
    assert 11.0e6 < parameters < 11.6e6  # 9 blocks of 2 x 256 x 256 x 9 and the shells around them
