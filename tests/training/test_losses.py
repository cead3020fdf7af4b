"""The losses, by hand-made values and by what their gradients reach."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from deblur.errors import DataError, OptionError
from training.config import LossConfig, TrainConfig
from training.data import Pair
from training.losses import GeneratorLoss, adversarial_loss, discriminator_loss, fft_loss, gradient_penalty, pixel_loss
from training.perceptual import PerceptualLoss
from training.recipes import recipe
from training.trainer import Trainer

Batch = Callable[[int], list[Pair]]
VggFile = Callable[[str, str], Path]


def test_pixel_losses_of_a_constant_difference() -> None:
    sharp = torch.full((2, 3, 8, 8), 0.5)
    assert pixel_loss(sharp + 0.1, sharp, "charbonnier").item() == pytest.approx(0.1, abs=1e-4)
    assert pixel_loss(sharp + 0.1, sharp, "mse").item() == pytest.approx(0.01)
    assert pixel_loss(sharp, sharp, "charbonnier").item() == pytest.approx(1e-3)


def test_fft_loss_does_not_depend_on_size() -> None:
    torch.manual_seed(0)
    small, large = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 64, 64)
    ratio = fft_loss(large, torch.zeros_like(large)) / fft_loss(small, torch.zeros_like(small))
    assert ratio.item() == pytest.approx(1.0, abs=0.1)


def test_hinge_stops_at_the_margin_and_ralsgan_compares() -> None:
    far = discriminator_loss("hinge", torch.tensor([2.0]), torch.tensor([-2.0]))
    assert far.item() == 0.0
    on_sharp, on_restored = torch.tensor([1.0, 3.0]), torch.tensor([-1.0, -1.0])
    # Leads are -1 - 2 = -3 and (1, 3) - (-1) = (2, 4): ((2-1)^2 + (4-1)^2)/2/2 + (-3+1)^2/2.
    assert discriminator_loss("ralsgan", on_sharp, on_restored).item() == pytest.approx(2.5 + 2.0)
    assert adversarial_loss("ralsgan", on_restored, on_sharp).item() == pytest.approx(8.0 + (9 + 25) / 4)
    assert adversarial_loss("hinge", on_restored, on_sharp).item() == 1.0


class _Linear(nn.Module):
    """Scores a sample by its sum times a slope: its gradient is the slope everywhere."""

    def __init__(self, slope: float):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope))

    def forward(self, x: Tensor) -> Tensor:
        return (self.slope * x).sum(dim=(1, 2, 3)).view(-1, 1, 1, 1)


def test_the_penalty_takes_the_norm_over_the_whole_sample() -> None:
    sharp, restored, mix = torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 4), torch.rand(2, 1, 1, 1)
    whole = (0.5**2 * 3 * 4 * 4) ** 0.5  # norm of 48 gradients of 0.5
    penalty = gradient_penalty(_Linear(0.5), sharp, restored, mix)
    assert penalty.item() == pytest.approx((whole - 1) ** 2, rel=1e-5)


def test_a_zero_gradient_under_the_penalty_stays_finite() -> None:
    critic = _Linear(0.0)
    black = torch.zeros(2, 3, 4, 4)
    penalty = gradient_penalty(critic, black, black, torch.rand(2, 1, 1, 1))
    penalty.backward()
    assert penalty.item() == pytest.approx(1.0, abs=1e-5)
    assert torch.isfinite(critic.slope.grad).all()


@pytest.mark.parametrize(("net", "layer", "count"), [("vgg16", "relu3_3", 7), ("vgg19", "conv3_3", 7)])
def test_perceptual_distance_is_zero_on_equal_pictures_alone(
    net: str, layer: str, count: int, vgg_file: VggFile
) -> None:
    loss = PerceptualLoss(net, (layer,), "mse", vgg_file(net, layer))
    sharp = torch.rand(1, 3, 32, 32)
    assert loss(sharp, sharp).item() == 0.0
    assert loss(1 - sharp, sharp).item() > 0
    assert sum(isinstance(m, nn.Conv2d) for m in loss.features) == count
    assert not any(p.requires_grad for p in loss.parameters())


def test_conv_layers_are_taken_before_the_relu(vgg_file: VggFile) -> None:
    file = vgg_file("vgg19", "relu2_1")
    picture = torch.rand(1, 3, 16, 16)
    (before,) = PerceptualLoss("vgg19", ("conv2_1",), "mse", file).maps(picture)
    (after,) = PerceptualLoss("vgg19", ("relu2_1",), "mse", file).maps(picture)
    assert before.min() < 0
    assert torch.equal(before.relu(), after)


def test_perceptual_weights_that_lack_a_layer_are_named(vgg_file: VggFile) -> None:
    with pytest.raises(DataError, match=r"features\.10.* is absent"):
        PerceptualLoss("vgg16", ("relu3_1",), "l1", vgg_file("vgg16", "relu2_2"))
    with pytest.raises(DataError, match="expected vgg19, got vgg16"):
        PerceptualLoss("vgg19", ("relu2_2",), "l1", vgg_file("vgg16", "relu2_2"))
    with pytest.raises(OptionError, match="relu9_9"):
        PerceptualLoss("vgg16", ("relu9_9",), "l1", vgg_file("vgg16", "relu2_2"))


def test_missing_perceptual_weights_name_both_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.models import VGG16_Weights

    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(type(VGG16_Weights.IMAGENET1K_V1), "get_state_dict", offline)
    with pytest.raises(DataError, match=r"download.*\.pth.*--perceptual-weights FILE.*--perceptual 0"):
        PerceptualLoss("vgg16", ("relu2_2",), "l1")


def _gradients(trainer: Trainer, pair: Pair) -> list[Tensor]:
    trainer.generator.clear()
    blurred, sharp = pair
    terms = trainer.loss_terms(trainer.restore(blurred), sharp)
    torch.stack(list(terms.values())).sum().backward()
    return [p.grad.clone() for p in trainer.generator.module.parameters() if p.grad is not None]


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", ["hinge", "ralsgan", "wgan-gp"])
def test_the_adversarial_loss_changes_the_generators_gradients(kind: str, tiny: TrainConfig, batch: Batch) -> None:
    def made(weight: float) -> list[Tensor]:
        loss = LossConfig(adversarial=kind, adversarial_weight=weight)  # type: ignore[arg-type]
        trainer = Trainer(replace(tiny, loss=loss), torch.device("cpu"))
        _wake(trainer.generator.module)
        if trainer.discriminator:
            trainer.discriminator.steps = 1
        return _gradients(trainer, batch(0)[0])

    assert not _same(made(0.0), made(0.1))


def test_the_perceptual_loss_changes_the_generators_gradients(
    tiny: TrainConfig, batch: Batch, vgg_file: VggFile
) -> None:
    file = str(vgg_file("vgg16", "relu3_3"))

    def made(weight: float) -> list[Tensor]:
        config = replace(tiny, loss=LossConfig(perceptual_weight=weight), perceptual_weights=file)
        trainer = Trainer(config, torch.device("cpu"))
        _wake(trainer.generator.module)
        return _gradients(trainer, batch(0)[0])

    assert not _same(made(0.0), made(0.1))


def test_the_perceptual_loss_looks_at_its_share_of_the_batch(vgg_file: VggFile) -> None:
    loss = GeneratorLoss(LossConfig(perceptual_weight=1.0, perceptual_share=0.5), vgg_file("vgg16", "relu3_3"))
    restored = torch.rand(4, 3, 32, 32, requires_grad=True)
    loss(restored, torch.rand(4, 3, 32, 32), progress=0.0)["perceptual"].backward()
    assert restored.grad is not None
    assert [bool(g.any()) for g in restored.grad] == [True, True, False, False]


def test_losses_join_at_their_progress(tiny: TrainConfig, batch: Batch, vgg_file: VggFile) -> None:
    loss = LossConfig(
        perceptual_weight=1.0, perceptual_from=0.5, adversarial_weight=1.0, adversarial_from=0.5, discriminator_warmup=1
    )
    file = str(vgg_file("vgg16", "relu3_3"))
    trainer = Trainer(replace(tiny, loss=loss, perceptual_weights=file, steps=8), torch.device("cpu"))
    seen = [set(trainer.train_step(batch(i))) & {"perceptual", "adversarial", "discriminator"} for i in range(6)]
    assert seen[:4] == [set()] * 4
    assert seen[4] == {"perceptual", "discriminator"}  # the discriminator warms up for one step
    assert seen[5] == {"perceptual", "adversarial", "discriminator"}


@pytest.mark.parametrize("kind", ["hinge", "wgan-gp"])
def test_the_critics_step_leaves_the_generators_gradients_alone(kind: str, tiny: TrainConfig, batch: Batch) -> None:
    loss = LossConfig(adversarial=kind, adversarial_weight=0.1, critic_steps=2)  # type: ignore[arg-type]
    trainer = Trainer(replace(tiny, loss=loss), torch.device("cpu"))
    _wake(trainer.generator.module)
    before = _gradients(trainer, batch(0)[0])
    assert trainer.discriminator is not None
    weights = [p.clone() for p in trainer.discriminator.module.parameters()]
    trainer._discriminator_steps(batch(1), [])
    after = [p.grad for p in trainer.generator.module.parameters() if p.grad is not None]
    assert _same(before, after)
    assert not _same(weights, list(trainer.discriminator.module.parameters()))


def test_the_generators_step_leaves_the_critics_gradients_alone(tiny: TrainConfig, batch: Batch) -> None:
    trainer = Trainer(tiny, torch.device("cpu"))
    assert trainer.discriminator is not None
    trainer.discriminator.steps = 1
    _gradients(trainer, batch(0)[0])
    assert all(p.grad is None and p.requires_grad for p in trainer.discriminator.module.parameters())


@pytest.mark.parametrize("name", ["tiny", "paper"])
def test_every_parameter_gets_a_gradient(name: str, batch: Batch, vgg_file: VggFile) -> None:
    config = recipe(name)
    if name == "paper":
        small = replace(config.generator, widths=(4,), down=(1,))
        file = str(vgg_file("vgg19", "conv3_3"))
        discriminator = replace(config.discriminator, width=4, layers=2)
        config = replace(
            config, generator=small, perceptual_weights=file, discriminator=discriminator, precision="fp32"
        )
    trainer = Trainer(config, torch.device("cpu"))
    _wake(trainer.generator.module)
    trainer.train_step(batch(0))
    learners = [trainer.generator] + ([trainer.discriminator] if trainer.discriminator else [])
    for learner in learners:
        for parameter_name, parameter in learner.module.named_parameters():
            # Instance norm takes a convolution's bias out again: its gradient is zero, but it is there.
            assert parameter.grad is not None, parameter_name
            assert torch.isfinite(parameter.grad).all(), parameter_name
            if name == "tiny":
                assert parameter.grad.abs().sum() > 0, parameter_name


def _wake(generator: nn.Module) -> None:
    """Moves zero-initialised scales and heads off zero, behind which nothing has a gradient."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in generator.parameters():
            if not parameter.any():
                parameter.add_(0.1 * torch.randn_like(parameter))
