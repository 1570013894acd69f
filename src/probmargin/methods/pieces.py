"""The pieces of a method, each usable without the rest: tensors in, tensors out."""

from dataclasses import fields
from typing import Any

import torch

from probmargin.attacks.attack import ATTACKS, Attack
from probmargin.attacks.pgd import warn_of_short_steps
from probmargin.core import losses
from probmargin.core.arguments import checked
from probmargin.core.batch import BatchView, LossTerms
from probmargin.core.errors import UsageError
from probmargin.core.records import Unbounded
from probmargin.core.types import Labels, Logits, PerExample
from probmargin.core.words import radius
from probmargin.data.checks import check_labels
from probmargin.objectives.at import AT
from probmargin.objectives.mart import Mart
from probmargin.objectives.trades import Trades
from probmargin.weights.gairat import GairatTanh
from probmargin.weights.hinge import Hinge, HingeAsPrinted
from probmargin.weights.sigmoid import Sigmoid
from probmargin.weights.step import Step
from probmargin.weights.weight import NORMALIZERS


@checked
def sigmoid_weight(margin: PerExample, slope: float = 10.0, bias: float = -0.5) -> PerExample:
    """1 / (1 + exp(slope * (margin - bias))); like every weight here it carries no gradient.

    >>> sigmoid_weight(torch.tensor([-0.5, 0.0])).tolist()
    [0.5, 0.006693]
    """
    return Sigmoid(slope=slope, bias=bias)(_known(margin))


@checked
def hinge_weight(margin: PerExample, slope: float = 2.0, bias: float = 0.0, as_printed: bool = False) -> PerExample:
    """max(0, slope * (bias - margin)); with `as_printed` the paper's rising form max(0, slope * (margin - bias)).

    >>> hinge_weight(torch.tensor([-0.5, 0.5])).tolist()
    [1.0, 0.0]
    >>> hinge_weight(torch.tensor([-0.5, 0.5]), bias=0.25, as_printed=True).tolist()
    [0.0, 0.5]
    """
    chosen = HingeAsPrinted(slope=slope, bias=bias) if as_printed else Hinge(slope=slope, bias=bias)
    return chosen(_known(margin))


@checked
def step_weight(margin: PerExample, alpha: float = 0.2, bias: float = 0.0) -> PerExample:
    """Alpha where the margin is above the bias, else 1 - alpha.

    >>> step_weight(torch.tensor([-0.5, 0.5])).tolist()
    [0.8, 0.2]
    """
    return Step(alpha=alpha, bias=bias)(_known(margin))


@checked
def gairat_weight(steps: PerExample, num_steps: int, lam: Unbounded) -> PerExample:
    """GAIRAT's (1 + tanh(lam + 5 (1 - 2 steps / num_steps))) / 2, not normalised.

    >>> gairat_weight(torch.tensor([4.0, 10.0]), num_steps=10, lam=-1.0).tolist()
    [0.5, 0.00000614]
    """
    survived = _known(steps)
    if bool(((survived < 0) | (survived > num_steps)).any()):
        raise UsageError(f"steps must lie between 0 and num_steps={num_steps}: give the attack's own number of steps")
    return GairatTanh(lam=lam, num_steps=num_steps)(survived)


@checked
def normalize_weights(weight: PerExample, how: str = "mean_one") -> PerExample:
    """Scale a batch of weights: mean_one, sum_one or fixed. No gradient flows through them.

    >>> normalize_weights(torch.tensor([3.0, 1.0, 0.0, 0.0])).tolist()
    [3.0, 1.0, 0.0, 0.0]
    """
    if weight.ndim != 1:
        raise UsageError(f"weights must have shape (B,), not {tuple(weight.shape)}")
    if len(weight) == 0 or not bool(((weight >= 0) & weight.isfinite()).all()):
        raise UsageError(
            "weights must be finite, none below zero: pass those of a batch, as weight functions give them"
        )
    return NORMALIZERS.build(how)(_known(weight), reduce=lambda total: total)


@checked
def at_loss(logits_adv: Logits, labels: Labels) -> LossTerms:
    """Cross-entropy of the adversarial images, per example; the weight multiplies all of it.

    >>> at_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0])).weighted.tolist()
    [0.6931]
    """
    return AT()(_view(labels, logits_adv))


