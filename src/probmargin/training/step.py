"""The training step: the same for every method, and the only reduction over the batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from probmargin.attacks.attack import Attack
from probmargin.core.batch import AttackResult, BatchView, LossTerms, TraceLevel
from probmargin.core.errors import UsageError
from probmargin.core.inference import writes
from probmargin.core.losses import is_correct
from probmargin.core.noise import Noise
from probmargin.core.types import Classifier, Images, Labels, Logits, PerExample, Reduce
from probmargin.methods.method import Method
from probmargin.training.network import Network
from probmargin.training.perturbation import perturbed_weights


def alone(total: torch.Tensor) -> torch.Tensor:
    """The reduction of a run of one process."""
    return total


@dataclass(frozen=True)
class Batch:
    """One training batch."""

    x: Images
    labels: Labels
    noise: Noise
    positions: torch.Tensor | None = None
    """The examples' places in the training set."""


@dataclass(frozen=True)
class StepResult:
    """What a step tells the loop, on the device."""

    loss: torch.Tensor
    """The loss of the global batch, 0-d."""
    weight: PerExample
    margin: PerExample
    logits: Logits
    """Of the loss pass: of the adversarial images where there are any."""
    lps: PerExample | None
    """Attack steps survived, where the attack recorded them."""
    correct_nat: torch.Tensor | None
    correct_adv: torch.Tensor | None
    x_adv: Images | None


@dataclass(frozen=True)
class _Attacked:
    """Images and traces the passes need."""

    x_adv: Images | None = None
    x_second: Images | None = None
    result: AttackResult | None = None
    logits_nat: Logits | None = None
    """Natural logits of an extra pass, for a margin whose objective has none."""


def attack_batch(network: Network, method: Method, batch: Batch, *, counts_steps: bool = False) -> _Attacked:
    """Run the recipe's attacks at the current weights; with `counts_steps` the first one records its steps."""
    if method.attack is None:
        return _Attacked()
    level = "steps" if counts_steps and method.trace_level == "none" else method.trace_level
    result = _run_attack(network, method.attack, batch, level)
    x_second = None
    if method.second_attack is not None:
        x_second = _run_attack(network, method.second_attack, batch, "none").x_adv
    logits_nat = None
    if "logits_nat" in method.needs and "nat" not in method.passes:
        with network.frozen("eval") as call, torch.no_grad():
            logits_nat = call(batch.x)
    return _Attacked(x_adv=result.x_adv, x_second=x_second, result=result, logits_nat=logits_nat)


def _run_attack(network: Network, attack: Attack, batch: Batch, trace: TraceLevel) -> AttackResult:
    with network.frozen(attack.model_mode) as call:
        return attack.carry_out(call, batch.x.detach(), batch.labels, noise=batch.noise, trace=trace)


def starts_with_clean_images(method: Method) -> bool:
    """Whether the first training-mode pass needs nothing of the attack, and the attack nothing of that pass."""
    attacks = [attack for attack in (method.attack, method.second_attack) if attack is not None]
    alone = method.passes[0] == "nat" and "nat" not in method.passes[1:]
    return alone and method.awp is None and {attack.model_mode for attack in attacks} == {"eval"}


def view_of(
    forward: Classifier,
    method: Method,
    batch: Batch,
    attacked: _Attacked,
    first: Callable[[], Logits] | None = None,
) -> BatchView:
    """Run the training-mode passes in the recipe's order; an earlier one of two equal passes needs no gradient.

    `first` hands over the first pass where it was begun before the attack.
    """
    images = {"nat": batch.x, "adv": attacked.x_adv, "second": attacked.x_second}
    logits: dict[str, Logits | None] = {"nat": attacked.logits_nat}
    for position, name in enumerate(method.passes):
        x = images[name]
        assert x is not None
        is_last = name not in method.passes[position + 1 :]
        with torch.set_grad_enabled(is_last and torch.is_grad_enabled()):
            logits[name] = first() if first is not None and position == 0 else forward(x)
    return BatchView(
        labels=batch.labels,
        logits_nat=logits.get("nat"),
        logits_adv=logits.get("adv"),
        logits_second=logits.get("second"),
        trace=attacked.result.trace if attacked.result else None,
    )


def weigh(view: BatchView, method: Method, reduce: Reduce = alone) -> tuple[PerExample, PerExample]:
    """Weights and margins of a batch, detached."""
    with torch.no_grad():
        margin = asked("margin", method.margin, lambda: method.margin(view), view)
        weight = asked("weight", method.weight, lambda: method.weight(margin), view, margin)
        return asked("normalizer", method.normalizer, lambda: method.normalizer(weight, reduce=reduce), view), margin


