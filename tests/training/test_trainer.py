"""The step: what it learns, what it skips, and that a break changes nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from deblur.errors import DataError
from deblur.generator import build, gated
from training.config import LossConfig, OptimizerConfig, TrainConfig
from training.data import Pair
from training.distributed import Group
from training.ema import Ema
from training.learner import Learner
from training.optimizer import rate_at
from training.trainer import Trainer

Batch = Callable[[int], list[Pair]]
Make = Callable[..., Trainer]


def test_one_batch_is_learned_by_heart(trainer: Make, batch: Batch) -> None:
    optimizer = OptimizerConfig(learning_rate=4e-3, warmup_steps=10)
    made = trainer(
        loss=LossConfig(), optimizer=optimizer, steps=150, generator=gated(widths=[16, 32], down=[2, 2], up=[2])
    )
    losses = [float(made.train_step(batch(0))["pixel"]) for _ in range(150)]
    assert losses[-1] < 0.35 * losses[0]


@pytest.mark.parametrize("kind", ["adamw", "adam", "muon"])
def test_every_optimizer_lowers_the_loss(kind: Any, trainer: Make, batch: Batch) -> None:
    made = trainer(
        loss=LossConfig(), optimizer=OptimizerConfig(kind=kind, learning_rate=4e-3, warmup_steps=1), steps=30
    )
    losses = [float(made.train_step(batch(0))["pixel"]) for _ in range(30)]
    assert losses[-1] < losses[0]


def _state(made: Trainer) -> dict[str, Tensor]:
    """Every tensor of the state by its path."""
    found: dict[str, Tensor] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, Tensor):
            found[path] = value.clone()
        elif isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{path}/{key}")
        elif isinstance(value, list | tuple):
            for key, inner in enumerate(value):
                walk(inner, f"{path}/{key}")

    walk(made.state_dict(), "")
    return found


@pytest.mark.parametrize("kind", ["hinge", "wgan-gp"])
def test_a_break_changes_nothing(kind: Any, tiny: TrainConfig, batch: Batch) -> None:
    loss = LossConfig(adversarial=kind, adversarial_weight=0.01, critic_steps=2)
    config = replace(tiny, loss=loss, steps=8)
    straight = Trainer(config, torch.device("cpu"))
    for step in range(8):
        straight.train_step(batch(step))
    first = Trainer(config, torch.device("cpu"))
    for step in range(4):
        first.train_step(batch(step))
    second = Trainer(replace(config, seed=0), torch.device("cpu"))
    second.load_state_dict(first.state_dict())
    for step in range(4, 8):
        second.train_step(batch(step))
    expected, got = _state(straight), _state(second)
    assert expected.keys() == got.keys()
    assert any("/ema/" in name for name in expected)
    assert any("/d_optimizer/" in name for name in expected)
    for name, value in expected.items():
        assert torch.equal(value, got[name]), name
    assert (second.step, second.seen, second.skipped) == (8, 32, 0)


def test_the_seed_decides_all(trainer: Make, batch: Batch) -> None:
    def trained(seed: int) -> dict[str, Tensor]:
        made = trainer(seed=seed)
        for step in range(3):
            made.train_step(batch(step))
        return _state(made)

    one, same, other = trained(1), trained(1), trained(2)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_accumulated_batches_give_the_gradient_of_one_large_batch(
    trainer: Make, batch: Batch, tiny: TrainConfig
) -> None:
    pairs = [*batch(0), *batch(1)]
    together = [(torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs]))]
    plain = replace(tiny.discriminator, norm="none")  # the spectral norm's estimate moves with every use
    apart, whole = trainer(discriminator=plain, accumulate=2), trainer(discriminator=plain)
    apart.train_step(pairs)
    whole.train_step(together)
    assert apart.seen == whole.seen == 8
    assert apart.discriminator is not None
    assert whole.discriminator is not None
    for one, other in ((apart.generator, whole.generator), (apart.discriminator, whole.discriminator)):
        for a, b in zip(one.module.parameters(), other.module.parameters(), strict=True):
            assert torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-6)


def _poisoned(pairs: list[Pair]) -> list[Pair]:
    return [(blurred, torch.full_like(sharp, torch.nan)) for blurred, sharp in pairs]


def test_a_step_with_a_nan_is_skipped_and_counted(trainer: Make, batch: Batch) -> None:
    made = trainer(bad_steps=3)
    made.train_step(batch(0))
    before = _state(made)
    report = made.train_step(_poisoned(batch(1)))
    after = _state(made)
    assert float(report["skipped"]) == 1
    assert (made.step, made.skipped) == (2, 1)
    for name, value in before.items():
        if not name.endswith(("_u", "_v")):  # of the spectral norm: estimated anew from the weights at every use
            assert torch.equal(value, after[name]), name
    assert float(made.train_step(batch(2))["skipped"]) == 0
    assert not torch.equal(before["/generator/stem.weight"], _state(made)["/generator/stem.weight"])


def test_training_stops_after_too_many_nans_in_a_row_and_says_why(trainer: Make, batch: Batch) -> None:
    made = trainer(bad_steps=3)
    for step in (1, 2):
        made.train_step(_poisoned(batch(step)))
    made.train_step(batch(3))  # a good step between: the count begins anew
    for step in (4, 5):
        made.train_step(_poisoned(batch(step)))
    with pytest.raises(DataError, match=r"3 steps in a row the generator's .*not\s+finite.*--rate.*--precision fp32"):
        made.train_step(_poisoned(batch(6)))
    assert made.skipped == 5


def test_a_nan_in_the_discriminator_alone_is_named(trainer: Make, batch: Batch) -> None:
    made = trainer(bad_steps=2, loss=LossConfig(adversarial_weight=0.01, discriminator_warmup=1000))
    assert made.discriminator is not None
    with torch.no_grad():
        next(made.discriminator.module.parameters()).fill_(torch.nan)
    before = [p.clone() for p in made.generator.module.parameters()]
    report = made.train_step(batch(0))
    assert float(report["skipped"]) == 1
    moved = zip(before, made.generator.module.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in moved)  # the generator, which does not listen yet, goes on
    with pytest.raises(DataError, match="the discriminator's"):
        made.train_step(batch(1))


def test_a_black_batch_trains_under_the_gradient_penalty(tiny: TrainConfig) -> None:
    loss = LossConfig(adversarial="wgan-gp", adversarial_weight=0.1, critic_steps=2)
    for norm in ("instance", "none", "spectral"):
        discriminator = replace(tiny.discriminator, norm=norm)
        made = Trainer(replace(tiny, loss=loss, discriminator=discriminator), torch.device("cpu"))
        black = torch.zeros(4, 3, 32, 32)
        for _ in range(3):
            made.train_step([(black, black)])
        assert made.skipped == 0
        assert all(torch.isfinite(value).all() for value in _state(made).values())


def test_a_scaled_loss_skips_and_recovers() -> None:
    module = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    learner = Learner(module, optimizer, Group(), clip_norm=1.0, scaled=True, device=torch.device("cpu"))
    weight = module.weight.detach().clone()
    loss = module(torch.full((1, 1), 1e36)).sum()  # times the scale, its gradient overflows
    learner.backward(loss)
    assert not learner.step(loss)
    assert torch.equal(weight, module.weight)
    scale = learner.state_dict()["scaler"]["scale"]
    learner.clear()
    loss = module(torch.ones(1, 1)).sum()
    learner.backward(loss)
    assert learner.step(loss)
    assert scale == 2.0**11
    assert float((weight - module.weight).detach().abs()) == pytest.approx(0.1, rel=1e-3)


def test_bf16_follows_fp32(trainer: Make, batch: Batch) -> None:
    one, other = trainer(precision="fp32"), trainer(precision="bf16")
    for step in range(5):
        exact, rough = one.train_step(batch(step)), other.train_step(batch(step))
    assert float(rough["total"]) == pytest.approx(float(exact["total"]), rel=0.02)


def test_the_average_follows_slowly_and_holds_no_gradient() -> None:
    module = build(gated(widths=[8, 16], down=[1, 1], up=[1]))
    ema = Ema(module, decay=0.9)
    ema.updates = 1000
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    before = [p.clone() for p in ema.module.parameters()]
    ema.update(module)
    for old, new in zip(before, ema.module.parameters(), strict=True):
        assert torch.allclose(new, old + 0.1, atol=1e-6)
        assert not new.requires_grad


def test_learning_rate_rises_and_falls() -> None:
    cosine = OptimizerConfig(warmup_steps=10, final_rate=0.1)
    assert rate_at(cosine, 0, 0.0) == pytest.approx(0.1)
    assert rate_at(cosine, 9, 0.0) == pytest.approx(1.0)
    assert rate_at(cosine, 100, 0.5) == pytest.approx(0.55)
    assert rate_at(cosine, 100, 1.0) == pytest.approx(0.1)
    linear = OptimizerConfig(warmup_steps=0, final_rate=0.0, schedule="linear")
    assert [rate_at(linear, 5, p) for p in (0.0, 0.5, 0.75, 1.0)] == pytest.approx([1.0, 1.0, 0.5, 0.0])


def test_a_checkpoint_of_other_networks_is_refused(trainer: Make, batch: Batch) -> None:
    state = trainer().state_dict()
    with pytest.raises(DataError, match="does not fit"):
        trainer(generator=gated(widths=[8, 16], down=[2, 1], up=[1])).load_state_dict(state)


def test_checkpoints_of_the_first_version_go_on(trainer: Make, batch: Batch) -> None:
    made = trainer()
    made.train_step(batch(0))
    keys = ("step", "elapsed", "seen", "skipped", "generator", "ema", "ema_updates", "optimizer")
    old = {k: v for k, v in made.state_dict().items() if k in keys}
    later = trainer()
    later.load_state_dict(old)
    later.train_step(batch(1))
    assert (later.step, later.ema.updates) == (2, 2)
