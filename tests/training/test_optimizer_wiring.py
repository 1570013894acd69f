"""A recipe's numbers arrive where they act: each step worked by hand."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from strategies import keyed
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from training_runs import fit, recipe

from probmargin import api as pm
from probmargin.attacks.attack import Attack, attack_loss
from probmargin.attacks.balls import project, random_start
from probmargin.attacks.lm_pgd import LMPGD
from probmargin.attacks.pgd import PGD
from probmargin.core.batch import AttackResult
from probmargin.core.errors import UsageError
from probmargin.core.settings import AWP, EMA
from probmargin.methods.resolve import resolve
from probmargin.runs.run import open_run
from probmargin.training import step
from probmargin.training.network import Network
from probmargin.training.optimizer import make_optimizer
from probmargin.training.perturbation import moved_by_awp, perturbed_weights
from probmargin.training.state import TrainState

BATCHES = 4
"""Batches in an epoch of the blobs: 64 images, 16 at a time."""


def one_weight(weight: float = 2.0, bias: float = -1.0) -> nn.Linear:
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(weight)
        model.bias.fill_(bias)
    return model


def sgd_by_hand(start: float, gradients: list[float], *, nesterov: bool, decay: float) -> float:
    """Momentum 0.5, rate 0.1."""
    value, buffer = start, 0.0
    for gradient in gradients:
        slope = gradient + decay * value
        buffer = 0.5 * buffer + slope
        value -= 0.1 * (slope + 0.5 * buffer if nesterov else buffer)
    return value


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.25])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_momentum_decay_and_nesterov_reach_the_optimizer(nesterov: bool, decay: float, steps: int) -> None:
    model = one_weight()
    method = recipe("standard", lr=0.1, momentum=0.5, nesterov=nesterov, weight_decay=decay)
    optimizer = make_optimizer(model, method)
    gradients = [0.5, -0.25, 1.0][:steps]
    for gradient in gradients:
        model.weight.grad = torch.full_like(model.weight, gradient)
        model.bias.grad = torch.full_like(model.bias, -gradient)
        optimizer.step()
    opposite = [-gradient for gradient in gradients]
    assert model.weight.item() == pytest.approx(sgd_by_hand(2.0, gradients, nesterov=nesterov, decay=decay))
    assert model.bias.item() == pytest.approx(sgd_by_hand(-1.0, opposite, nesterov=nesterov, decay=decay))


def test_one_step_in_plain_numbers() -> None:
    """Slope 0.5 + 0.25 * 2 = 1; Nesterov's first step is 1 + 0.5 of it; 2 - 0.1 * 1.5."""
    model = one_weight()
    method = recipe("standard", lr=0.1, momentum=0.5, nesterov=True, weight_decay=0.25)
    model.weight.grad = torch.full_like(model.weight, 0.5)
    make_optimizer(model, method).step()
    assert model.weight.item() == pytest.approx(1.85)


def adamw_by_hand(start: float, gradients: list[float], *, decay: float) -> float:
    value, mean, square = start, 0.0, 0.0
    for number, slope in enumerate(gradients, start=1):
        value -= 0.1 * decay * value
        mean, square = 0.5 * mean + 0.5 * slope, 0.999 * square + 0.001 * slope**2
        value -= 0.1 * mean / (1 - 0.5**number) / (math.sqrt(square / (1 - 0.999**number)) + 1e-8)
    return value


@pytest.mark.parametrize("decay", [0.0, 0.25])
def test_adamw_takes_the_recipes_rate_momentum_and_decay(decay: float) -> None:
    model, gradients = one_weight(), [0.5, -0.25, 1.0]
    optimizer = make_optimizer(model, recipe("standard", optimizer="adamw", lr=0.1, momentum=0.5, weight_decay=decay))
    for gradient in gradients:
        model.weight.grad = torch.full_like(model.weight, gradient)
        optimizer.step()
    assert model.weight.item() == pytest.approx(adamw_by_hand(2.0, gradients, decay=decay))
    assert model.bias.item() == -1.0


