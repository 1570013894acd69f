"""Plain evaluation: named attacks, batch sizes, errors."""

import json
import math

import pytest
import torch
from blobs import blobs
from strategies import images, tiny_net
from torch import nn

from probmargin import api as pm
from probmargin.core.errors import UsageError
from probmargin.evaluation.checks import output_spread
from probmargin.evaluation.evaluate import EvaluationSettings, correct_under
from probmargin.evaluation.protocol import build_attack
from probmargin.evaluation.room import Room


class Halves(nn.Module):
    """Upper against lower half: an image is robust at eps iff its halves' means differ by more than 2 eps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 40.0 * torch.stack([x[:, :, :2].mean(dim=(1, 2, 3)), x[:, :, 2:].mean(dim=(1, 2, 3))], dim=1)


@pytest.mark.parametrize("name", ["fgsm", "pgd-20", "pgd-100", "cw", "cw-100"])
@pytest.mark.parametrize("eps", [0.02, 0.12, 0.2])
def test_accuracy_of_a_linear_model_has_a_closed_form(name: str, eps: float) -> None:
    data = blobs(200)
    x, labels = data.test.floats(), data.test.labels
    gap = x[:, :, :2].mean(dim=(1, 2, 3)) - x[:, :, 2:].mean(dim=(1, 2, 3))
    margin = torch.where(labels == 0, gap, -gap)
    result = pm.evaluate(Halves(), (x, labels), ["nat", name], eps=eps)
    assert result["nat"]["accuracy"] == pytest.approx(float((margin > 0).float().mean()))
    assert result[name]["robust_accuracy"] == pytest.approx(float((margin > 2 * eps).float().mean()), abs=0.011)


def test_results_carry_their_protocol() -> None:
    x, labels = images(1, 9, size=8)
    result = pm.evaluate(tiny_net(1), (x, labels), ["nat", "pgd-20", "cw"], eps=8 / 255, seed=3)
    assert (result["norm"], result["eps"], result["num_examples"], result["seed"]) == ("Linf", 8 / 255, 9, 3)
    attack = result["pgd-20"]["attack"]
    assert attack["step_size"] == pytest.approx(0.003)
    assert (attack["num_steps"], attack["start"], attack["loss"]) == (20, "uniform_eps", "ce")
    assert result["cw"]["attack"]["loss"] == "cw"
    low, high = result["pgd-20"]["interval"]
    assert low <= result["pgd-20"]["robust_accuracy"] <= high
    assert len(result["pgd-20"]["correct"]) == 9
    assert len(result["nat"]["per_class"]) == 3


@pytest.mark.parametrize("batch_size", [1, 2, 7, 40])
def test_verdicts_do_not_depend_on_the_batch_size(batch_size: int) -> None:
    x, labels = images(2, 40, size=8)
    attack = build_attack("pgd-20", "Linf", 0.05)
    whole = correct_under(tiny_net(2).eval(), attack, x, labels, EvaluationSettings(eps=0.05))
    parts = correct_under(tiny_net(2).eval(), attack, x, labels, EvaluationSettings(eps=0.05, batch_size=batch_size))
    assert torch.equal(whole, parts)


class Counting(nn.Module):
    """Gives another answer with another number of images, as kernels do in the last digit."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        upper = x[:, :, :2].mean(dim=(1, 2, 3))
        return torch.stack([upper, upper + (-1 if len(x) == 64 else 1)], dim=1)


@pytest.mark.parametrize("batch_size", [64, 65, 200, None])
def test_a_verdict_does_not_depend_on_how_many_images_are_judged_beside_it(batch_size: int | None) -> None:
    x, _ = images(4, 70, size=8)
    found = pm.evaluate(Counting(), (x, torch.zeros(70).long()), ["nat", "pgd-1"], batch_size=batch_size)
    # Blocks of 64, the last one filled, and so always class 0.
    assert found["nat"]["accuracy"] == 1.0
    assert found["pgd-1"]["correct"] == "1" * 70


