"""The ensemble: what it counts, what it refuses, what it says."""

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from autoattack_helpers import Found, Linear, digits_model, digits_test, linear_task, run_ensemble, small_budget

from probmargin.attacks.apgd import APGD
from probmargin.attacks.attack import Attack
from probmargin.attacks.balls import Norm
from probmargin.attacks.fab import FAB
from probmargin.attacks.square import Square
from probmargin.core.batch import AttackResult, TraceLevel
from probmargin.core.errors import UsageError
from probmargin.core.losses import logit_margin
from probmargin.core.noise import KeyedNoise, Noise
from probmargin.core.types import Classifier
from probmargin.evaluation.autoattack import VERSIONS, build_attack
from probmargin.evaluation.opening import Threat, opened
from probmargin.evaluation.recheck import recheck
from probmargin.evaluation.search import Finding, Outcome, Parts, Stage, run_stages


@dataclass(frozen=True, kw_only=True)
class Shift(Attack):
    """Adds a constant to every pixel, whatever the ball allows."""

    by: float

    def run(
        self,
        model: Classifier,
        x: torch.Tensor,
        labels: torch.Tensor,
        *,
        noise: Noise,
        trace: TraceLevel,
    ) -> AttackResult:
        return AttackResult(x_adv=x + self.by)


def brightness(x: torch.Tensor) -> torch.Tensor:
    """Class 1 where the mean is above one half."""
    mean = x.flatten(1).mean(dim=1)
    return torch.stack([0.5 - mean, mean - 0.5], dim=1)


GREY = torch.tensor([0.3, 0.45, 0.47, 0.6]).view(4, 1, 1, 1).expand(4, 1, 4, 4).clone()
DARK = torch.zeros(4, dtype=torch.long)


def test_a_break_counts_only_where_it_is_confirmed() -> None:
    attacks = {"near": Shift(by=0.04), "far": Shift(by=0.3), "out": Shift(by=0.75)}
    result = run_ensemble(brightness, GREY, DARK, norm="Linf", eps=0.1, attacks=attacks)
    assert result.broken_by == ("", "", "near", "clean")
    assert [int(flags.sum()) for flags in result.robust.values()] == [3, 2, 2, 2]
    assert torch.equal(result.x_adv[[0, 1, 3]], GREY[[0, 1, 3]])
    assert float(result.robust["clean"].double().mean()) == 0.75
    assert result.accuracy() == 0.5


def test_the_norm_is_checked_in_the_right_norm() -> None:
    attacks = {"near": Shift(by=0.04)}
    sizes = {eps: run_ensemble(brightness, GREY, DARK, norm="L2", eps=eps, attacks=attacks) for eps in (0.15, 0.17)}
    assert [int(result.robust["near"].sum()) for result in sizes.values()] == [3, 2]


def test_log_lines_are_those_people_grep() -> None:
    lines: list[str] = []
    model, x, labels = linear_task(count=20)
    run_ensemble(model, x, labels, norm="Linf", eps=0.05, attacks=small_budget("Linf", 0.05), log=lines.append)
    assert lines[0] == "initial accuracy: 100.00%"
    assert lines[1].startswith("apgd-ce - 1/4 - ")
    assert lines[1].endswith(" out of 20 successfully perturbed")
    after = [line for line in lines if line.startswith("robust accuracy after")]
    assert [line.split(":")[0] for line in after] == [
        f"robust accuracy after {name}" for name in ("APGD-CE", "APGD-T", "FAB-T", "SQUARE")
    ]
    assert after[0].endswith(" s)")
    assert "% (total time " in after[0]
    assert "max Linf perturbation: 0.05000" in lines
    assert lines[-2].startswith("robust accuracy: ")
    assert lines[-1].startswith("aa: ")


def test_the_largest_perturbation_is_that_of_any_attack() -> None:
    lines: list[str] = []
    attacks = {"far": Shift(by=0.04), "near": Shift(by=0.01)}
    run_ensemble(brightness, GREY, DARK, norm="Linf", eps=0.1, attacks=attacks, log=lines.append)
    assert "max Linf perturbation: 0.04000" in lines


def test_an_image_that_left_the_ball_counts_unattacked_and_with_no_perturbation() -> None:
    lines: list[str] = []
    attacks = {"outside": Shift(by=0.2), "near": Shift(by=0.01)}
    run_ensemble(brightness, GREY, DARK, norm="Linf", eps=0.1, attacks=attacks, log=lines.append)
    assert "max Linf perturbation: 0.01000" in lines


