"""The audit: what each check sees, on models whose fault is known."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from autoattack_helpers import Linear, digits_model, digits_test, linear_task
from masks import LowTemperature, NoisyInput, Quantised
from torch import nn

from probmargin.attacks.attack import Attack
from probmargin.attacks.balls import Norm
from probmargin.core.batch import AttackResult, TraceLevel
from probmargin.core.errors import UsageError
from probmargin.core.noise import Noise
from probmargin.core.types import Classifier
from probmargin.evaluation import audit as audit_module
from probmargin.evaluation.audit import NUM_NOISES, STARTS, Bench, audit, lines
from probmargin.evaluation.audit_rules import OF_IMAGES, RULES, Check
from probmargin.evaluation.evaluate import evaluate
from probmargin.evaluation.room import find_room
from probmargin.evaluation.run_audit import audit_subject
from probmargin.evaluation.subject import EvaluationRequest
from probmargin.runs.run import open_run

EPS = 0.04


class Soft(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).softmax(dim=1)


def by_name(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in result["checks"]}


def warned(result: dict[str, Any]) -> set[str]:
    return {check["name"] for check in result["checks"] if check["verdict"] == "warn"}


def test_an_honest_model_passes_and_every_check_is_there() -> None:
    model, x, labels = linear_task(count=30)
    result = audit(model.eval(), x, labels, "Linf", EPS)
    assert result["verdict"] == "pass", lines(result)
    assert list(by_name(result)) == list(RULES)
    for check in result["checks"]:
        assert {"name", "measures", "value", "threshold", "verdict", "advice"} <= set(check)
    assert by_name(result)["transfer"]["verdict"] == "not run"
    assert "no surrogate" in by_name(result)["transfer"]["reason"]
    shares = result["curves"]["restarts"]
    assert len(shares) == 5
    assert shares == sorted(shares, reverse=True)
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (Quantised, {"zero_gradients", "flat_loss", "black_box"}),
        (LowTemperature, {"zero_gradients", "logit_scale"}),
        (NoisyInput, {"stochastic_output"}),
    ],
)
def test_a_masked_model_is_warned_about(mask: Callable[[nn.Module], nn.Module], expected: set[str]) -> None:
    model, (x, labels) = digits_model(), digits_test()
    result = audit(mask(model).eval(), x[:40], labels[:40], "Linf", 0.16)
    assert expected <= warned(result), lines(result)
    assert any("warn" in line for line in lines(result))


@pytest.mark.parametrize(
    ("norm", "eps"),
    [
        ("L2", 8 / 255),
        pytest.param("L2", 1e-4, marks=pytest.mark.slow),
        pytest.param("Linf", 1e-3, marks=pytest.mark.slow),
    ],
)
def test_a_small_ball_is_no_flat_loss(norm: Norm, eps: float) -> None:
    """There the clean loss is nearly all of the loss after any number of steps."""
    model, (x, labels) = digits_model(), digits_test()
    for network, verdict in ((model, "pass"), (Quantised(model).eval(), "warn")):
        assert by_name(audit(network, x[:20], labels[:20], norm, eps))["flat_loss"]["verdict"] == verdict


@pytest.mark.parametrize(
    ("losses", "value"),
    [((1.0, 1.1, 1.5), 0.2), ((1.0, 0.9, 1.5), 0.0), ((1.0, 1.0, 1.0), 1.0), ((1.0, 0.9, 0.8), 1.0)],
)
def test_flatness_is_of_the_rise(losses: tuple[float, float, float], value: float) -> None:
    model, x, labels = linear_task(count=4)
    bench = Bench(model, x, labels, "Linf", EPS, 0, find_room(model, x, None))
    bench.loss = dict(zip(("nat", "pgd-1", "pgd-100"), losses, strict=True))
    assert bench.flatness() == pytest.approx(value)
    bench.loss["pgd-100"] = math.nan
    assert math.isnan(bench.flatness())


@pytest.mark.slow
def test_transfer_sees_through_a_mask() -> None:
    model, (x, labels) = digits_model(), digits_test()
    result = audit(Quantised(model).eval(), x[:40], labels[:40], "Linf", 0.16, surrogate=model)
    assert "transfer" in warned(result)
    honest = audit(model, x[:40], labels[:40], "Linf", 0.16, surrogate=model)
    assert by_name(honest)["transfer"]["verdict"] == "pass"


def test_what_needs_no_attack() -> None:
    _, x, labels = linear_task(count=10)
    soft = Soft(16, 10, 0)
    assert "softmax_output" in warned(audit(soft.eval(), x, labels, "L2", 0.1))
    assert "train_mode" in warned(audit(soft.train(), x, labels, "L2", 0.1))
    assert soft.training
    outside = audit(soft.eval(), 4 * x - 2, labels, "Linf", 0.1)
    assert warned(outside) == {"normalised_inputs"}
    assert {check["verdict"] for check in outside["checks"][2:]} == {"not run"}


def test_a_model_that_names_one_class_is_warned_about() -> None:
    class Says(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([x.mean(dim=(1, 2, 3)), 2 + x.mean(dim=(1, 2, 3))], 1)

    x, labels = torch.rand(20, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.ones(20, dtype=torch.long)
    labels[0] = 0
    assert by_name(audit(Says(), x, labels, "Linf", 0.1))["one_answer"]["verdict"] == "warn"
    assert by_name(audit(Says(), x[1:], labels[1:], "Linf", 0.1))["one_answer"]["verdict"] == "pass"


class Company(Linear):
    """Its answer for an image depends on the images beside it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = super().forward(x)
        return logits + logits.mean(dim=0) - logits.mean()


