"""Attack paths, LPS, FAT's early stop, AWP's step and schedules against golden vectors."""

import itertools
from dataclasses import replace

import pytest
import torch
from golden_values import GOLDEN
from torch import nn

from probmargin.attacks.pgd import PGD, EarlyStopPGD
from probmargin.core.batch import AttackTrace
from probmargin.core.noise import KeyedNoise, Noise
from probmargin.core.settings import AWP
from probmargin.methods.method import Method, Phase
from probmargin.methods.resolve import named
from probmargin.training.network import Network
from probmargin.training.perturbation import perturbed_weights

LPS = GOLDEN["lps"]
PATHS = torch.tensor(LPS["correct_at_iterate_0_to_10"]).bool().T


class Scripted:
    """A model whose prediction at each call is written down; its gradient pushes every pixel up.

    The first call is the clean image's, which a trace of level `path` asks for.
    """

    def __init__(self, correct: torch.Tensor) -> None:
        self.correct = correct
        self.calls = -1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        right = self.correct[max(self.calls, 0)]
        self.calls += 1
        sign = torch.where(right, 1.0, -1.0)
        push = x.flatten(1).sum(1) - x.detach().flatten(1).sum(1)
        return torch.stack([sign - push, -sign + push], dim=1)


def noise(batch: int) -> Noise:
    return KeyedNoise(seed=0, ids=torch.arange(batch))


def run(attack: PGD | EarlyStopPGD) -> tuple[torch.Tensor, AttackTrace]:
    x = torch.full((7, 1, 1, 1), 0.1)
    result = attack.run(Scripted(PATHS), x, torch.zeros(7, dtype=torch.long), noise=noise(7), trace="path")
    assert result.trace is not None
    return ((result.x_adv - x) / attack.step_size).flatten().round().long(), result.trace


def test_lps_of_scripted_paths() -> None:
    updates, trace = run(PGD(eps=0.9, step_size=0.01, num_steps=10, start="zero"))
    assert trace.count_correct().tolist() == LPS["count_correct"]
    assert trace.first_cross().tolist() == LPS["first_cross"]
    assert updates.tolist() == [10] * 7


@pytest.mark.parametrize("key", LPS["fat_updates_applied"])
def test_fat_applies_the_golden_number_of_updates(key: str) -> None:
    attack = EarlyStopPGD(eps=0.9, step_size=0.01, num_steps=10, start="zero", tau=int(key.removeprefix("tau=")))
    assert run(attack)[0].tolist() == LPS["fat_updates_applied"][key]


def test_the_first_crossing_reads_the_probability_there() -> None:
    _, trace = run(PGD(eps=0.9, step_size=0.01, num_steps=10, start="zero"))
    steps = torch.tensor(LPS["first_cross"])
    expected = torch.stack([trace.prob_label[step, example] for example, step in enumerate(steps)])
    torch.testing.assert_close(trace.prob_at_first_cross(), expected)
    assert trace.prob_label.shape == (11, 7)


class FixedNoise(Noise):
    """Hands out one prepared draw."""

    def __init__(self, draw: torch.Tensor) -> None:
        self.draw = draw

    def uniform(self, shape: tuple[int, ...], *, stream: str, target: int = 0, step: int = 0) -> torch.Tensor:
        return self.draw

    def normal(self, shape: tuple[int, ...], *, stream: str, target: int = 0, step: int = 0) -> torch.Tensor:
        return self.draw

    def take(self, positions: torch.Tensor) -> "FixedNoise":
        return FixedNoise(self.draw[positions])


def test_pgd_follows_the_golden_path() -> None:
    golden = GOLDEN["pgd_trace"]
    x = torch.tensor(golden["x"], dtype=torch.float64).view(1, 1, 1, 4)
    direction = torch.tensor(golden["constant_grad_sign"], dtype=torch.float64)
    start = torch.tensor(golden["init_noise"], dtype=torch.float64).view(1, 1, 1, 4) / 1e-3
    seen = []

    def model(images: torch.Tensor) -> torch.Tensor:
        seen.append(images.detach().flatten().clone())
        push = images.flatten(1) @ direction
        return torch.stack([-push, push], dim=1)

    attack = PGD(eps=golden["eps"], step_size=golden["step"], num_steps=6, start="normal_1e-3")
    result = attack.run(model, x, torch.tensor([0]), noise=FixedNoise(start), trace="none")
    path = torch.stack([*seen, result.x_adv.flatten()])
    torch.testing.assert_close(
        path, torch.tensor(golden["iterates_0_to_6"], dtype=torch.float64), rtol=1e-9, atol=1e-12
    )


def test_awp_takes_the_golden_step() -> None:
    golden = GOLDEN["awp"]
    model = nn.Linear(3, 2, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(golden["weight"], dtype=torch.float64))
        model.bias.copy_(torch.tensor(golden["bias"], dtype=torch.float64))
    ascent = torch.tensor(golden["ascent_grad"], dtype=torch.float64)
    optimizer = torch.optim.SGD([model.weight], lr=golden["lr"], weight_decay=golden["weight_decay"])

    def loss_at(forward: object) -> torch.Tensor:
        return (model.weight * ascent).sum() + model.bias.sum()

    with perturbed_weights(Network(model), AWP(gamma=golden["gamma"]), loss_at):
        expected = torch.tensor(golden["weight_perturbed"], dtype=torch.float64)
        torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-9, atol=1e-12)
        assert model.bias.tolist() == golden["bias_perturbed"]
        model.weight.grad = torch.tensor(golden["grad_at_perturbed"], dtype=torch.float64)
        optimizer.step()
    expected = torch.tensor(golden["weight_after_step_and_restore"], dtype=torch.float64)
    torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-9, atol=1e-12)