def test_breaks_by_a_hair_are_counted() -> None:
    """The margin of brightness is twice what an image's mean lies below one half."""
    x = torch.tensor([0.3, 0.46001, 0.4601, 0.47]).view(4, 1, 1, 1).expand(4, 1, 4, 4)
    result = run_ensemble(brightness, x, DARK, norm="Linf", eps=0.1, attacks={"near": Shift(by=0.04)})
    assert result.broken_by == ("", "near", "near", "near")
    assert result.facts["thin_breaks"] == 1


def test_chunks_are_reported_as_they_come() -> None:
    model, x, labels = linear_task(count=50)
    seen: dict[str, list[int]] = {}
    broken_in: dict[int, str] = {}

    def note(stage: Stage, finding: Finding) -> None:
        assert finding.x_adv is not None
        assert len(finding.rows) == len(finding.broken) == len(finding.x_adv) <= 20
        seen.setdefault(stage.name, []).extend(finding.rows.tolist())
        broken_in.update({int(row): stage.name for row in finding.rows[finding.broken]})

    def ended(stage: Stage, outcome: Outcome) -> None:
        assert list(seen) == list(outcome.after)

    attacks = small_budget("Linf", 0.05)
    stages = [Stage(name, attack) for name, attack in attacks.items()]
    with opened(model, x, labels, Threat("Linf", 0.05), 20, stages) as (subject, _):
        outcome = run_stages(subject, stages, subject.correct, Parts(), note, ended)
    assert seen["apgd-ce"] == list(range(50))
    assert seen["apgd-t"] == outcome.after["apgd-ce"].nonzero()[:, 0].tolist()
    result = run_ensemble(model, x, labels, norm="Linf", eps=0.05, attacks=attacks, batch_size=20)
    assert [broken_in.get(index, "") for index in range(50)] == list(result.broken_by)


@dataclass(frozen=True, kw_only=True)
class Watched(Attack):
    """Hands images back, and notes whose they are."""

    seen: list[int]

    def run(
        self,
        model: Classifier,
        x: torch.Tensor,
        labels: torch.Tensor,
        *,
        noise: Noise,
        trace: TraceLevel,
    ) -> AttackResult:
        assert isinstance(noise, KeyedNoise)
        self.seen.extend(noise.ids.tolist())
        return AttackResult(x_adv=x)


def test_a_second_look_is_at_a_few_survivors_by_the_seed() -> None:
    model, x, labels = linear_task(count=50)
    standing = torch.arange(50) % 2 > 0

    def looked(seed: int) -> list[int]:
        watched = Watched(seen=[])
        with opened(model, x, labels, Threat("Linf", 0.05, seed), 20) as (subject, _):
            found = recheck(subject, [Stage("watched", watched)], standing, 5)
        assert (found.survivors, found.examples, found.broken) == (25, 5, 0)
        return sorted(watched.seen)

    first, second, again = (looked(seed) for seed in (1, 2, 1))
    assert len(first) == len(second) == 5
    assert all(standing[[*first, *second]])
    assert first == again
    assert first != second
    assert [1, 3, 5, 7, 9] not in (first, second)


def same_verdicts(one: Found, other: Found, labels: torch.Tensor) -> None:
    """At most one may differ, and only where the margin is that of rounding."""
    for name, flags in one.robust.items():
        differ = (flags != other.robust[name]).nonzero()[:, 0]
        assert len(differ) <= 1, name
        broken = torch.where(flags[differ].view(-1, 1, 1, 1), other.x_adv[differ], one.x_adv[differ])
        if len(differ):
            margin = logit_margin(digits_model()(broken), labels[differ])
            assert float(margin.abs().max()) < 1e-4, name