def weight_after(state: TrainState, *gradients: float) -> float:
    """One step a gradient."""
    weight = next(state.model.parameters())
    for gradient in gradients:
        for parameter in state.model.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        state.optimizer.step()
    return weight.item()


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_memory_that_is_filled_or_read_back_changes_no_step(optimizer: str) -> None:
    method = recipe("standard", optimizer=optimizer, lr=0.1, momentum=0.5)
    expected = weight_after(TrainState.fresh(one_weight(), method), 0.5, -0.25, 1.0)
    state, again = (TrainState.fresh(one_weight(), method) for _ in range(2))
    state.memory.fill()
    weight_after(state, 0.5)
    state.memory.fill()
    again.restore(state.checkpoint({}).copied())
    assert weight_after(state, -0.25, 1.0) == weight_after(again, -0.25, 1.0) == expected


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_forgotten_memory_is_that_of_before_the_first_step(optimizer: str) -> None:
    method = recipe("standard", optimizer=optimizer, lr=0.1, momentum=0.5)
    state = TrainState.fresh(one_weight(), method)
    late = TrainState.fresh(one_weight(weight_after(state, 0.5)), method)
    state.memory.forget()
    assert weight_after(state, -0.25, 1.0) == weight_after(late, -0.25, 1.0)


def test_a_run_with_adamw_learns_and_goes_on_to_the_bit(tmp_path: Path) -> None:
    method = recipe("mail-at", epochs=4, optimizer="adamw", lr=0.01)
    whole, path = fit(tmp_path / "whole", method)
    assert open_run(path).metrics[-1]["robust_accuracy"] > 0.8
    fit(tmp_path / "part", replace(method, epochs=2))
    forked, _ = fit(tmp_path / "fork", method, fork=f"{tmp_path / 'part'}@2")
    assert all(torch.equal(forked[name], tensor) for name, tensor in whole.items())
    with pytest.raises(UsageError, match="optimizer is 'adamw' there and 'sgd' here"):
        fit(tmp_path / "other", replace(method, optimizer="sgd"), fork=f"{path}@2")


def test_nesterov_goes_with_sgd_alone() -> None:
    with pytest.raises(UsageError, match="nesterov goes with sgd alone"):
        recipe("at", optimizer="adamw", nesterov=True)


@contextmanager
def steps_noted() -> Iterator[tuple[list[float], list[torch.Tensor]]]:
    """The rate of every optimizer step, and the first weights before the first step and after each."""
    rates: list[float] = []
    weights: list[torch.Tensor] = []

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        rates.append(float(optimizer.param_groups[0]["lr"]))
        if not weights:
            weights.append(optimizer.param_groups[0]["params"][0].detach().clone())

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        weights.append(optimizer.param_groups[0]["params"][0].detach().clone())

    handles = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
    try:
        yield rates, weights
    finally:
        for handle in handles:
            handle.remove()


def test_rates_by_iteration_change_within_an_epoch(tmp_path: Path) -> None:
    method = recipe("standard", epochs=2, lr=0.05, lr_milestones=(), lr_schedule="cosine", lr_per="iteration")
    with steps_noted() as (rates, _):
        fit(tmp_path, method)
    assert rates == pytest.approx([0.025 * (1 + math.cos(math.pi * k / 8)) for k in range(1, 9)], abs=1e-12)
    assert all(later < earlier for earlier, later in pairwise(rates))


def test_a_drop_by_iteration_comes_with_the_last_batch_before_the_milestone(tmp_path: Path) -> None:
    method = recipe("standard", epochs=2, lr=0.05, lr_milestones=(1,), lr_decay=0.1, lr_per="iteration")
    with steps_noted() as (rates, _):
        fit(tmp_path, method)
    assert rates == pytest.approx([0.05] * 3 + [0.005] * 5)


def test_rates_by_epoch_stay_within_an_epoch(tmp_path: Path) -> None:
    method = recipe("standard", epochs=2, lr=0.05, lr_milestones=(), lr_schedule="cosine", lr_per="epoch")
    with steps_noted() as (rates, _):
        fit(tmp_path, method)
    assert rates == pytest.approx([0.05] * BATCHES + [0.025] * BATCHES)