def test_blocks_shrink_where_memory_does_not_allow_them() -> None:
    assert Room(4, 4).block == 4, "a batch size caps memory"
    room, sizes = Room(200, 200), []

    def model(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        if len(x) > 20:
            raise torch.OutOfMemoryError("too many")
        return x.flatten(1)

    x = torch.rand(21, 1, 2, 2)
    assert torch.equal(room.logits(model, x), x.flatten(1))
    assert sizes == [64, 32, 16, 16]
    assert room.block == 16


def test_what_rounding_leaves_outside_the_unit_interval_is_fine() -> None:
    """A normalisation and back leaves pixels at -3e-8; they are brought back, so that attacks stay in [0, 1]."""
    data = blobs(20)
    x, labels = data.test.floats().clone(), data.test.labels
    whole = pm.evaluate(Halves(), (x.clamp(0, 1), labels), ["nat", "pgd-20"], eps=0.05)
    x[0, 0, 0, 0], x[1, 0, 0, 0] = -3e-8, 1 + 1.2e-7
    near = pm.evaluate(Halves(), (x, labels), ["nat", "pgd-20"], eps=0.05)
    assert near["pgd-20"]["correct"] == whole["pgd-20"]["correct"]
    for attack in (
        pm.attack("pgd", eps=0.05, step_size=0.025, num_steps=2),
        pm.attack("square", eps=0.05, num_queries=3),
    ):
        x_adv = attack(Halves(), x, labels).x_adv
        assert 0 <= float(x_adv.min()) <= float(x_adv.max()) <= 1
    x[0, 0, 0, 0] = -1e-4
    with pytest.raises(UsageError, match="clip them"):
        pm.evaluate(Halves(), (x, labels), ["nat"])
    with pytest.raises(UsageError, match=r"takes images in \[0, 1\]"):
        pm.attack("pgd", eps=0.05, step_size=0.025, num_steps=2)(Halves(), x, labels)


def test_the_same_protocol_has_the_same_hash_whatever_the_model() -> None:
    x, labels = images(1, 9, size=8)

    def hashes(seed: int, eps: float = 8 / 255) -> dict[str, str]:
        found = pm.evaluate(tiny_net(seed), (x, labels), ["nat", "pgd-20", "cw"], eps=eps)
        return {name: found[name]["protocol_hash"] for name in ("nat", "pgd-20", "cw")}

    first, other, wider = hashes(1), hashes(2), hashes(1, eps=0.1)
    fewer = pm.evaluate(tiny_net(1), (x[:5], labels[:5]), ["pgd-20"], eps=8 / 255)["pgd-20"]["protocol_hash"]
    seeded = pm.evaluate(tiny_net(1), (x, labels), ["pgd-20"], eps=8 / 255, seed=5)["pgd-20"]["protocol_hash"]
    assert len({first["pgd-20"], fewer, seeded}) == 3
    assert first == other
    assert len(set(first.values())) == 3
    assert first["nat"] == wider["nat"]
    assert first["pgd-20"] != wider["pgd-20"]


def test_any_two_passes_that_differ_make_a_model_random() -> None:
    turns = iter([0.0, 0.9, -0.9, 0.0, 0.0])

    def call(x: torch.Tensor) -> torch.Tensor:
        angle = torch.tensor(next(turns))
        return torch.stack([angle.cos(), angle.sin()]).repeat(len(x), 1)

    # From the first pass they are 2 sin(0.45) away, from each other 2 sin(0.9).
    assert output_spread(call, torch.zeros(2, 1, 1, 1)) == pytest.approx(2 * math.sin(0.9), rel=1e-5)


def test_the_model_is_judged_in_eval_mode_and_given_back_as_it_was() -> None:
    x, labels = images(3, 6, size=8)
    model = tiny_net(3).train()
    modes = set()
    model.bn.register_forward_hook(lambda module, inputs, output: modes.add(module.training))
    pm.evaluate(model, (x, labels), ["nat", "pgd-5"])
    assert modes == {False}
    assert model.training


def test_a_larger_ball_is_never_safer() -> None:
    data = blobs(100)
    shares = [
        pm.evaluate(Halves(), (data.test.floats(), data.test.labels), ["pgd-20"], eps=eps)["pgd-20"]["robust_accuracy"]
        for eps in (0.01, 0.1, 0.3)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == 0


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_both_norms(norm: str) -> None:
    x, labels = images(4, 6, size=8)
    result = pm.evaluate(tiny_net(4), (x, labels), ["pgd-5"], norm=norm, eps=0.5)  # type: ignore[arg-type]
    assert result["norm"] == norm


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attacks": ["pgd20"]}, "did you mean pgd-20"),
        ({"eps": 8.0}, "write 8/255"),
        ({"eps": 0.0}, "the attack nat"),
        ({"data": (torch.full((2, 1, 8, 8), torch.nan), torch.tensor([0, 1]))}, "NaN"),
        (
            {"data": (torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1]))},
            "inside the model",
        ),
        ({"data": (torch.rand(2, 1, 8, 8), torch.tensor([0, 7]))}, "3 classes"),
        ({"device": "tpu"}, "cpu or cuda"),
    ],
)
def test_wrong_use_is_answered_in_one_line(change: dict[str, object], words: str) -> None:
    x, labels = images(5, 4, size=8)
    arguments = {"data": (x, labels), "attacks": ["nat"], **change}
    with pytest.raises(UsageError) as caught:
        pm.evaluate(tiny_net(), **arguments)  # type: ignore[arg-type]
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


