"""A gradient that is no number must not pass for robustness: attacks go on without it, and it is said."""

import json
from typing import Any

import pytest
import torch
from autoattack_helpers import Linear, linear_task, run_ensemble
from masks import NoisyInput

import probmargin as pm
from probmargin.attacks.apgd import APGD
from probmargin.attacks.attack import Attack
from probmargin.attacks.balls import finite_or_zero
from probmargin.attacks.fab import FAB
from probmargin.attacks.lm_pgd import LMPGD
from probmargin.attacks.pgd import PGD, EarlyStopPGD
from probmargin.core.noise import KeyedNoise
from probmargin.evaluation.audit import audit, lines
from probmargin.evaluation.search import inside_threat_model

EPS = {"Linf": 0.2, "L2": 0.7}


class Root(Linear):
    """Square roots of pixels: their slope is infinite at 0, and they are no number below it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.sqrt())


class Overflowing(Linear):
    """Finite on the images' side of 0.75, not a number beyond it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + 0.0 * (0.75 - x.amax(dim=(1, 2, 3), keepdim=True)).log())


class Soft(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).softmax(dim=1)


def dark(count: int = 24) -> tuple[Root, torch.Tensor, torch.Tensor]:
    """Images with black corners."""
    x = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(3))
    x[:, :, :2, :2] = 0.0
    model = Root(16, 10, 0)
    return model, x, model(x).argmax(dim=1)


@pytest.mark.parametrize("norm", ["Linf", "L2"])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (PGD, {"step_size": 0.1}),
        (PGD, {"step_size": 0.1, "loss": "cw", "start": "uniform_eps", "clamp_start": True}),
        (EarlyStopPGD, {"step_size": 0.1, "step_noise": 0.001, "tau": 1}),
        (LMPGD, {"num_steps": 5, "step_max": 0.2, "num_grid": 3}),
        (APGD, {"num_steps": 10}),
        (APGD, {"num_steps": 10, "loss": "dlr_targeted", "eot": 2}),
        (FAB, {"num_steps": 20}),
        (FAB, {"num_steps": 20, "targeted": False}),
    ],
)
def test_an_attack_goes_on_where_some_of_a_gradient_is_no_number(
    kind: type[Attack], settings: dict[str, Any], norm: Any
) -> None:
    model, x, labels = dark()
    attack = kind(norm=norm, eps=EPS[norm], **settings)  # type: ignore[call-arg]
    x_adv = attack(model, x, labels, noise=KeyedNoise(0, torch.arange(len(x)))).x_adv
    assert bool(inside_threat_model(x_adv, x, norm, EPS[norm]).all())
    assert int((model(x_adv).argmax(dim=1) != labels).sum()) >= len(x) // 3


def test_a_finite_gradient_is_left_as_it_is() -> None:
    gradient = torch.tensor([[-0.0, 0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, 0.1]])
    assert torch.equal(finite_or_zero(gradient).view(torch.int32), gradient.view(torch.int32))


@pytest.mark.parametrize("attacks", ["pgd-5", "cw-5", "fgsm", "nat,pgd-5,apgd-ce", "fab-t"])
def test_it_is_said_of_how_many_images(attacks: str) -> None:
    model, x, labels = dark(12)
    x[:4] = x[:4].clamp(min=0.5)
    labels = model(x).argmax(dim=1)
    result = pm.evaluate(model, (x, labels), attacks, eps=0.1)
    assert [line[:57] for line in result["warnings"]] == ["the model's gradient is not a number at 8 of 12 images: a"]
    assert pm.evaluate(model, (x[:4], labels[:4]), attacks, eps=0.1)["warnings"] == []


def test_an_attack_without_gradients_does_not_care() -> None:
    model, x, labels = dark(6)
    assert run_ensemble(model, x, labels, norm="Linf", eps=0.01, attacks="square").warnings == []


def test_an_audit_warns_of_it() -> None:
    model, x, labels = dark()
    result = audit(model.eval(), x, labels, "L2", 0.7)
    check = next(check for check in result["checks"] if check["name"] == "zero_gradients")
    assert check["verdict"] == "warn"
    assert check["value"] > 0.9
    assert result["curves"]["restarts"][0] < 0.7


def test_an_audit_with_a_loss_that_is_no_number_is_written() -> None:
    _, x, labels = linear_task(count=8)
    model = Overflowing(16, 10, 0).eval()
    result = audit(model, x, labels, "Linf", 0.2)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    found = {check["name"]: check for check in result["checks"]}["flat_loss"]
    assert (found["value"], found["verdict"]) == (None, "warn")
    assert any("not a number (at most 0.75)" in line for line in lines(result))


@pytest.mark.parametrize(("kind", "words"), [("soft", "probabilities"), ("random", "output is random: judge it by aa")])
def test_a_number_of_pgd_comes_with_what_makes_it_doubtful(kind: str, words: str) -> None:
    honest, x, labels = linear_task(count=12)
    model = Soft(16, 10, 0) if kind == "soft" else NoisyInput(honest)
    assert words in " ".join(pm.evaluate(model, (x, labels), ["nat", "pgd-2"])["warnings"])
    assert pm.evaluate(honest, (x, labels), ["nat", "pgd-2"])["warnings"] == []
    assert pm.evaluate(model, (x, labels), "nat")["warnings"] == []
