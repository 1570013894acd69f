"""When to give a run up: what was saved before stays as it is."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from probmargin.attacks.attack import Attack
from probmargin.attacks.lm_pgd import LMPGD
from probmargin.attacks.pgd import PGD, EarlyStopPGD, longer_step
from probmargin.core.errors import Failure, UsageError
from probmargin.core.frozen import frozen
from probmargin.core.settings import Augment
from probmargin.core.words import counted
from probmargin.margins.none import NoMargin
from probmargin.methods.method import Method
from probmargin.methods.plain import check_radius
from probmargin.models.own import failed_at
from probmargin.weights.hinge import Hinge, HingeAsPrinted
from probmargin.weights.sigmoid import Sigmoid
from probmargin.weights.step import Step


class TrainingStopped(Failure):
    """Training cannot go on; what was saved before stays."""


_OUTSIDE = 1e-3
"""How far outside [0, 1] an attack may start."""
_STEP_READS = frozenset(
    {"attack", "second_attack", "margin", "weight", "normalizer", "objective", "passes", "reduction", "awp"}
)


def parse_epochs(text: str, epochs: int) -> tuple[int, ...]:
    """Read the epochs of a run after which states are kept, counted from 1.

    >>> parse_epochs("70, 76", 100)
    (70, 76)
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    check_kept_epochs([int(word) if word.isdecimal() else word for word in words], epochs)
    return tuple(map(int, words))


def check_kept_epochs(kept: Sequence[object], epochs: int, plan: Sequence[int] | None = None) -> None:
    """Refuse what is no epoch of the run, or, where its plan (from 0) is given, none that it trains."""
    for epoch in kept:
        if not isinstance(epoch, int) or not 1 <= epoch <= epochs:
            raise UsageError(f"--keep-epochs takes epochs from 1 to {epochs}, such as 70,76, not {str(epoch)!r}")
        if plan is not None and epoch - 1 not in plan:
            near = max((other + 1 for other in plan if other < epoch), default=plan[0] + 1)
            raise UsageError(
                f"--keep-epochs {epoch}: a phase skips that epoch and leaves no state; use --keep-epochs {near}"
            )


def check_phases(method: Method) -> None:
    """Refuse a phase that sets what is fixed for a whole run: it would be ignored."""
    for phase in method.phases:
        for path in phase.set:
            if path.partition(".")[0] not in _STEP_READS:
                raise UsageError(f"a phase cannot change {path}; choose among {', '.join(sorted(_STEP_READS))}")


def check_every_epoch(method: Method) -> None:
    """Resolve every epoch before the first: what cannot work in the last is not to be found there."""
    now = method
    for phase in sorted(method.phases, key=lambda phase: phase.from_epoch):
        check_radius(now, phase.set)
        now = method.at(phase.from_epoch)
    for epoch in method.epoch_plan():
        now = method.at(epoch)
        now.check_margin()
        _check_leaves(now.attack)


def _check_leaves(attack: Attack | None) -> None:
    """Refuse an attack that stays where it starts: the divergence from the image itself is least there, and flat."""
    if not isinstance(attack, PGD | EarlyStopPGD | LMPGD) or getattr(attack, "step_noise", 0.0) > 0:
        return
    if (attack.loss, attack.start) == ("kl", "zero"):
        raise UsageError(
            "an attack on the KL divergence has no gradient at the image itself: use attack.start=normal_1e-3, or "
            "another loss"
        )


def check_crop(augment: Augment, image_size: tuple[int, ...]) -> None:
    """Refuse a reflection that reaches beyond the image."""
    if augment.padding == "reflect" and augment.pad >= min(image_size):
        height, width = image_size
        raise UsageError(
            f"augment.pad is {augment.pad}, and images of {height}x{width} have fewer pixels to reflect: lower it, or "
            "use --set augment.padding=zero"
        )


def split_directions(method: Method) -> str | None:
    """A line on a divergence that is attacked in one direction and trained on in the other; None where it is one."""
    return next(filter(None, (_split(method.at(epoch)) for epoch in method.epoch_plan())), None)


def _split(method: Method) -> str | None:
    attack = method.attack
    trained = getattr(method.objective, "kl_direction", None)
    if trained is None or not isinstance(attack, PGD | EarlyStopPGD | LMPGD) or attack.loss != "kl":
        return None
    if attack.kl_direction == trained:
        return None
    return (
        f"the attack raises the KL divergence {attack.kl_direction} and the objective lowers {trained}: set both "
        f"alike, such as --set attack.kl_direction={trained}"
    )


def short_reach(method: Method) -> str | None:
    """A line on an attack, of any phase, whose steps do not reach the surface of its ball; None where all do."""
    return next(filter(None, (_short(method.at(epoch).attack, epoch) for epoch in method.epoch_plan())), None)