class Breaks(nn.Module):
    """Right of all images as they stand; beside them, some logits are what is given."""

    def __init__(self, clean: torch.Tensor, labels: torch.Tensor, beside: list[float]) -> None:
        super().__init__()
        self.clean, self.beside = clean, torch.tensor(beside)
        self.right = 4.0 * nn.functional.one_hot(labels, 3).float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        apart = (x[:, None] - self.clean).abs().flatten(2).amax(dim=2)
        logits = self.right[apart.argmin(dim=1)] + 0.0 * x.flatten(1).sum(dim=1, keepdim=True)
        return torch.where((apart.amin(dim=1) > 1e-6)[:, None], self.beside.expand_as(logits), logits)


@pytest.mark.parametrize(
    ("beside", "broken"),
    [
        ([math.nan] * 3, [True, True, True]),
        ([0.0, math.nan, 0.0], [True, True, True]),
        ([math.inf, math.inf, 0.0], [True, True, True]),
        ([math.inf, 0.0, 0.0], [False, True, True]),
    ],
)
def test_no_answer_is_no_robustness(beside: list[float], broken: list[bool]) -> None:
    labels = torch.arange(3)
    x = torch.tensor([0.1, 0.5, 0.9]).view(3, 1, 1, 1).expand(3, 1, 2, 2).contiguous()
    result = pm.evaluate(Breaks(x, labels, beside), (x, labels), ["nat", "pgd-2"], eps=0.05)
    assert result["nat"]["correct"] == "111"
    assert result["pgd-2"]["correct"] == "".join("0" if fell else "1" for fell in broken)
    json.dumps(result, allow_nan=False)
    confusion = torch.tensor(result["worst_case"]["confusion"])
    assert int(confusion.diag().sum()) == 3 - sum(broken)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_clean_images_without_an_answer_are_refused(bad: float) -> None:
    x, labels = torch.rand(4, 1, 2, 2), torch.arange(4) % 3
    model = nn.Sequential(nn.Flatten(), last := nn.Linear(4, 3))
    nn.init.constant_(last.bias, bad)
    with pytest.raises(UsageError, match="NaN or several infinite logits for 4 of 4 clean images"):
        pm.evaluate(model, (x, labels), ["nat"])


def test_a_gradient_that_vanishes_is_said_where_pgd_alone_judges() -> None:
    torch.manual_seed(0)
    x, labels = images(2, 8, size=8)
    model = tiny_net().eval()
    labels = model(x).argmax(dim=1)
    scaled = nn.Sequential(model, scale := nn.Linear(3, 3, bias=False))
    nn.init.eye_(scale.weight)
    found = {}
    for factor in (1.0, 1e6):
        scale.weight.data *= factor
        found[factor] = {
            name: pm.evaluate(scaled, (x, labels), [name], eps=0.01)["warnings"] for name in ("pgd-2", "cw")
        }
    assert found[1.0] == {"pgd-2": [], "cw": []}
    assert found[1e6]["cw"] == []
    assert "zero ce gradient at the start: gradients may be masked" in found[1e6]["pgd-2"][0]


def test_a_label_that_comes_third_has_no_dlr_gradient_on_any_model_and_is_not_warned_of() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(20, 1, 4, 4, generator=draw)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
    ranks = model(x).argsort(dim=1, descending=True)
    labels = torch.where(torch.arange(20) < 5, ranks[:, 2], ranks[:, 0])
    for name in ("apgd-dlr", "aa-rand"):
        assert pm.evaluate(model, (x, labels), [name], eps=0.01)["warnings"] == []
    stuck = nn.Sequential(model, Steps())
    assert "20 of 20" not in str(warned := pm.evaluate(stuck, (x, labels), ["apgd-dlr"], eps=0.01)["warnings"])
    assert "images have a zero dlr gradient at the start: gradients may be masked" in str(warned)
    wrong = pm.evaluate(nn.Sequential(model, NotEmpty()), (x, ranks[:, 2]), ["apgd-dlr"], eps=0.01)
    assert wrong["warnings"] == []


class Steps(nn.Module):
    """Logits in steps, whose gradient is zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 50).round() + 0 * x


class NotEmpty(nn.Module):
    """Fails on no images, as networks do that reshape."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(len(x), -1)
