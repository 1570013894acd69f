"""Margins, weights, normalisers and objectives: what each family promises, over its whole registry."""

import dataclasses
import inspect
import json
import re

import pytest
import torch
from hypothesis import given, strategies as st
from strategies import alone, make_view, take, views

from probmargin.attacks.attack import ATTACKS
from probmargin.core.batch import BatchView
from probmargin.core.registry import Registry
from probmargin.margins.margin import MARGINS, Margin
from probmargin.objectives.objective import OBJECTIVES, Objective
from probmargin.weights.weight import NORMALIZERS, WEIGHTS, Normalizer, Weight

margins = pytest.mark.parametrize("margin", MARGINS.examples(), ids=repr)
weights = pytest.mark.parametrize("weight", WEIGHTS.examples(), ids=repr)
normalizers = pytest.mark.parametrize("normalizer", NORMALIZERS.examples(), ids=repr)
objectives = pytest.mark.parametrize("objective", OBJECTIVES.examples(), ids=repr)


def with_gradient(view: BatchView) -> BatchView:
    return dataclasses.replace(
        view,
        logits_nat=view.nat().clone().requires_grad_(),
        logits_adv=view.adv().clone().requires_grad_(),
        logits_second=view.second().clone().requires_grad_(),
    )


@margins
@given(view=views())
def test_a_margin_is_finite_detached_and_one_number_an_example(margin: Margin, view: BatchView) -> None:
    values = margin(with_gradient(view))
    assert values.shape == view.labels.shape
    assert values.isfinite().all()
    assert not values.requires_grad


@margins
@given(view=views())
def test_an_example_alone_has_the_same_margin(margin: Margin, view: BatchView) -> None:
    apart = torch.cat([margin(take(view, torch.tensor([row]))) for row in range(len(view.labels))])
    torch.testing.assert_close(apart, margin(view))


@margins
@given(view=views())
def test_a_margin_reads_only_what_it_declares(margin: Margin, view: BatchView) -> None:
    declared = BatchView(
        labels=view.labels,
        logits_nat=view.logits_nat if "logits_nat" in margin.needs else None,
        logits_adv=view.logits_adv if "logits_adv" in margin.needs else None,
        trace=view.trace if margin.needs & {"steps", "path"} else None,
    )
    torch.testing.assert_close(margin(declared), margin(view))


@margins
def test_a_margin_that_claims_so_grows_with_safety(margin: Margin) -> None:
    """Raising the label's logit, and turning wrong steps right, must not lower a margin whose direction is `safer`."""
    view = make_view(seed=3, batch=6, classes=4, scale=1.0)
    assert view.trace is not None
    raise_label = torch.nn.functional.one_hot(view.labels, 4).double() * 2.0
    safer = dataclasses.replace(
        view,
        logits_nat=view.nat() + raise_label,
        logits_adv=view.adv() + raise_label,
        trace=dataclasses.replace(view.trace, correct=torch.ones_like(view.trace.correct)),
    )
    before, after = margin(view), margin(safer)
    if margin.direction == "safer":
        assert (after >= before).all()
        assert (after > before).any()
    else:
        assert not ((after >= before).all() and (after > before).any())


@weights
@given(values=st.lists(st.floats(-1, 1), min_size=2, max_size=8))
def test_a_weight_is_nonnegative_and_moves_as_declared(weight: Weight, values: list[float]) -> None:
    margin = torch.tensor(sorted(values), dtype=torch.float64)
    if "gairat" in weight.registered_name:
        margin = (margin + 1) * 5  # steps survived, in 0..K
    weighed = weight(margin)
    assert weighed.shape == margin.shape
    assert weighed.isfinite().all()
    assert (weighed >= 0).all()
    steps = weighed.diff()
    if weight.direction == "falls":
        assert (steps <= 1e-12).all()
    elif weight.direction == "rises":
        assert (steps >= -1e-12).all()
    else:
        assert (steps == 0).all()


@weights
def test_a_weight_that_is_not_constant_tells_margins_apart(weight: Weight) -> None:
    weighed = weight(torch.tensor([0.0, 10.0]) if "gairat" in weight.registered_name else torch.tensor([-1.0, 1.0]))
    flat = weight.direction == "constant" or getattr(weight, "slope", 1) == 0 or getattr(weight, "alpha", 0) == 0.5
    flat = flat or getattr(weight, "lam", 0) == float("inf")
    assert (weighed[0] == weighed[1]) == flat


@weights
def test_a_weight_looks_at_one_example_at_a_time(weight: Weight) -> None:
    margin = torch.tensor([-0.9, 0.1, 0.8])
    torch.testing.assert_close(torch.cat([weight(margin[row : row + 1]) for row in range(3)]), weight(margin))