def test_the_cosine_falls_from_the_rate_to_nothing() -> None:
    method = recipe("standard", epochs=8, lr=0.4, lr_milestones=(), lr_schedule="cosine")
    rates = [method.lr_at(epoch) for epoch in range(9)]
    assert rates[0] == pytest.approx(0.4)
    assert rates[2] == pytest.approx(0.2 * (1 + math.sqrt(0.5)))
    assert rates[4] == pytest.approx(0.2)
    assert rates[8] == pytest.approx(0.0, abs=1e-12)
    assert rates == sorted(rates, reverse=True)
    last = replace(method, lr_per="iteration").lr_at(7, 9, 10)
    assert last == pytest.approx(0.0, abs=1e-12)


def test_the_average_keeps_nine_tenths_of_the_old() -> None:
    model = one_weight(weight=2.0)
    state = TrainState.fresh(model, recipe("standard", ema=EMA(decay=0.9)))
    assert state.average is not None
    # 0.9 * 2 + 0.1 * 4 = 2.2, then 0.9 * 2.2 + 0.1 * (-1) = 1.88.
    state.average.steps = 81
    for value, expected in ((4.0, 2.2), (-1.0, 1.88)):
        with torch.no_grad():
            model.weight.fill_(value)
        state.before_step(0.1)
        state.average.update(model)
        state.after_step()
        assert float(state.average.tensors["weight"]) == pytest.approx(expected)
        assert model.weight.item() == value


def test_a_short_runs_average_is_not_the_weights_it_began_with() -> None:
    """With a fixed decay of 0.99, 0.99 ** 12 = 89% of the start would be left after twelve steps."""
    model = one_weight(weight=0.0)
    state = TrainState.fresh(model, recipe("standard", ema=EMA(decay=0.99)))
    assert state.average is not None
    with torch.no_grad():
        model.weight.fill_(1.0)
    for _ in range(12):
        state.before_step(0.1)
        state.average.update(model)
        state.after_step()
    assert float(state.average.tensors["weight"]) > 0.999
    # What is left of the start is the product of what stays: 1/10 * 2/11 * ... * 12/21.
    left = math.prod((1 + step) / (10 + step) for step in range(12))
    assert float(state.average.tensors["weight"]) == pytest.approx(1 - left)


def test_the_steps_of_an_average_are_saved_and_those_of_an_older_state_are_many() -> None:
    model = one_weight(weight=0.0)
    state = TrainState.fresh(model, recipe("standard", ema=EMA(decay=0.99)))
    assert state.average is not None
    state.average.steps = 7
    saved = state.checkpoint({})
    again = TrainState.fresh(one_weight(weight=0.0), recipe("standard", ema=EMA(decay=0.99)))
    again.restore(saved)
    assert again.average is not None
    assert again.average.steps == 7
    del saved.facts["average_steps"]
    again.restore(saved)
    assert again.average.ema.decay_after(again.average.steps) == 0.99


def test_the_average_moves_with_every_step_of_a_run(tmp_path: Path) -> None:
    method = recipe("standard", epochs=1, ema=EMA(decay=0.9))
    with steps_noted() as (_, weights):
        _, path = fit(tmp_path, method)
    assert len(weights) == 1 + BATCHES
    expected = weights[0]
    for steps, weight in enumerate(weights[1:]):
        stays = min(0.9, (1 + steps) / (10 + steps))
        expected = stays * expected + (1 - stays) * weight
    saved = open_run(path).load_state()[1].part("ema")
    name = next(name for name, tensor in saved.items() if tensor.shape == expected.shape)
    torch.testing.assert_close(saved[name], expected)
    assert not torch.allclose(saved[name], weights[-1], atol=1e-4)


