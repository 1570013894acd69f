"""Components of the user's own, tried on a few images before a run begins: what they promise is looked at here."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from probmargin.attacks.attack import Attack, writes_into_images
from probmargin.attacks.balls import check_eps
from probmargin.core.batch import BatchView, TraceLevel
from probmargin.core.errors import UsageError
from probmargin.core.noise import fresh_noise
from probmargin.core.registry import is_own
from probmargin.core.types import PerExample
from probmargin.core.words import radius
from probmargin.data.dataset import ImageSet
from probmargin.evaluation.search import inside_threat_model
from probmargin.methods.method import Method
from probmargin.methods.plain import COMPONENTS
from probmargin.methods.plugins import check_ball_fields, check_frozen
from probmargin.models.own import failed
from probmargin.training.network import Network
from probmargin.training.step import (
    Batch,
    alone,
    asked,
    attack_batch,
    loss_terms,
    seen_by_all,
    view_of,
    writes_in_place,
)

T = TypeVar("T")
_IMAGES = 8
_SAME = 1e-4


def check_own_parts(method: Method, model: nn.Module, train: ImageSet, processes: int = 1) -> None:
    """Refuse a component of the user's own that fails on a few of these images, or does not keep its promise.

    Several processes share a batch: none may give an example a value by the others beside it.
    """
    kinds: dict[tuple[type, ...], list[Method]] = {}
    for epoch in method.epoch_plan():
        now = method.at(epoch)
        kinds.setdefault(tuple(type(part) for part in _parts(now).values()), []).append(now)
    for alike in kinds.values():
        if any(is_own(part) for part in _parts(alike[-1]).values()):
            _try(alike, model, train.take(range(min(_IMAGES, len(train)))), processes)


def _parts(method: Method) -> dict[str, Any]:
    found = {slot: getattr(method, slot) for slot in COMPONENTS}
    return {slot: part for slot, part in found.items() if part is not None}


def _try(epochs: Sequence[Method], model: nn.Module, images: ImageSet, processes: int) -> None:
    """Try the last of some epochs whose components are of the same kinds, and the weights of each, which move."""
    method = epochs[-1]
    _check_is_frozen(method)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x, labels = images.floats().to(device), images.labels.to(device)
    batch = Batch(x=x, labels=labels, noise=fresh_noise(len(x), device, seed=0))
    network = Network(model)
    for attack, level in ((method.attack, method.trace_level), (method.second_attack, "none")):
        if attack is not None and is_own(attack):
            _try_attack(attack, network, batch, level)
    attacked = attack_batch(network, method, batch)
    with network.frozen("train") as call, torch.no_grad():
        view = view_of(call, method, batch, attacked)
        for weight in {repr(now.weight): now.weight for now in epochs}.values():
            _try_weights(view, replace(method, weight=weight))
        if processes > 1:
            _try_halves(view, method, processes)
    _try_objective(view, method)


def _check_is_frozen(method: Method) -> None:
    """Refuse components that can remember: what they remembered would be lost with a resume, and differ in a fork."""
    for slot, part in _parts(method).items():
        if is_own(part):
            check_frozen(f"{slot} {part.registered_name!r}", type(part))


def _try_attack(attack: Attack, network: Network, batch: Batch, level: TraceLevel) -> None:
    x, name = batch.x, attack.registered_name
    given, labels = x.clone(), batch.labels.clone()
    with network.frozen(attack.model_mode) as call:
        result = _called("attack", attack, lambda: attack(call, given, labels, noise=batch.noise, trace=level))
    # What is written through `.data` is not counted by torch.
    if not (torch.equal(given, x) and torch.equal(labels, batch.labels)):
        raise writes_into_images(attack)
    if level != "none" and result.trace is None:
        raise UsageError(f"attack {name!r} returns no trace, which the margin reads: return AttackResult(x_adv, trace)")
    check_ball_fields(f"attack {name!r}", type(attack))
    norm, eps = (getattr(attack, field) for field in ("norm", "eps"))
    check_eps(norm, eps)
    inside = int(inside_threat_model(result.x_adv, x, norm, eps).sum())
    if inside < len(x):
        raise UsageError(
            f"attack {name!r} leaves its ball, {norm} {radius(eps)}, or [0, 1] on {len(x) - inside} of {len(x)} "
            "images: return probmargin.attacks.balls.project(x_adv, x, norm, eps)"
        )


def _try_weights(view: BatchView, method: Method) -> None:
    margins = _values("margin", method.margin, lambda: method.margin(view), view)
    raw = _values("weight", method.weight, lambda: method.weight(margins), view, margins)
    scaled = _values("normalizer", method.normalizer, lambda: method.normalizer(raw, reduce=alone), view)
    _check_signs("weight", method.weight, raw, margins)
    _check_signs("normalizer", method.normalizer, scaled, margins)


def check_weights(method: Method, weight: PerExample, margin: PerExample) -> None:
    """Refuse weights below zero and such as are no numbers, where parts of the user's own may give them."""
    _check_finite("margin", method.margin, margin)
    # Divided by their mean, weights that are all below zero would look like good ones.
    raw = method.weight(margin) if is_own(method.weight) else weight
    for kind, part, values in (("weight", method.weight, raw), ("normalizer", method.normalizer, weight)):
        _check_finite(kind, part, values)
        _check_signs(kind, part, values, margin)