@normalizers
def test_a_normaliser_keeps_ratios(normalizer: Normalizer) -> None:
    weight = torch.tensor([0.5, 2.0, 0.1, 1.4])
    scaled = normalizer(weight, reduce=alone)
    torch.testing.assert_close(scaled / scaled[0], weight / weight[0])


@normalizers
def test_a_normaliser_turns_a_batch_of_zeros_into_equal_weights(normalizer: Normalizer) -> None:
    scaled = normalizer(torch.zeros(4), reduce=alone)
    assert scaled.isfinite().all()
    assert (scaled == scaled[0]).all()
    if normalizer.registered_name != "fixed":
        assert (scaled > 0).all()


@normalizers
def test_normalising_is_over_the_global_batch_unless_local(normalizer: Normalizer) -> None:
    """Two processes that reduce over each other get the weights one process would have."""
    whole = torch.tensor([0.5, 2.0, 0.1, 1.4, 3.0, 0.2])
    parts = (whole[:3], whole[3:])

    def reduced(rank: int) -> torch.Tensor:
        other = parts[1 - rank]
        return normalizer(parts[rank], reduce=lambda total: total + torch.tensor([other.sum(), len(other)]))

    together = torch.cat([reduced(0), reduced(1)])
    is_global = torch.allclose(together, normalizer(whole, reduce=alone))
    assert is_global == (getattr(normalizer, "scope", "global") == "global")


@objectives
@given(view=views())
def test_an_objective_is_finite_and_per_example(objective: Objective, view: BatchView) -> None:
    terms = objective(view)
    assert terms.weighted.shape == terms.plain.shape == view.labels.shape
    assert terms.weighted.isfinite().all()
    assert terms.plain.isfinite().all()


@objectives
@given(view=views())
def test_an_example_alone_has_the_same_loss(objective: Objective, view: BatchView) -> None:
    whole = objective(view)
    for row in range(len(view.labels)):
        apart = objective(take(view, torch.tensor([row])))
        torch.testing.assert_close(apart.weighted[0], whole.weighted[row])
        torch.testing.assert_close(apart.plain[0], whole.plain[row])


@objectives
@given(view=views())
def test_gradients_of_an_objective_are_finite_and_reach_what_it_needs(objective: Objective, view: BatchView) -> None:
    view = with_gradient(view)
    terms = objective(view)
    (terms.weighted + terms.plain).sum().backward()
    for need, logits in (("logits_nat", view.nat()), ("logits_adv", view.adv())):
        if need in objective.needs:
            assert logits.grad is not None
            assert logits.grad.isfinite().all()
        else:
            assert logits.grad is None


@objectives
def test_raising_the_labels_logit_lowers_the_loss(objective: Objective) -> None:
    view = make_view(seed=5, batch=6, classes=4, scale=1.0)
    raise_label = torch.nn.functional.one_hot(view.labels, 4).double() * 3.0
    safer = dataclasses.replace(view, logits_nat=view.nat() + raise_label, logits_adv=view.adv() + raise_label)
    if getattr(objective, "weighted_part", "") == "rst_mixture":
        safer = dataclasses.replace(safer, logits_second=view.second() + raise_label)
    before, after = objective(view), objective(safer)
    assert (after.weighted + after.plain).sum() < (before.weighted + before.plain).sum()


COMPONENTS = [
    (registry.family, name, registry.get(name))
    for registry in (MARGINS, WEIGHTS, NORMALIZERS, OBJECTIVES, ATTACKS)
    for name in registry.names()
]


@pytest.mark.parametrize(("family", "name", "component"), COMPONENTS, ids=lambda value: str(value))
def test_every_component_is_documented_with_a_worked_example(family: str, name: str, component: type) -> None:
    doc = inspect.getdoc(component) or ""
    for heading in ("Symbols:", "Gradient:", "Source:", "Deviation:", ">>>"):
        assert heading in doc, f"{family} {name} has no {heading}"
    assert re.search(r"^ {4}\S", doc, re.MULTILINE), "the formula is missing"
    assert dataclasses.is_dataclass(component)
    assert component.__dataclass_params__.frozen  # type: ignore[attr-defined]


@pytest.mark.parametrize("registry", [MARGINS, WEIGHTS, NORMALIZERS, OBJECTIVES, ATTACKS], ids=lambda r: r.family)
def test_components_survive_a_round_trip_through_json(registry: object) -> None:
    assert isinstance(registry, Registry)
    for component in registry.examples():
        assert registry.build(json.loads(json.dumps(registry.spec(component)))) == component