@pytest.mark.parametrize("warmup", [0, 1, 2])
def test_awp_begins_with_the_epoch_after_its_warm_up(
    warmup: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def noted(network: Any, awp: AWP | None, *rest: Any) -> Any:
        seen.append(awp is not None)
        return perturbed_weights(network, awp, *rest)

    monkeypatch.setattr(step, "perturbed_weights", noted)
    fit(tmp_path, recipe("at", epochs=3, awp=AWP(gamma=0.01, warmup_epochs=warmup)))
    assert seen == [False] * (BATCHES * warmup) + [True] * (BATCHES * (3 - warmup))


class Tokens(nn.Module):
    """A matrix that AWP moves, and ones that it does not."""

    def __init__(self, *_: int) -> None:
        super().__init__()
        self.weights = nn.ParameterDict({"position": nn.Parameter(torch.full((1, 4), 0.1))})
        self.linear = nn.Linear(4, 2)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(self.frozen(x.flatten(1)[:, :4]) + self.weights["position"])
        return out


def test_awp_moves_what_a_weight_is_made_of() -> None:
    """Under parametrizations as under the older forms that torch has of them."""
    norms = nn.utils.parametrizations
    model = nn.Sequential(
        norms.weight_norm(nn.Linear(4, 4)), norms.spectral_norm(nn.Linear(4, 4)), norms.orthogonal(nn.Linear(4, 4))
    )
    tensor = "parametrizations.weight.original"
    assert list(moved_by_awp(model)) == [f"0.{tensor}0", f"0.{tensor}1", f"1.{tensor}", f"2.{tensor}"]
    x, labels = torch.rand(6, 4), torch.tensor([0, 1] * 3)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with perturbed_weights(Network(model), AWP(), lambda call: nn.functional.cross_entropy(call(x), labels)):
        moved = [name for name, now in model.named_parameters() if not torch.equal(now, before[name])]
    assert moved == list(moved_by_awp(model))


def test_awp_moves_matrices_called_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Tokens()
    assert list(moved_by_awp(model)) == ["linear.weight"]
    x, labels = torch.rand(6, 1, 2, 2), torch.tensor([0, 1] * 3)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with perturbed_weights(Network(model), AWP(), lambda forward: forward(x).logsumexp(1).sum()):
        changed = [name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])]
    assert changed == ["linear.weight"]
    asked: list[list[str]] = []

    def noted(module: nn.Module, given: dict[str, Any], inputs: Any, *, tie_weights: bool) -> Any:
        asked.append(list(given))
        return module(*inputs)

    monkeypatch.setattr(torch.func, "functional_call", noted)
    pm.mail_loss(model, x, labels, "awp", seed=0).backward()
    assert asked[-1] == ["linear.weight"], "the loss pass, after the attack's, which take frozen copies of all"


def test_a_model_without_such_a_matrix_is_refused_before_the_first_epoch(tmp_path: Path) -> None:
    class Unnamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.eye(16, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1) @ self.matrix

    method = recipe("at", epochs=3, awp=AWP(gamma=0.01, warmup_epochs=2))
    with pytest.raises(UsageError, match="AWP finds no trained matrix called weight"):
        fit(tmp_path, method, model=Unnamed())
    assert not (tmp_path / "record.json").exists()
    fit(tmp_path, replace(method, epochs=2), model=Unnamed())


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_memory_of_parameters_with_odd_names_is_read_back(optimizer: str) -> None:
    method = recipe("standard", optimizer=optimizer, lr=0.1, momentum=0.5)
    state, again = (TrainState.fresh(nn.ModuleDict({"a/b": one_weight()}), method) for _ in range(2))
    weight_after(state, 0.5)
    again.restore(state.checkpoint({}).copied())
    assert weight_after(state, -0.25) == weight_after(again, -0.25)


@pytest.mark.parametrize(
    ("preset", "epochs", "warmup"),
    [
        ("paper", 100, 9),
        ("paper", 50, 5),
        ("paper", 10, 1),
        ("paper", 5, 0),
        ("official", 200, 9),
        ("official", 100, 5),
    ],
)
def test_the_warm_up_of_awp_is_in_epochs_and_shrinks_with_the_run(preset: str, epochs: int, warmup: int) -> None:
    awp = resolve("trades-awp", preset=preset, epochs=epochs).awp
    assert awp is not None
    assert awp.warmup_epochs == warmup


NAT_ADV = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
ADV_NAT = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)


