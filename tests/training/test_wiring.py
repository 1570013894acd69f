"""The real training step driven with stubs: what reaches the loss, and what does not."""

import copy
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from strategies import TinyNet, images, keyed, tiny_net
from torch import nn

from probmargin.attacks.pgd import PGD
from probmargin.core.batch import BatchView, LossTerms, Need
from probmargin.core.losses import cross_entropy, kl_divergence, probabilistic_margin
from probmargin.core.settings import AWP
from probmargin.margins.margin import Margin
from probmargin.methods.method import Method
from probmargin.methods.plain import with_settings
from probmargin.methods.resolve import METHODS, named
from probmargin.objectives.objective import Objective, Pass
from probmargin.training.network import Network
from probmargin.training.step import Batch, StepResult, attack_batch, batch_loss, train_step, view_of
from probmargin.weights.normalizers import Fixed
from probmargin.weights.weight import Weight


@dataclass(frozen=True, kw_only=True)
class RowNumber(Margin):
    """An example's place in the batch."""

    needs: ClassVar[frozenset[Need]] = frozenset()

    def __call__(self, view: BatchView) -> torch.Tensor:
        return torch.arange(len(view.labels), dtype=torch.float32)


@dataclass(frozen=True, kw_only=True)
class Listed(Weight):
    """Weights written down, picked by the margin."""

    values: tuple[float, ...]

    def __call__(self, margin: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self.values)[margin.long()]


@dataclass(frozen=True, kw_only=True)
class Split(Objective):
    """Adversarial loss weighted, natural loss plain."""

    passes: ClassVar[tuple[Pass, ...]] = ("nat", "adv")

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"logits_nat", "logits_adv"})

    def __call__(self, view: BatchView) -> LossTerms:
        return LossTerms(
            weighted=cross_entropy(view.adv(), view.labels), plain=2.0 * cross_entropy(view.nat(), view.labels)
        )


WEIGHTS = (0.0, 3.0, 0.5, 1.7)