def asked(kind: str, part: object, call: Callable[[], PerExample], view: BatchView, *given: PerExample) -> PerExample:
    """What a component returns, unless it writes into what it is given, the view or these, which others read too."""
    shared = [*seen_by_all(view), *given]
    before = [writes(one) for one in shared]
    values = per_example(kind, part, call(), view)
    if [writes(one) for one in shared] != before:
        raise writes_in_place(kind, part)
    return values


def seen_by_all(view: BatchView) -> list[torch.Tensor]:
    """What margins and weights may look at and the loss reads after them."""
    found = (view.labels, view.logits_nat, view.logits_adv, view.logits_second)
    return [one for one in found if one is not None]


def writes_in_place(kind: str, part: object) -> UsageError:
    """The error for a component that changes what others read too."""
    name = getattr(part, "registered_name", type(part).__name__)
    return UsageError(
        f"{kind} {name!r} changes in place what it is given, which the loss reads too: write z = z / 5 for z /= 5, "
        "scatter for scatter_, or begin with clone()"
    )


def per_example(kind: str, part: object, values: PerExample, view: BatchView) -> PerExample:
    """What a component returned, unless it is not one value an example: against losses that would give a table."""
    found = getattr(values, "shape", None)
    if found != view.labels.shape:
        name = getattr(part, "registered_name", type(part).__name__)
        shape = type(values).__name__ if found is None else f"shape {tuple(found)}"
        raise UsageError(f"{kind} {name!r} returns {shape} for {len(view.labels)} examples: return one value each")
    return values


def loss_terms(view: BatchView, method: Method) -> LossTerms:
    """Both parts of the loss, one value an example each."""
    terms = method.objective(view)
    if not isinstance(terms, LossTerms):
        name = getattr(method.objective, "registered_name", type(method.objective).__name__)
        raise UsageError(f"objective {name!r} returns {type(terms).__name__}: return LossTerms(weighted, plain)")
    for part in (terms.weighted, terms.plain):
        per_example("objective", method.objective, part, view)
    return terms


def batch_loss(view: BatchView, method: Method, weight: PerExample, reduce: Reduce = alone) -> torch.Tensor:
    """The mean over the global batch (or the sum) of weight * weighted + plain: the only reduction in the package.

    Each process holds its own examples' share of the global mean; gradients are to be summed over processes.
    """
    total = loss_terms(view, method).total(weight).sum()
    if method.reduction == "sum":
        return total
    count = reduce(torch.full_like(total.detach(), float(len(view.labels))))
    return total / count


def train_step(
    network: Network,
    optimizer: torch.optim.Optimizer,
    method: Method,
    batch: Batch,
    *,
    reduce: Reduce = alone,
    counts_steps: bool = False,
) -> StepResult:
    """Attack, weigh, descend. `method` is the recipe as it is in this epoch (`method.at`)."""
    first = network.ahead(batch.x) if starts_with_clean_images(method) else None
    attacked = attack_batch(network, method, batch, counts_steps=counts_steps)

    def loss_at(forward: Classifier) -> tuple[torch.Tensor, PerExample, PerExample, BatchView]:
        view = view_of(forward, method, batch, attacked, first)
        weight, margin = weigh(view, method, reduce)
        return batch_loss(view, method, weight, reduce), weight, margin, view

    with perturbed_weights(network, method.awp, lambda forward: loss_at(forward)[0], reduce):
        loss, weight, margin, view = loss_at(network.forward)
        optimizer.zero_grad(set_to_none=True)
        network.backward(loss)
        optimizer.step()
    return StepResult(
        loss=reduce(loss.detach()),
        weight=weight,
        margin=margin,
        logits=(view.nat() if view.logits_adv is None else view.logits_adv).detach(),
        lps=None if view.trace is None else view.trace.count_correct(),
        correct_nat=_correct(view.logits_nat, batch.labels),
        correct_adv=_correct(view.logits_adv, batch.labels),
        x_adv=attacked.x_adv,
    )


def _correct(logits: Logits | None, labels: Labels) -> torch.Tensor | None:
    return None if logits is None else is_correct(logits.detach(), labels)


def summarise(result: StepResult, labels: Labels) -> torch.Tensor:
    """Sums of a batch, to be added up over an epoch without leaving the device."""
    count = torch.full_like(result.loss, float(len(labels)))
    nothing = torch.full_like(result.loss, torch.nan)
    predicted = result.logits.argmax(dim=1).to(torch.float64)
    columns: Sequence[torch.Tensor] = (
        count,
        result.loss * count,
        nothing if result.correct_nat is None else result.correct_nat.sum().to(result.loss.dtype),
        nothing if result.correct_adv is None else result.correct_adv.sum().to(result.loss.dtype),
        result.weight.sum(),
        result.weight.square().sum(),
        predicted.sum(),
        predicted.square().sum(),
    )
    return torch.stack([column.to(torch.float64) for column in columns])