def test_the_two_divergences_by_hand() -> None:
    """Clean probabilities 3/4 and 1/4, adversarial ones 1/2 and 1/2."""
    clean, moved = torch.tensor([[0.75, 0.25]]).log(), torch.tensor([[0.5, 0.5]]).log()
    labels = torch.tensor([0])
    assert float(attack_loss("kl", moved, labels, clean, "nat_adv")) == pytest.approx(NAT_ADV, rel=1e-5)
    assert float(attack_loss("kl", moved, labels, clean, "adv_nat")) == pytest.approx(ADV_NAT, rel=1e-5)
    assert pytest.approx(ADV_NAT, rel=0.01) != NAT_ADV


@pytest.mark.parametrize("direction", ["nat_adv", "adv_nat"])
@pytest.mark.parametrize("kind", [PGD, LMPGD])
def test_the_direction_reaches_the_loss_that_is_maximised(kind: type[Attack], direction: str) -> None:
    """Logits (log 3 + 4 (x - 1/2), 0) give 3/4 and 1/4 at x = 1/2; the start is off it, so the loss has a slope."""

    def model(x: torch.Tensor) -> torch.Tensor:
        first = math.log(3) + 4 * (x.flatten(1)[:, 0] - 0.5)
        return torch.stack([first, torch.zeros_like(first)], dim=1)

    def attacked(num_steps: int) -> AttackResult:
        attack = kind(loss="kl", eps=0.1, num_steps=num_steps, kl_direction=direction)  # type: ignore[call-arg]
        x = torch.full((1, 1, 1, 1), 0.5, dtype=torch.float64)
        return attack(model, x, torch.tensor([0]), noise=keyed(1), trace="path")

    trace = attacked(2).trace
    assert trace is not None
    # Of two steps, the image after the first is still to be moved up the loss, the one after the second is not.
    for steps in (1, 2):
        odds = 3 * math.exp(4 * (float(attacked(steps).x_adv) - 0.5))
        p, q = 0.75, odds / (1 + odds)
        if direction == "adv_nat":
            p, q = q, p
        by_hand = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
        assert by_hand > 1e-5
        assert float(trace.loss[steps]) == pytest.approx(by_hand, rel=1e-6)


def test_the_direction_is_a_setting_of_the_recipe_and_turns_the_slope() -> None:
    """By hand: the slope in a logit is q - p one way, q (log(q / p) - KL(q, p)) the other."""
    clean, start = torch.tensor([0.70, 0.25, 0.05]).double(), torch.tensor([0.8, 0.1, 0.1]).double()
    slopes = {"nat_adv": start - clean}
    ratio = (start / clean).log()
    slopes["adv_nat"] = start * (ratio - (start * ratio).sum())
    for direction, slope in slopes.items():
        method = resolve("trades", settings={"attack.kl_direction": direction})
        assert method.attack is not None
        logits = start.log()[None].requires_grad_()
        chosen = method.attack.kl_direction  # type: ignore[attr-defined]
        loss = attack_loss("kl", logits, torch.tensor([0]), clean.log()[None], chosen)
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        torch.testing.assert_close(gradient[0], slope)
    assert not torch.allclose(slopes["nat_adv"], slopes["adv_nat"], atol=0.01)


def test_the_l2_ball_holds_points_outside_and_leaves_points_inside() -> None:
    x = torch.full((3, 1, 1, 2), 0.5)
    moves = torch.tensor([[0.03, 0.04], [0.3, -0.4], [0.06, 0.08]]).view(3, 1, 1, 2)
    found = (project(x + moves, x, "L2", 0.1) - x).flatten(1)
    torch.testing.assert_close(found, torch.tensor([[0.03, 0.04], [0.06, -0.08], [0.06, 0.08]]))


def test_an_l2_start_fills_the_ball() -> None:
    x = torch.full((200, 1, 1, 2), 0.5)
    lengths = (random_start(x, "uniform_eps", "L2", 0.2, keyed(200)) - x).flatten(1).norm(dim=1)
    assert float(lengths.max()) <= 0.2 + 1e-6
    assert float(lengths.min()) > 0
    # In two dimensions half of the area lies within 0.2 / sqrt(2).
    assert float((lengths < 0.2 * math.sqrt(0.5)).float().mean()) == pytest.approx(0.5, abs=0.1)
    assert float(lengths.max()) > 0.19