SCHEDULES = GOLDEN["schedules_epoch0_based"]
MART_RESNET = named("mart")
RATES: dict[str, Method] = {
    "mail_official_120": named("mail-at", "official"),
    "fat_120": named("fat", "official"),
    "fat_trades_85": named("fat-trades", "official"),
    "fat_mart_90": named("fat-mart", "official"),
    "gairat_100": named("gairat", "official"),
    "trades_awp_200": named("trades-awp", "official"),
}


def change_points(values: list[float]) -> list[list[float]]:
    """[[epoch, value], ...] wherever the value changes."""
    points: list[list[float]] = []
    for epoch, value in enumerate(values):
        if not points or value != pytest.approx(points[-1][1], rel=1e-9):
            points.append([epoch, value])
    return points


@pytest.mark.parametrize("key", RATES)
def test_learning_rates_of_released_code(key: str) -> None:
    method = RATES[key]
    found = change_points([method.lr_at(epoch) for epoch in range(method.epochs)])
    assert [point[0] for point in found] == [point[0] for point in SCHEDULES[key]]
    assert [point[1] for point in found] == pytest.approx([point[1] for point in SCHEDULES[key]], rel=1e-9)


@pytest.mark.parametrize("key", ["mart_resnet_120", "mart_wrn_90", "trades_76", "gairat_120"])
def test_learning_rates_that_no_preset_holds_can_be_written(key: str) -> None:
    points = SCHEDULES[key]
    decays = tuple(later[1] / earlier[1] for earlier, later in itertools.pairwise(points))
    method = Method(
        method="mart",
        preset="paper",
        attack=MART_RESNET.attack,
        objective=MART_RESNET.objective,
        epochs=int(key.rsplit("_", 1)[1]),
        lr=points[0][1],
        lr_milestones=tuple(point[0] for point in points[1:]),
        lr_decay=decays,
    )
    found = change_points([method.lr_at(epoch) for epoch in range(method.epochs)])
    assert [point[0] for point in found] == [point[0] for point in points]
    assert [point[1] for point in found] == pytest.approx([point[1] for point in points])


def test_at_awp_changes_its_rate_by_iteration() -> None:
    method = named("awp", "official")
    assert method.lr_at(99, 389, 391) == pytest.approx(0.1)
    assert method.lr_at(99, 390, 391) == pytest.approx(0.01)
    assert method.lr_at(149, 389, 391) == pytest.approx(0.01)
    assert method.lr_at(149, 390, 391) == pytest.approx(0.001)


@pytest.mark.parametrize("key", ["fat", "fat_trades", "fat_mart"])
@pytest.mark.parametrize("preset", ["paper", "official"])
def test_tau_of_released_code(key: str, preset: str) -> None:
    method = named(key.replace("_", "-"), preset)
    taus = [getattr(method.at(epoch).attack, "tau") for epoch in range(method.epochs)]  # noqa: B009
    assert change_points(taus) == SCHEDULES[f"tau_{key}"]


def test_tau_of_gair_fat_can_be_written_as_phases() -> None:
    base = named("fat", "official")
    phases = tuple(Phase(from_epoch=e, set={"attack.tau": tau}) for e, tau in SCHEDULES["tau_gair_fat"])
    method = replace(base, phases=phases)
    taus = [getattr(method.at(epoch).attack, "tau") for epoch in range(method.epochs)]  # noqa: B009
    assert change_points(taus) == SCHEDULES["tau_gair_fat"]


def first_weighted(method: Method) -> int:
    return next(e for e in range(method.epochs) if method.at(e).is_reweighted)


def test_first_weighted_epochs() -> None:
    golden = SCHEDULES["first_reweighted_epoch"]
    for name in ("mail-at", "mail-trades", "mail-mart"):
        assert first_weighted(named(name, "official")) == golden["mail_official_head"]
        assert first_weighted(named(name, "official-2021")) == golden["mail_official_oct2021"]
        assert first_weighted(named(name)) == golden["mail_paper"]
    assert first_weighted(named("gairat", "official")) == golden["gairat_100_paper"]
    base = named("gairat", "official")
    longer = replace(base, epochs=120, burn_in_epochs=59)
    assert first_weighted(longer) == golden["gairat_120"]


def test_first_perturbed_epochs() -> None:
    golden = SCHEDULES["first_awp_epoch"]
    for name, preset, key in (("awp", "official", "at_awp_cifar"), ("trades-awp", "official", "trades_awp")):
        method = named(name, preset)
        assert next(e for e in range(method.epochs) if method.at(e).awp) == golden[key]
    late = named("awp", "official")
    late = replace(late, awp=AWP(warmup_epochs=5))
    assert next(e for e in range(20) if late.at(e).awp) == golden["at_awp_svhn"]