@pytest.mark.parametrize("count", [8, pytest.param(120, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.16), ("L2", 0.7)])
def test_verdicts_do_not_depend_on_batch_size_or_shards(norm: Norm, eps: float, count: int) -> None:
    model, (x, labels) = digits_model(), digits_test()
    x, labels = x[:count], labels[:count]
    attacks: dict[str, Attack] = {
        "apgd-ce": APGD(norm=norm, eps=eps, num_steps=12),
        "apgd-t": APGD(norm=norm, eps=eps, num_steps=12, loss="dlr_targeted"),
        "fab-t": FAB(norm=norm, eps=eps, num_steps=8),
        "square": Square(norm=norm, eps=eps, num_queries=60),
    }
    whole = run_ensemble(model, x, labels, norm=norm, eps=eps, attacks=attacks, batch_size=360)
    for cap in (1, 7, 64):
        capped = run_ensemble(model, x, labels, norm=norm, eps=eps, attacks=attacks, batch_size=cap)
        same_verdicts(whole, capped, labels)
    for shards in (2, 5):
        joined = dataclasses.replace(
            whole, x_adv=whole.x_adv.clone(), robust={name: flags.clone() for name, flags in whole.robust.items()}
        )
        for index in range(shards):
            ids = torch.arange(index, count, shards)
            part = run_ensemble(model, x[ids], labels[ids], norm=norm, eps=eps, attacks=attacks, ids=ids)
            joined.x_adv[ids] = part.x_adv
            for name, flags in part.robust.items():
                joined.robust[name][ids] = flags
        same_verdicts(whole, joined, labels)


def test_a_shard_draws_what_the_whole_set_would() -> None:
    model, (x, labels) = digits_model(), digits_test()
    attacks = {"square": Square(eps=0.16, num_queries=100)}
    whole = run_ensemble(model, x[:60], labels[:60], norm="Linf", eps=0.16, attacks=attacks)
    part = run_ensemble(
        model, x[30:60], labels[30:60], norm="Linf", eps=0.16, attacks=attacks, ids=torch.arange(30, 60)
    )
    assert torch.equal(whole.robust["square"][30:], part.robust["square"])
    torch.testing.assert_close(whole.x_adv[30:], part.x_adv)
    assert not torch.equal(whole.x_adv[:30], part.x_adv)


@pytest.mark.parametrize("classes", [2, 3, 4, 9, 10, 100])
def test_any_number_of_classes_runs_end_to_end(classes: int) -> None:
    model, x, labels = linear_task(classes=classes, count=30)
    distance = model.distance(x, labels, "Linf")
    eps = float(distance.median()) * 0.98
    if not 0 < eps <= 0.2:
        eps = 0.1
    result = run_ensemble(model, x, labels, norm="Linf", eps=eps, attacks=small_budget("Linf", eps))
    clear = (distance - eps).abs() > 0.02 * eps
    assert torch.equal(result.robust["square"][clear], (distance > eps)[clear])
    assert any("classes" in line for line in result.warnings) == (classes < 10)


@pytest.mark.parametrize(("classes", "is_standard"), [(2, False), (3, False), (4, True)])
def test_few_classes_are_not_called_standard(classes: int, is_standard: bool) -> None:
    model, x, labels = linear_task(classes=classes, count=2)
    result = run_ensemble(model, x, labels, norm="Linf", eps=0.2)
    assert result.facts["is_standard"] == is_standard
    assert ("logit margin" in result.facts.get("label", "")) != is_standard
    assert any("too few for the targeted DLR loss" in line for line in result.warnings) != is_standard


def test_another_version_is_not_standard() -> None:
    model, x, labels = linear_task(count=4)
    rand = run_ensemble(model, x, labels, norm="Linf", eps=0.05, attacks="aa-rand")
    assert list(rand.robust) == ["clean", "apgd-ce", "apgd-dlr"]
    assert not rand.facts["is_standard"]
    once = run_ensemble(model, x, labels, norm="Linf", eps=0.05, attacks="apgd-dlr")
    assert "is_standard" not in once.facts
    assert list(once.robust) == ["clean", "apgd-dlr"]
    with pytest.raises(UsageError, match="apgd-ce"):
        run_ensemble(model, x, labels, norm="Linf", eps=0.05, attacks="apgd-cee")


def test_budgets_are_those_of_the_authors() -> None:
    assert VERSIONS["standard"] == ("apgd-ce", "apgd-t", "fab-t", "square")
    assert VERSIONS["plus"] == ("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t")
    assert build_attack("apgd-t", "L2", 0.5) == APGD(
        norm="L2", eps=0.5, num_steps=100, loss="dlr_targeted", num_targets=9, restarts=1, rho=0.75, eot=1
    )
    assert build_attack("fab-t", "L2", 0.5, "plus") == FAB(
        norm="L2", eps=0.5, num_steps=100, num_targets=9, restarts=1, alpha_max=0.1, eta=1.05, beta=0.9
    )
    assert build_attack("fab", "L2", 0.5, "plus") == FAB(norm="L2", eps=0.5, targeted=False, restarts=5)
    assert build_attack("square", "L2", 0.5) == Square(norm="L2", eps=0.5, num_queries=5000, p_init=0.8)