def _short(attack: Attack | None, epoch: int) -> str | None:
    """What is said of the attack of an epoch (from 0)."""
    step = longer_step(attack)
    if step is None:
        return None
    assert isinstance(attack, PGD | EarlyStopPGD)
    reach = attack.num_steps * attack.step_size
    which = f"the attack from epoch {epoch + 1} on" if epoch else "the attack"
    fix = (
        f"in the phase, such as attack.step_size={step:.4g}" if epoch else f"such as --set attack.step_size={step:.4g}"
    )
    return (
        f"{which} goes {counted(attack.num_steps, 'step')} of {attack.step_size:.4g}, to {reach:.4g} and not to its "
        f"eps {attack.eps:.4g}: raise attack.step_size with it, {fix}"
    )


def averages(method: Method) -> str | None:
    """A line on which weights count where a moving average is kept; None where none is."""
    if method.ema is None:
        return None
    return (
        f"the moving average of the weights (ema.decay {method.ema.decay:g}) is what is judged, chosen and exported; "
        "accuracies of epochs are of the weights in training"
    )


_ADAMW_RATE = 0.01
"""Learning rates from here on are SGD's."""


def rate_of_sgd(method: Method) -> str | None:
    """A line on a learning rate that a recipe of SGD has left to AdamW; None where it is small enough."""
    if method.optimizer != "adamw" or method.lr < _ADAMW_RATE:
        return None
    return f"lr {method.lr:g} is a rate for sgd: adamw, whose steps are all about lr long, wants --set lr=0.001 or less"


def idle_weights(method: Method) -> str | None:
    """A line on weights or a margin that never come into play; None where they do."""
    later = {path.partition(".")[0] for phase in method.phases for path in phase.set}
    has_margin = "margin" in later or not isinstance(method.margin, NoMargin)
    has_weight = "weight" in later or method.is_reweighted
    if has_weight and not has_margin:
        return (
            f"the weight {method.weight.registered_name} has no margin to go by (margin none), so every example gets "
            "the same: choose one, such as --set margin=pm_adv"
        )
    if has_margin and not has_weight:
        return (
            f"the margin {method.margin.registered_name} changes nothing, since the weight "
            f"{method.weight.registered_name} does not go by it: choose another, such as --set weight=sigmoid"
        )
    if not method.is_reweighted or method.burn_in_epochs < method.epochs:
        return None
    return (
        f"burn-in takes {counted(method.burn_in_epochs, 'epoch')} and training "
        f"{counted(method.epochs, 'epoch')}, so every weight stays one: lower it, such as "
        "--set burn_in_epochs=0, or train longer"
    )


def other_scale(method: Method) -> str | None:
    """A line on a weight that reads other numbers than its margin gives; None where they fit."""
    now = method.at(method.epochs - 1)
    counts = "steps" in now.margin.needs
    margin, weight = now.margin.registered_name, now.weight.registered_name
    if now.weight.reads == "steps" and not counts and not isinstance(now.margin, NoMargin):
        return (
            f"the weight {weight} reads attack steps survived, and the margin {margin} lies between -1 and 1 or so: "
            "weights will hardly differ; choose --set margin=lps, or --set weight=sigmoid"
        )
    if counts and isinstance(now.weight, Sigmoid | Hinge | HingeAsPrinted | Step) and now.weight.bias < 1:
        return (
            f"the margin {margin} counts attack steps from 0 on, and the weight {weight} is made for margins between "
            "-1 and 1: choose --set weight=gairat_tanh, or a weight.bias among the steps"
        )
    return None


def check_last_batch(
    model: nn.Module, image_shape: Sequence[int], num_examples: int, batch_size: int, processes: int = 1
) -> None:
    """Refuse a batch, or a process's share of one, of one image where the model cannot train on it.

    Batch norm of vectors cannot. `processes` are those that normalise by themselves.
    """
    if _smallest_share(num_examples, batch_size, processes) != 1:
        return
    device = next(model.parameters()).device
    try:
        with frozen(model, "train") as call, torch.no_grad():
            call(torch.zeros(1, *image_shape, device=device))
    except ValueError:
        # Smaller ones first, which surely fit in memory.
        others = (*range(batch_size - 1, 1, -1), *range(batch_size + 1, num_examples + 1))
        good = next((size for size in others if _smallest_share(num_examples, size, processes) > 1), None)
        fix = "use more images or fewer processes" if good is None else f"use --batch-size {good}"
        over = f" over {processes} processes" if processes > 1 else ""
        raise UsageError(
            f"{num_examples} images in batches of {batch_size}{over} leave one image by itself, on which this model "
            f"cannot be trained: {fix}"
        ) from None


def _smallest_share(num_examples: int, batch_size: int, processes: int) -> int:
    """Images of the smallest share of an epoch's smallest batch.

    >>> _smallest_share(1437, 205, 1), _smallest_share(1437, 205, 2), _smallest_share(10, 20, 3)
    (2, 1, 3)
    """
    return min(batch_size, num_examples % batch_size or num_examples) // processes


def check_batch(model: nn.Module, x: torch.Tensor) -> None:
    """Refuse a model that fails on a whole batch, though it takes the few images it is tried on first."""
    try:
        with frozen(model, "eval") as call, torch.no_grad():
            call(x)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise UsageError(
            f"model {type(model).__name__} takes a few images and not a batch of {len(x)}: {failed_at(error)}; repair "
            "it there, or use a smaller --batch-size"
        ) from None


