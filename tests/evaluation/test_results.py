"""What an evaluation says: worst case per example, classes, confusion, margins, the label of an ensemble."""

import json

import numpy as np
import pytest
import torch
from autoattack_helpers import Linear, linear_task
from hypothesis import given, settings as example_settings, strategies as st
from strategies import images, tiny_net
from torch import nn

from probmargin import api as pm
from probmargin.core.losses import logit_margin, probabilistic_margin
from probmargin.evaluation.evaluate import EvaluationSettings, Keep, evaluate, judge
from probmargin.evaluation.search import inside_threat_model
from probmargin.evaluation.summary import closing_lines, summarize
from probmargin.evaluation.verdicts import EntryVerdicts, Verdicts, join, worst_case


@pytest.mark.parametrize("classes", [2, 3, 4, 9, 10, 100])
def test_autoattack_of_any_number_of_classes_is_the_closed_form(classes: int) -> None:
    model, x, labels = linear_task(classes=classes, count=10)
    distance = model.distance(x, labels, "Linf")
    eps = float(distance.median()) * 1.05
    eps = eps if eps <= 0.2 else 0.1
    labels = labels.clone()
    labels[0] = (labels[0] + 1) % classes
    result = pm.evaluate(model, (x, labels), ["nat", "aa"], eps=eps)
    robust = distance > eps
    robust[0] = False
    assert result["aa"]["correct"] == "".join("1" if right else "0" for right in robust)
    assert result["nat"]["accuracy"] == 0.9
    assert result["aa"]["is_standard"] == (classes >= 4)
    assert ("label" in result["aa"]) == (classes < 4)
    assert list(result["aa"]["steps"]) == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert len(result["aa"]["per_class"]) == classes


def test_results_are_the_json_that_was_agreed() -> None:
    model, x, labels = linear_task(count=12)
    result = evaluate(
        model, x, labels, attacks=["nat", "fgsm", "pgd-3x2", "apgd-ce"], settings=EvaluationSettings(eps=0.05, seed=2)
    )
    again = json.loads(json.dumps(result, allow_nan=False))
    assert again == result
    assert {"protocol", "norm", "eps", "num_examples", "seed", "worst_case", "margins", "warnings"} <= set(result)
    assert list(result["pgd-3x2"]["steps"]) == ["restart-1", "restart-2"]
    assert result["pgd-3x2"]["attack"]["restarts"] == 2
    low, high = result["worst_case"]["interval"]
    assert low <= result["worst_case"]["robust_accuracy"] <= high
    worst = result["worst_case"]["worst_class"]
    shares = [share for share in result["worst_case"]["per_class"] if share is not None]
    assert worst["robust_accuracy"] == min(shares)
    assert np.sum(result["worst_case"]["confusion"]) == 12
    assert np.trace(result["worst_case"]["confusion"]) == result["worst_case"]["robust_accuracy"] * 12


def test_the_worst_case_is_per_example() -> None:
    """Two attacks that break different halves leave nothing, whatever their accuracies."""
    ids = np.arange(4)
    first, second = np.array([True, True, False, False]), np.array([False, False, True, True])
    scores = {name: np.zeros(4) for name in ("margin", "pm")} | {"predicted": np.zeros(4, dtype=int)}
    entries = {
        name: EntryVerdicts(ids, {name: flags}, {name: 1.0}) for name, flags in (("pgd-1", first), ("cw", second))
    }
    verdicts = Verdicts(
        ids,
        np.zeros(4, dtype=int),
        2,
        scores,
        scores | {"size": np.zeros(4)},
        ("a", "a", "b", "b"),
        entries,
        {"norm": "Linf"},
    )
    result = summarize(verdicts)
    assert result["pgd-1"]["robust_accuracy"] == result["cw"]["robust_accuracy"] == 0.5
    assert result["worst_case"]["robust_accuracy"] == 0.0