class Noisy(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 0.1 * torch.randn(len(x), len(self.bias))


class Soft(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).softmax(dim=1)


class Flat(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.mul(255).round().div(255))


class Purifier(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            torch.autograd.grad(super().forward(inner).sum(), inner)
        return super().forward(x)


@pytest.mark.parametrize(
    ("kind", "words"), [(Noisy, "random"), (Soft, "probabilities"), (Flat, "zero ce gradient"), (Purifier, "dynamic")]
)
def test_a_suspicious_model_is_warned_about(kind: type[Linear], words: str) -> None:
    model, x = kind(16, 10, 0), torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(5))
    attacks = {"apgd-ce": APGD(eps=0.02, num_steps=2)}
    result = run_ensemble(model, x, model(x).argmax(dim=1), norm="Linf", eps=0.02, attacks=attacks)
    assert any(words in line for line in result.warnings)


def test_square_stronger_than_gradients_is_warned_about() -> None:
    model, x, labels = linear_task(count=40)

    def rounded(images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(images.mul(255).round().div(255))
        return logits

    attacks = {"apgd-ce": APGD(eps=0.15, num_steps=3), "square": Square(eps=0.15, num_queries=100)}
    result = run_ensemble(rounded, x, labels, norm="Linf", eps=0.15, attacks=attacks)
    assert any("Square" in line for line in result.warnings)
    clean = run_ensemble(model, x, labels, norm="Linf", eps=0.15, attacks=attacks)
    assert clean.warnings == []


def test_wrong_use_is_refused_with_the_fix() -> None:
    model, x, labels = linear_task(count=4)
    with pytest.raises(UsageError, match=r"\[0, 1\]"):
        run_ensemble(model, x * 255, labels, norm="Linf", eps=0.1, attacks="square")
    with pytest.raises(UsageError, match="float"):
        run_ensemble(model.half(), x, labels, norm="Linf", eps=0.1, attacks="square")
    with pytest.raises(UsageError, match="NaN"):
        run_ensemble(
            lambda images: torch.full((len(images), 10), torch.nan), x, labels, norm="Linf", eps=0.1, attacks="square"
        )
    with pytest.raises(UsageError, match=r"0\.\.1"):
        run_ensemble(brightness, x, labels + 5, norm="Linf", eps=0.1, attacks="square")
    with pytest.raises(UsageError, match="batch_size"):
        run_ensemble(brightness, x, labels % 2, norm="Linf", eps=0.1, batch_size=0, attacks="square")
    with pytest.raises(UsageError, match="at least one"):
        run_ensemble(brightness, x[:0], labels[:0], norm="Linf", eps=0.1, attacks="square")


def test_bfloat16_weights_are_judged_in_float32() -> None:
    model, x, labels = linear_task(count=10)
    result = run_ensemble(model.bfloat16(), x, labels, norm="Linf", eps=0.02, attacks="apgd-ce")
    assert "bfloat16" in result.warnings[-1]
    assert model.weight.dtype == torch.bfloat16


def test_the_model_is_judged_in_eval_mode_and_left_as_found() -> None:
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.9), torch.nn.Linear(16, 4)
    )
    x = torch.rand(10, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    model.eval()
    labels = model(x).argmax(dim=1)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kept = x.clone()
    result = run_ensemble(model, x, labels, norm="Linf", eps=0.05, attacks=small_budget("Linf", 0.05))
    assert bool(result.robust["clean"].all())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(x, kept)


def test_nothing_is_left_to_attack_where_all_is_misclassified() -> None:
    model, x, labels = linear_task(count=6)
    result = run_ensemble(model, x, (labels + 1) % 10, norm="Linf", eps=0.1)
    assert set(result.broken_by) == {"clean"}
    assert torch.equal(result.x_adv, x)
    assert list(result.robust) == ["clean", *VERSIONS["standard"]]


@pytest.mark.slow
def test_plus_runs_and_finds_no_less_than_standard() -> None:
    model, (x, labels) = digits_model(), digits_test()
    plus = run_ensemble(model, x[:30], labels[:30], norm="Linf", eps=0.16, attacks="aa-plus")
    standard = run_ensemble(model, x[:30], labels[:30], norm="Linf", eps=0.16)
    assert list(plus.robust)[1:] == list(VERSIONS["plus"])
    assert not plus.facts["is_standard"]
    assert int(plus.robust["fab-t"].sum()) <= int(standard.robust["square"].sum()) + 1