def stubbed(**changes: object) -> Method:
    base = Method(
        method="stub",
        preset="paper",
        attack=PGD(eps=0.1, step_size=0.03, num_steps=3),
        margin=RowNumber(),
        weight=Listed(values=WEIGHTS),
        normalizer=Fixed(),
        objective=Split(),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def batch_of(size: int = 4, seed: int = 0) -> Batch:
    x, labels = images(seed, size, size=6)
    return Batch(x=x, labels=labels, noise=keyed(size))


def step(method: Method, model: TinyNet, batch: Batch, lr: float = 0.1) -> StepResult:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return train_step(Network(model), optimizer, method, batch)


def moves(model: TinyNet) -> int:
    """How often batch norm's statistics have moved."""
    assert model.bn.num_batches_tracked is not None
    return int(model.bn.num_batches_tracked)


def test_the_loss_is_the_hand_sum() -> None:
    model, batch, method = tiny_net(), batch_of(), stubbed()
    network = Network(model)
    attacked = attack_batch(network, method, batch)
    assert attacked.x_adv is not None
    twin = copy.deepcopy(model)
    nat, adv = twin(batch.x).detach(), twin(attacked.x_adv).detach()
    weighted, plain = cross_entropy(adv, batch.labels), 2.0 * cross_entropy(nat, batch.labels)
    by_hand = sum(WEIGHTS[i] * float(weighted[i]) + float(plain[i]) for i in range(4)) / 4
    result = step(method, model, batch)
    assert float(result.loss) == pytest.approx(by_hand, rel=1e-5)
    assert result.weight.tolist() == pytest.approx(WEIGHTS)


def test_a_zero_weight_leaves_no_trace_of_the_weighted_term() -> None:
    """Flipping the label of the row with weight zero changes nothing when the plain term does not see it."""

    @dataclass(frozen=True, kw_only=True)
    class OnlyWeighted(Objective):
        passes: ClassVar[tuple[Pass, ...]] = ("adv",)

        @property
        def needs(self) -> frozenset[Need]:
            return frozenset({"logits_adv"})

        def __call__(self, view: BatchView) -> LossTerms:
            loss = cross_entropy(view.adv(), view.labels)
            return LossTerms(weighted=loss, plain=torch.zeros_like(loss))

    method = stubbed(objective=OnlyWeighted(), passes=("adv",), attack=PGD(loss="kl", eps=0.1, step_size=0.03))
    states = []
    for label in (0, 1):
        model, batch = tiny_net(), batch_of()
        labels = batch.labels.clone()
        labels[0] = label
        step(method, model, replace(batch, labels=labels))
        states.append(model.state_dict())
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("row", [1, 2])
def test_a_weight_above_zero_does_leave_a_trace(row: int) -> None:
    states = []
    for label in (0, 1):
        model, batch = tiny_net(), batch_of()
        labels = batch.labels.clone()
        labels[row] = label
        step(stubbed(), model, replace(batch, labels=labels))
        states.append(model.linear.bias.detach())
    assert not torch.equal(states[0], states[1])


def test_weights_scale_the_gradient_of_the_weighted_term_alone() -> None:
    """Doubling every weight adds the weighted term's gradient once more, and nothing else."""
    moved = []
    for factor in (0.0, 1.0, 2.0):
        model = tiny_net()
        before = model.linear.weight.detach().clone()
        step(stubbed(weight=Listed(values=tuple(factor * w for w in WEIGHTS))), model, batch_of())
        moved.append(model.linear.weight.detach() - before)
    torch.testing.assert_close(moved[2] - moved[1], moved[1] - moved[0], rtol=1e-3, atol=1e-6)
    assert moved[0].abs().max() > 1e-4
    assert (moved[1] - moved[0]).abs().max() > 1e-4


def test_weights_carry_no_gradient() -> None:
    method = named("mail-at").at(99)
    model, batch = tiny_net(), batch_of(8)
    result = step(method, model, batch)
    assert not result.weight.requires_grad
    assert not result.margin.requires_grad


@pytest.mark.parametrize("name", [name for name in METHODS if named(name).is_reweighted])
@pytest.mark.parametrize("preset", ["paper", "official", "official-2021"])
def test_weights_begin_with_the_epoch_after_the_burn_in(name: str, preset: str) -> None:
    if preset not in METHODS[name]:
        return
    method = named(name, preset)
    for epoch, is_weighted in ((method.burn_in_epochs - 1, False), (method.burn_in_epochs, True)):
        batch = batch_of(16, seed=7)
        weight = step(method.at(epoch), tiny_net(7), batch).weight
        assert (weight.std() > 1e-3) == is_weighted
        if not is_weighted:
            assert (weight == 1).all()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_a_finite_step_and_learns_from_it(name: str) -> None:
    for preset in METHODS[name]:
        method = named(name, preset)
        for epoch in (0, method.epochs - 1):
            model = tiny_net(1)
            before = copy.deepcopy(model.state_dict())
            result = step(method.at(epoch), model, batch_of(8), lr=0.01)
            assert result.loss.isfinite()
            assert not torch.equal(model.linear.weight.detach(), before["linear.weight"])
            assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


def passes_seen(method: Method, batch: Batch) -> list[str]:
    """The training-mode passes of a step, in order, named by their images."""
    model = tiny_net()
    seen = []

    def note(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if module.training:
            seen.append("nat" if torch.equal(inputs[0], batch.x) else "adv")

    model.register_forward_hook(note)
    step(method, model, batch)
    return seen


@pytest.mark.parametrize(
    ("name", "preset", "passes"),
    [
        ("standard", "paper", ["nat"]),
        ("at", "paper", ["adv"]),
        ("mail-at", "paper", ["adv"]),
        ("trades", "paper", ["nat", "adv"]),
        ("mail-mart", "paper", ["nat", "adv"]),
        ("fat-mart", "official", ["adv", "nat"]),
        ("gair-trades", "official", ["adv", "adv", "nat"]),
    ],
)
def test_passes_come_in_the_recipes_order(name: str, preset: str, passes: list[str]) -> None:
    method = named(name, preset)
    assert passes_seen(method.at(method.epochs - 1), batch_of()) == passes


def test_a_repeated_natural_pass_moves_statistics_and_not_the_loss() -> None:
    once = with_settings(named("trades"), {"passes": "nat,adv"})
    twice = with_settings(named("trades"), {"passes": "nat,adv,nat"})
    results, statistics = [], []
    for method in (once, twice):
        model = tiny_net()
        results.append(step(method.at(0), model, batch_of()))
        statistics.append((moves(model), model.linear.weight.detach().clone()))
    assert float(results[0].loss) == pytest.approx(float(results[1].loss), rel=1e-5)
    torch.testing.assert_close(statistics[0][1], statistics[1][1], rtol=1e-4, atol=1e-6)
    assert [count for count, _ in statistics] == [2, 3]


def test_pm_nat_under_at_reads_an_eval_pass_and_leaves_statistics_alone() -> None:
    method = with_settings(named("mail-at"), {"margin": "pm_nat"}).at(99)
    model, batch = tiny_net(), batch_of(8)
    twin = copy.deepcopy(model).eval()
    result = step(method, model, batch)
    with torch.no_grad():
        expected = probabilistic_margin(twin(batch.x), batch.labels)
    torch.testing.assert_close(result.margin, expected)
    assert moves(model) == 1


def test_pm_adv_reads_the_training_mode_logits_of_the_loss_pass() -> None:
    method = named("mail-at").at(99)
    model, batch = tiny_net(), batch_of(8)
    twin = copy.deepcopy(model)
    result = step(method, model, batch)
    assert result.x_adv is not None
    expected = probabilistic_margin(twin(result.x_adv).detach(), batch.labels)
    torch.testing.assert_close(result.margin, expected)


def test_the_attack_of_trades_maximises_the_divergence() -> None:
    model, batch = tiny_net().eval(), batch_of(8)
    divergences = []
    for name in ("trades", "at"):
        attacked = attack_batch(Network(model), named(name).at(0), batch)
        assert attacked.x_adv is not None
        with torch.no_grad():
            divergences.append(float(kl_divergence(model(batch.x), model(attacked.x_adv)).mean()))
    assert divergences[0] > divergences[1]


def test_awp_steps_at_moved_weights_and_puts_them_back() -> None:
    plain = stubbed(attack=PGD(eps=0.1, step_size=0.03, num_steps=2))
    moved = replace(plain, awp=AWP(gamma=0.05))
    losses = []
    for method in (plain, moved):
        model = tiny_net()
        before = model.linear.weight.detach().clone()
        losses.append(float(step(method, model, batch_of(), lr=1e-9).loss))
        torch.testing.assert_close(model.linear.weight.detach(), before, rtol=1e-5, atol=1e-6)
        assert moves(model) == 2
    assert losses[1] > losses[0] + 1e-3


def test_awp_leaves_vectors_where_they_are() -> None:
    seen: dict[str, torch.Tensor] = {}

    class Spy(Split):
        def __call__(self, view: BatchView) -> LossTerms:
            seen["bias"] = model.linear.bias.detach().clone()
            seen["weight"] = model.linear.weight.detach().clone()
            return super().__call__(view)

    model = tiny_net()
    bias, weight = model.linear.bias.detach().clone(), model.linear.weight.detach().clone()
    step(stubbed(awp=AWP(gamma=0.05), objective=Spy()), model, batch_of(), lr=1e-9)
    assert torch.equal(seen["bias"], bias)
    assert float((seen["weight"] - weight).norm() / weight.norm()) == pytest.approx(0.05, rel=1e-4)


def test_the_sum_is_the_mean_times_the_batch() -> None:
    losses = [float(step(stubbed(reduction=how), tiny_net(), batch_of()).loss) for how in ("mean", "sum")]
    assert losses[1] == pytest.approx(4 * losses[0], rel=1e-5)


def test_two_processes_share_one_mean() -> None:
    """With a network without batch statistics, the halves' losses add up to the whole batch's."""
    method = stubbed(normalizer=Fixed())
    model = tiny_net().eval()
    batch = batch_of()
    network = Network(model)
    attacked = attack_batch(network, method, batch)
    assert attacked.x_adv is not None

    def loss(rows: slice, reduce_to: float | None) -> float:
        part = Batch(batch.x[rows], batch.labels[rows], keyed(4))
        images_adv = attacked.x_adv[rows] if attacked.x_adv is not None else None
        view = view_of(model, method, part, replace(attacked, x_adv=images_adv))
        weight = torch.tensor(WEIGHTS)[rows]
        if reduce_to is None:
            return float(batch_loss(view, method, weight))
        return float(batch_loss(view, method, weight, lambda total: torch.full_like(total, reduce_to)))

    with torch.no_grad():
        whole = loss(slice(0, 4), None)
        assert loss(slice(0, 1), 4.0) + loss(slice(1, 4), 4.0) == pytest.approx(whole, rel=1e-5)