class Optimising(Linear):
    """A defence that follows a gradient of its own before it answers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            point = x.detach().clone().requires_grad_()
            (slope,) = torch.autograd.grad(super().forward(point).logsumexp(dim=1).sum(), point)
        return super().forward(x - 1e-3 * slope)


@pytest.mark.parametrize(
    ("model", "check", "warning"),
    [
        (Company, "batch_dependence", "the model's answer for an image depends on the others in its batch"),
        (Optimising, "inner_gradients", "a dynamic defence needs an attack of its own"),
    ],
)
def test_what_an_image_has_for_company_or_a_pass_does_by_itself(
    model: Callable[[int, int, int], nn.Module], check: str, warning: str
) -> None:
    honest, x, labels = linear_task(count=10)
    strange = model(16, 10, 0).eval()
    for network, verdict in ((honest.eval(), "pass"), (strange, "warn")):
        assert by_name(audit(network, x, labels, "Linf", EPS))[check]["verdict"] == verdict
        found = evaluate(network, x, labels, attacks=["nat", "pgd-1"])["warnings"]
        assert any(warning in line for line in found) is (verdict == "warn")
    alone = audit(strange, x[:1], labels[:1], "Linf", EPS)
    assert by_name(alone)["batch_dependence"]["verdict"] == "pass", "an image by itself has no company"


def test_a_class_that_is_masked_is_no_dependence_on_the_batch() -> None:
    class Masked(Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits = super().forward(x)
            return torch.cat([logits, torch.full((len(x), 1), -torch.inf)], dim=1)

    _, x, labels = linear_task(count=10)
    masked = Masked(16, 10, 0).eval()
    assert not any("others in its batch" in line for line in evaluate(masked, x, labels, attacks=["nat"])["warnings"])
    checks = by_name(audit(masked, x, labels, "Linf", EPS))
    assert [checks[name]["verdict"] for name in ("stochastic_output", "batch_dependence")] == ["pass", "pass"]


def test_what_is_random_is_not_told_from_what_depends_on_the_batch() -> None:
    model, (x, labels) = digits_model(), digits_test()
    found = by_name(audit(NoisyInput(model).eval(), x[:10], labels[:10], "Linf", 0.16))["batch_dependence"]
    assert (found["verdict"], found["reason"]) == ("not run", "its output is random")
    noisy = evaluate(NoisyInput(model).eval(), x[:10], labels[:10], attacks=["nat"])
    assert not any("others in its batch" in line for line in noisy["warnings"])


def test_a_check_that_is_no_number_warns() -> None:
    assert Check("noise", float("nan")).verdict == "warn"
    assert Check("noise", RULES["noise"].threshold).verdict == "pass"
    assert Check("noise", None, "why").verdict == "not run"


def test_no_answer_to_an_attacked_image_is_a_break() -> None:
    x, labels = torch.rand(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64)

    def silent(x: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x), 3), torch.nan)

    bench = Bench(silent, x, labels, "Linf", EPS, 0, find_room(silent, x, None))
    assert bench.judge("pgd", x).tolist() == [False] * 4


@dataclass(frozen=True, kw_only=True)
class Somewhere(Attack):
    """Goes to a random point of a small ball."""

    def run(
        self, model: Classifier, x: torch.Tensor, labels: torch.Tensor, *, noise: Noise, trace: TraceLevel
    ) -> AttackResult:
        return AttackResult(x_adv=x + 0.01 * noise.uniform(tuple(x.shape[1:]), stream="somewhere"))


def test_every_start_and_every_noise_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, seen = Bench.judge, {}

    def noted(bench: Bench, name: str, x_adv: torch.Tensor, eps: float | None = None) -> torch.Tensor:
        seen[name] = x_adv
        return judge(bench, name, x_adv, eps)

    monkeypatch.setattr(Bench, "judge", noted)
    monkeypatch.setattr(audit_module, "build_attack", lambda *_: Somewhere())
    monkeypatch.setattr(audit_module, "BLACK_BOX_QUERIES", 2)
    model, x, labels = linear_task(count=2)
    audit(model.eval(), x, labels, "Linf", EPS)
    for names in (STARTS, [f"noise {number}" for number in range(NUM_NOISES)]):
        assert len(torch.stack([seen[name] for name in names]).unique(dim=0)) == len(names)


def test_what_is_wrong_as_it_stands_falls_to_no_attack() -> None:
    """Of four images the first is wrong as it stands, though not after PGD; Square breaks all but the last."""
    model, x, labels = linear_task(count=4)
    bench = Bench(model, x, labels, "Linf", EPS, 0, find_room(model, x, None))
    verdicts = {"nat": [0, 1, 1, 1], "pgd-20": [1, 1, 0, 1], "square": [0, 0, 0, 1]}
    bench.right = {name: torch.tensor(right) > 0 for name, right in verdicts.items()}
    assert bench.only(["square"], ["pgd-20"]) == 1 / 4
    bench.right |= dict.fromkeys(STARTS[1:], torch.ones(4) > 0)
    bench.loss = dict.fromkeys(("pgd-1", "pgd-20", "pgd-100"), 1.0)
    assert bench.curves()["restarts"] == [2 / 4] * 5


def test_advice_is_one_sentence() -> None:
    for rule in RULES.values():
        assert rule.advice.endswith(".")
        assert rule.advice.count(". ") == 0


def test_wrong_use_is_refused() -> None:
    model, x, labels = linear_task(count=4)
    with pytest.raises(UsageError, match="write 8/255"):
        audit(model, x, labels, "Linf", 8.0)


def test_a_run_is_audited_into_its_folder(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    said: list[str] = []
    request = EvaluationRequest(run=folder, num_examples=10, device="cpu")
    with pytest.raises(UsageError, match="has the weights of the model that is audited: name another model's run"):
        audit_subject(request, trained, said.append)
    other = shutil.copytree(trained, tmp_path / "other")
    for part in (other / "checkpoints").glob("state-0002.*"):
        part.unlink()
    result, path = audit_subject(request, other, said.append)
    assert path == folder / "audit.json"
    assert result["weights"] == open_run(folder).record["weights"], "which state it is of"
    assert json.loads(path.read_text(encoding="utf-8")) == result
    assert by_name(result)["transfer"]["value"] is not None
    assert said[-1].startswith(result["verdict"])


def test_a_network_the_command_built_is_not_blamed_for_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    (tmp_path / "own_audited.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    request = EvaluationRequest(model="own_audited:build", data="digits", eps="0.01", num_examples=5, device="cpu")
    result, path = audit_subject(request, None, lambda line: None)
    assert (by_name(result)["train_mode"]["verdict"], path) == ("pass", None)


def test_a_warning_by_one_image_says_so() -> None:
    """Of 20 images one is 5%, above most thresholds: an honest network trips one by luck."""
    assert Check("black_box", 1 / 20).plain(20)["advice"].endswith("It is 1 image of 20: judge more before that.")
    assert Check("black_box", 2 / 20).plain(20)["advice"] == RULES["black_box"].advice
    assert Check("black_box", 1 / 50).plain(50)["advice"] == RULES["black_box"].advice, "no warning"
    assert Check("flat_loss", 1.0).plain(1)["advice"] == RULES["flat_loss"].advice, "counts no images"
    assert set(OF_IMAGES) < set(RULES)