def test_the_worst_case_covers_what_every_attack_saw() -> None:
    x, labels = images(1, 30, size=8)
    limited = EvaluationSettings(eps=0.05, aa_examples=5)
    verdicts, _ = judge(tiny_net(1), x, labels, attacks=["nat", "pgd-2", "aa"], settings=limited)
    result = summarize(verdicts)
    assert [result[name]["num_examples"] for name in ("nat", "pgd-2", "aa", "worst_case")] == [30, 30, 5, 5]
    both = [a == b == "1" for a, b in zip(result["pgd-2"]["correct"], result["aa"]["correct"], strict=False)]
    nat = [digit == "1" for digit in result["nat"]["correct"]]
    assert worst_case(verdicts).tolist() == [a and b for a, b in zip(both, nat, strict=False)]
    levels = result["margins"]["quantiles"]
    for group, arrays, count in (("clean", verdicts.clean, 30), ("worst_case", verdicts.worst, 5)):
        expected = np.quantile(arrays["margin"][:count].astype(np.float64), levels)
        assert result["margins"][group]["logit_margin"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.1), ("L2", 0.4)])
def test_worst_images_have_the_margins_that_are_reported(norm: str, eps: float) -> None:
    x, labels = images(2, 20, size=8)
    model = tiny_net(2).eval()
    settings = EvaluationSettings(norm=norm, eps=eps)  # type: ignore[arg-type]
    attacks = ["nat", "fgsm", "pgd-5", "cw-5", "apgd-ce"]
    verdicts, x_adv = judge(model, x, labels, attacks=attacks, settings=settings, keep=Keep(images=True))
    assert x_adv is not None
    with torch.no_grad():
        logits_nat, logits_adv = model(x), model(x_adv)
    for logits, stored in ((logits_nat, verdicts.clean), (logits_adv, verdicts.worst)):
        torch.testing.assert_close(torch.from_numpy(stored["margin"]), logit_margin(logits, labels))
        torch.testing.assert_close(torch.from_numpy(stored["pm"]), probabilistic_margin(logits, labels))
        assert stored["predicted"].tolist() == logits.argmax(dim=1).tolist()
    assert bool(inside_threat_model(x_adv, x, settings.norm, eps).all())
    assert bool((verdicts.worst["margin"] <= verdicts.clean["margin"]).all())
    broken = np.array([bool(name) for name in verdicts.broken_by])
    # PGD may end on a right answer where the clean one is wrong, so the least margin is what tells.
    assert (broken == (verdicts.worst["margin"] <= 0)).all()
    assert (worst_case(verdicts) == ~broken).all()


def test_the_attack_that_broke_an_image_first_is_named() -> None:
    """Between two classes one step is all a linear model takes, so that PGD breaks what FGSM has broken before."""
    model, x, labels = linear_task(classes=2, count=12)
    labels[0] = 1 - labels[0]
    distance = model.distance(x, labels, "Linf")
    eps = float(distance.median()) * 1.01
    verdicts, _ = judge(model, x, labels, attacks=["fgsm", "pgd-20"], settings=EvaluationSettings(eps=eps))
    assert (~verdicts.entries["pgd-20"].correct).sum() > 1
    assert verdicts.broken_by == ("clean", *("fgsm" if near else "" for near in (distance[1:] <= eps).tolist()))


def test_an_image_that_is_wrong_as_it_stands_is_no_success_in_the_worst_case() -> None:
    """PGD that climbs the loss of a wrong label may end on the right one."""
    x, labels = images(5, 60, size=8)
    result = pm.evaluate(tiny_net(5), (x, labels), ["pgd-3"], eps=0.2)
    nat = pm.evaluate(tiny_net(5), (x, labels), ["nat"])["nat"]["correct"]
    both = [a == b == "1" for a, b in zip(result["pgd-3"]["correct"], nat, strict=True)]
    assert result["worst_case"]["robust_accuracy"] == sum(both) / 60


def test_more_restarts_never_help_the_model() -> None:
    x, labels = images(4, 40, size=8)
    result = pm.evaluate(tiny_net(4), (x, labels), ["pgd-3", "pgd-3x4"], eps=0.1)
    one, four = result["pgd-3"]["correct"], result["pgd-3x4"]["correct"]
    assert all(a >= b for a, b in zip(one, four, strict=True))
    steps = list(result["pgd-3x4"]["steps"].values())
    assert steps[0] == result["pgd-3"]["robust_accuracy"]
    assert steps == sorted(steps, reverse=True)