@checked
def trades_loss(logits_nat: Logits, logits_adv: Logits, labels: Labels, beta: float) -> LossTerms:
    """Clean cross-entropy (plain) and beta * KL(p_nat || p_adv) (weighted), per example.

    >>> terms = trades_loss(torch.zeros(1, 2), torch.tensor([[2.0, 0.0]]), torch.tensor([0]), beta=6.0)
    >>> (terms.weighted + terms.plain).mean().item()
    3.2958
    """
    return Trades(beta=beta)(_view(labels, logits_adv, logits_nat))


@checked
def mart_loss(logits_nat: Logits, logits_adv: Logits, labels: Labels, beta: float) -> LossTerms:
    """Boosted cross-entropy (weighted) and beta times the misclassification-aware divergence (plain), per example.

    >>> terms = mart_loss(torch.zeros(1, 2), torch.tensor([[0.0, 2.0]]), torch.tensor([0]), beta=5.0)
    >>> terms.weighted.tolist(), terms.plain.tolist()   # 5 * (log((e^2 + 1) / 2) - 1) / 2
    ([4.2530], [1.0845])
    """
    return Mart(beta=beta)(_view(labels, logits_adv, logits_nat))


@checked
def logit_margin(logits: Logits, labels: Labels) -> PerExample:
    """MM = z_y - max_{j != y} z_j; positive where the prediction is right.

    >>> logit_margin(torch.tensor([[3.0, 1.0, 0.0], [1.0, 0.0, 4.0]]), torch.tensor([0, 0])).tolist()
    [2.0, -3.0]
    """
    _check(labels, logits)
    return losses.logit_margin(_floats(logits), labels.long())


@checked
def probabilistic_margin(logits: Logits, labels: Labels) -> PerExample:
    """PM = p_y - max_{j != y} p_j, in [-1, 1]; positive where the prediction is right.

    >>> logits = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1]]).log()
    >>> probabilistic_margin(logits, torch.tensor([0, 0])).tolist()
    [0.50, -0.30]
    """
    _check(labels, logits)
    return losses.probabilistic_margin(_floats(logits), labels.long())


def _floats(values: torch.Tensor) -> torch.Tensor:
    """At least float32: half precision rounds 1e-12 to nothing, and whole numbers would round weights."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def _known(values: torch.Tensor) -> torch.Tensor:
    """The same without a gradient: weights are given to a loss, and nothing is learnt by making them small."""
    return _floats(values.detach())


def _view(labels: Labels, logits_adv: Logits, logits_nat: Logits | None = None) -> BatchView:
    """A batch of logits with its labels, checked."""
    nat = logits_adv if logits_nat is None else logits_nat
    _check(labels, nat, logits_adv)
    return BatchView(labels=labels.long(), logits_nat=_floats(nat), logits_adv=_floats(logits_adv))


def _check(labels: Labels, *logits: Logits) -> None:
    """Refuse what is no batch of logits with labels; values are looked at where that costs no wait for a device."""
    for found in logits:
        if found.ndim != 2 or not found.is_floating_point() or found.shape != logits[0].shape:
            raise UsageError(
                f"logits must be floats (B, classes), all of one shape, not {found.dtype} {tuple(found.shape)}"
            )
    if labels.shape != logits[0].shape[:1] or (labels.device.type == "cpu" and len(labels) > 0):
        check_labels(labels, len(logits[0]), logits[0].shape[1])


@checked
def attack(name: str, **settings: Any) -> Attack:
    """An attack by name; call it with (model, x, labels) to get an AttackResult.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> x, labels = torch.rand(2, 1, 2, 2), torch.tensor([0, 1])
    >>> result = attack("pgd", eps=8 / 255, step_size=2 / 255, num_steps=10)(model, x, labels)
    >>> bool(((result.x_adv - x).abs() <= 8 / 255 + 1e-6).all())
    True
    """
    made = ATTACKS.build({"name": name, **settings}, "attack")
    usual = {entry.name: entry.default for entry in fields(made)}  # type: ignore[arg-type]
    if settings.get("norm", usual.get("norm")) != usual.get("norm") and "eps" in usual and "eps" not in settings:
        norm = settings["norm"]
        raise UsageError(f"eps {radius(made.eps)} is a radius in {usual['norm']}: pass eps as well as norm={norm!r}")  # type: ignore[attr-defined]
    if "eps" in settings and "step_size" not in settings:
        warn_of_short_steps(made, stacklevel=4)
    return made