def _try_halves(view: BatchView, method: Method, processes: int) -> None:
    """A margin and a weight of an example are the same in a part of its batch; the normaliser sees all of it."""
    margins = method.margin(view)
    # In order, so that halves differ in whatever may be asked of a batch: ranks, means, extremes.
    order = margins.argsort()
    halves = (order[: len(order) // 2], order[len(order) // 2 :])
    _check_own_values("margin", method.margin, lambda rows: method.margin(_rows(view, rows)), halves, processes)
    _check_own_values("weight", method.weight, lambda rows: method.weight(margins[rows]), halves, processes)


def _check_own_values(
    kind: str, part: Any, call: Callable[[torch.Tensor], PerExample], halves: Sequence[torch.Tensor], processes: int
) -> None:
    """Refuse a part of the user's own by which a batch is not the sum of its halves; what is random is not told."""
    if not is_own(part):
        return
    both = torch.cat(list(halves))
    first, again, *apart = (_called(kind, part, partial(call, rows)) for rows in (both, both, *halves))
    if torch.equal(first, again) and not torch.allclose(first, torch.cat(apart), rtol=_SAME, atol=_SAME):
        raise UsageError(
            f"{kind} {part.registered_name!r} gives an example a value by the others in its batch, of which each of "
            f"{processes} processes sees its share: give a value by the example alone, or train in one process"
        )


def _rows(view: BatchView, rows: torch.Tensor) -> BatchView:
    """Some of a batch's examples."""
    names = ("labels", "logits_nat", "logits_adv", "logits_second")
    parts: dict[str, Any] = {name: value[rows] for name in names if (value := getattr(view, name)) is not None}
    if (trace := view.trace) is not None:
        steps = {name: getattr(trace, name)[:, rows] for name in ("loss", "correct", "prob_label")}
        natural = None if trace.prob_label_nat is None else trace.prob_label_nat[rows]
        parts["trace"] = replace(trace, **steps, prob_label_nat=natural)
    return replace(view, **parts)


def _try_objective(view: BatchView, method: Method) -> None:
    """One finite value an example, with a gradient to the logits."""
    named = {name: getattr(view, name) for name in ("logits_nat", "logits_adv", "logits_second")}
    part = method.objective
    with torch.enable_grad():
        # As after a pass: no leaves, which may not be changed in place.
        passed = {name: logits.clone().requires_grad_().clone() for name, logits in named.items() if logits is not None}
        view = replace(view, **passed)
        terms = _called("objective", part, lambda: loss_terms(view, method))
        total = terms.total(torch.ones_like(terms.weighted)).sum()
    if not is_own(part):
        return
    if not total.requires_grad:
        raise UsageError(
            f"objective {part.registered_name!r} gives a loss without a gradient: take it from the view's logits, "
            "without detach()"
        )
    if method.is_reweighted and not terms.weighted.requires_grad:
        raise UsageError(
            f"objective {part.registered_name!r} gives a weighted part without a gradient, so that weights do nothing: "
            "put what they multiply there, or train without weights, --set weight=uniform"
        )
    _check_finite("objective", part, total)


def _values(kind: str, part: Any, call: Callable[[], PerExample], view: BatchView, *given: PerExample) -> PerExample:
    """One finite value an example."""
    shared = [*seen_by_all(view), *given]
    before = [one.clone() for one in shared]
    values = _called(kind, part, lambda: asked(kind, part, call, view, *given))
    if not all(map(torch.equal, shared, before)):
        raise writes_in_place(kind, part)
    _check_finite(kind, part, values)
    return values


def _check_finite(kind: str, part: Any, values: torch.Tensor) -> None:
    if is_own(part) and not bool(values.isfinite().all()):
        name = part.registered_name
        raise UsageError(f"{kind} {name!r} gives a value that is not a number: look at what it divides by")


def _check_signs(kind: str, part: Any, values: PerExample, margins: PerExample) -> None:
    if is_own(part) and bool((values < 0).any()):
        raise UsageError(
            f"{kind} {part.registered_name!r} gives {float(values.min()):.4g} to an example of margin "
            f"{float(margins[values.argmin()]):.4g}: return 0 or more, as values.clamp(min=0) does"
        )


def _called(kind: str, part: Any, call: Callable[[], T]) -> T:
    """What a component returns; one of the user's own that fails is named with the place where."""
    try:
        return call()
    except (UsageError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if not is_own(part):
            raise
        raise failed(f"{kind} {part.registered_name!r} fails", error) from None