def check_outside(model: nn.Module, x: torch.Tensor, attack: Attack | None) -> None:
    """Refuse a model that fails on images a little outside [0, 1], where an attack that is not clamped starts."""
    if getattr(attack, "clamp_start", True) or getattr(attack, "start", "zero") == "zero":
        return
    outside = x.round() * (1 + 2 * _OUTSIDE) - _OUTSIDE
    try:
        with frozen(model, "eval") as call, torch.no_grad():
            call(outside)
    except Exception as error:
        raise UsageError(
            f"model {type(model).__name__} fails on images a little outside [0, 1], where the attack starts: "
            f"{failed_at(error)}; leave that check out, or use --set attack.clamp_start=true"
        ) from None


def check_finite(epoch: int, loss_sum: float) -> None:
    """Stop where a loss was not a number. Epochs here come from 0, and are told from 1 as in every line."""
    if not math.isfinite(loss_sum):
        raise TrainingStopped(f"the loss of epoch {epoch + 1} is not a number; lower the learning rate (--set lr=...)")


def check_weights(epoch: int, parameters: Sequence[torch.Tensor]) -> None:
    """Stop before parameters that are not numbers are saved."""
    with torch.no_grad():
        norms = torch.stack([torch.linalg.vector_norm(parameter).float() for parameter in parameters])
    if not bool(norms.isfinite().all()):
        raise TrainingStopped(
            f"a parameter is not a number after epoch {epoch + 1}; lower the learning rate (--set lr=...)"
        )


def luck(labels: torch.Tensor) -> tuple[float, float]:
    """The accuracies on these labels that luck can give.

    Naming one class always is right for its share; more than four standard deviations from any class's are not luck.
    """
    counts = torch.bincount(labels)
    shares = [float(counts[counts > 0].min()) / len(labels), float(counts.max()) / len(labels)]
    low, high = (4 * math.sqrt(share * (1 - share) / len(labels)) for share in shares)
    return shares[0] - low, shares[1] + high


def above_chance(labels: torch.Tensor) -> float:
    """The accuracy on these labels that shows that something was learnt: five points more than luck can give."""
    return luck(labels)[1] + 0.05


def chance_line(metrics: Mapping[str, Any], lucky: tuple[float, float]) -> str | None:
    """A line on a run whose last epoch is right as often as luck is; None where it has learnt something.

    Attacked images that are right less often than that show that the attack had something to go by.

    >>> [chance_line({"natural_accuracy": None, "robust_accuracy": share}, (0.08, 0.12)) for share in (0.3, 0.02)]
    [None, None]
    """
    shares = [metrics[name] for name in ("natural_accuracy", "robust_accuracy") if metrics[name] is not None]
    if not shares or not lucky[0] <= max(shares) <= lucky[1]:
        return None
    which = "attacked training images" if metrics["natural_accuracy"] is None else "training images"
    return (
        f"the run ends at chance: in its last epoch {100 * max(shares):.1f}% of the {which} are right; lower "
        "the learning rate (--set lr=...) or the radius (--set attack.eps=...), or train longer"
    )


def check_collapse(epoch: int, sums: Sequence[float], top_accuracy: float, learnt: float) -> None:
    """Stop where every weight was zero, or where a run that had learnt something predicts one class alone."""
    count, weight, predicted, predicted_squared = sums[0], sums[4], sums[6], sums[7]
    if weight == 0:
        raise TrainingStopped(
            f"every weight of epoch {epoch + 1} is zero, so nothing is learnt; use --set normalizer=mean_one, or "
            "change the weight's bias"
        )
    # Class numbers are whole, so these sums are exact: equal means without spread.
    is_constant = predicted_squared * count == predicted**2
    if is_constant and top_accuracy > learnt:
        raise TrainingStopped(
            f"the run collapsed: in epoch {epoch + 1} every prediction is class {predicted / count:.0f}, after an "
            f"accuracy of {100 * top_accuracy:.1f}%; lower the learning rate (--set lr=...)"
        )


def check_signs(epoch: int, weight: str, found_negative: bool) -> None:
    """Stop where an example's weight was below zero, which has the run unlearn it."""
    if found_negative:
        raise TrainingStopped(
            f"weight {weight!r} was below zero in epoch {epoch + 1}; return 0 or more, as values.clamp(min=0) does"
        )


_CPU_ALLOCATOR = "DefaultCPUAllocator"
"""In torch's words where the host's memory ends: on a CPU that has no class of its own."""


@contextmanager
def out_of_memory_named(batch_size: int) -> Iterator[None]:
    """Say which batch size to try where the memory of the device, or of the host, ends."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and _CPU_ALLOCATOR not in first:
            raise
        fix = f"half of it should fit: --batch-size {batch_size // 2}" if batch_size > 1 else "choose a smaller --model"
        raise TrainingStopped(f"out of memory at batch size {batch_size}; {fix} ({first})") from None