def test_pgd_is_judged_on_all_images_and_searches_on_those_that_are_right() -> None:
    """As published scripts do, PGD's verdict is that of its last iterate, whatever the clean image was."""
    model, x, labels = linear_task(count=10)
    wrong = (labels + 1) % 10
    result = pm.evaluate(model, (x, wrong), ["nat", "pgd-2", "apgd-ce"], eps=0.05)
    assert result["nat"]["accuracy"] == result["apgd-ce"]["robust_accuracy"] == 0
    assert result["apgd-ce"]["seconds"] == 0
    assert result["pgd-2"]["seconds"] > 0


@example_settings(max_examples=15)
@given(cuts=st.lists(st.integers(1, 11), max_size=3), seed=st.integers(0, 9))
def test_joining_shards_in_any_cut_gives_the_whole(cuts: list[int], seed: int) -> None:
    x, labels = images(seed, 12, size=4)
    model = Linear(16, 3, seed)
    settings = EvaluationSettings(eps=0.1, aa_examples=7)
    attacks = ["nat", "pgd-2x2", "cw-2"]
    whole, _ = judge(model, x, labels, attacks=attacks, settings=settings)
    count = len(set(cuts)) + 1
    parts = []
    for index in range(count):
        ids = torch.arange(index, 12, count)
        part, _ = judge(model, x[ids], labels[ids], attacks=attacks, settings=settings, keep=Keep(ids=ids))
        parts.append(part)
    joined = summarize(join(parts[::-1]))
    expected = summarize(whole)
    for name in attacks:
        assert joined[name]["correct"] == expected[name]["correct"]
    assert joined["worst_case"] == expected["worst_case"]


def test_log_lines_say_what_ran() -> None:
    model, x, labels = linear_task(count=6)
    lines: list[str] = []
    evaluate(model, x, labels, attacks=["nat", "apgd-ce"], settings=EvaluationSettings(eps=0.05), log=lines.append)
    assert lines[0].startswith("nat: 100.00% of 6 (")
    assert lines[1] == "initial accuracy: 100.00%"
    assert lines[2].startswith("apgd-ce - 1/1 - ")
    assert lines[3].startswith("robust accuracy after APGD-CE: ")
    assert lines[-1].startswith("apgd-ce: ")


class Says(nn.Module):
    """Gives the same class for everything."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([0 * x.mean(dim=(1, 2, 3)), 1 + x.mean(dim=(1, 2, 3)), x.flatten(1)[:, 0] - 9], 1)


def test_a_model_that_names_one_class_is_no_robust_one() -> None:
    x, labels = torch.rand(20, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.ones(20, dtype=torch.long)
    labels[0] = 2
    said: list[str] = []
    result = evaluate(
        Says(), x, labels, attacks=["nat", "pgd-2"], settings=EvaluationSettings(eps=0.1), log=said.append
    )
    assert result["worst_case"]["robust_accuracy"] == 0.95
    line = "the model answers class 1 to every clean image: what it keeps is that class's share of the images"
    assert line in result["warnings"]
    assert f"warning: {line}" in said
    assert result["worst_case"]["worst_class"] == {"class": 2, "robust_accuracy": 0.0, "num_examples": 1}
    assert "worst class: 2, 0.00% of 1" in closing_lines(result)
    only = evaluate(Says(), x, labels, attacks=["nat"], settings=EvaluationSettings(eps=0.1))
    assert line in only["warnings"]
    named = closing_lines({**only, "classes": ["a", "b", "c"]})
    assert named[0] == "worst class: c, 0.00% of 1"
    attacked = {
        **result,
        "worst_case": {**result["worst_case"], "worst_class": {"class": 1, "robust_accuracy": 0.5, "num_examples": 19}},
    }
    assert "worst class: 1, 50.00% of 19" in closing_lines(attacked), "under attack, where there was any"
    alike = evaluate(Says(), x[1:], labels[1:], attacks=["nat"], settings=EvaluationSettings(eps=0.1))
    assert not alike["warnings"], "one class is all there is"
