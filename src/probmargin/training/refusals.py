"""What is refused before the first step, since it could not work."""

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from probmargin.attacks.attack import Attack
from probmargin.attacks.lm_pgd import LMPGD
from probmargin.attacks.pgd import PGD, EarlyStopPGD
from probmargin.core.errors import UsageError
from probmargin.core.frozen import frozen
from probmargin.core.settings import Augment
from probmargin.methods.method import Method
from probmargin.methods.plain import check_radius
from probmargin.models.checks import Again, computed_again
from probmargin.models.own import failed_at

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


def changes_the_model(method: Method) -> bool:
    """Whether a step asks the model at other weights than its own, or in training mode with buffers of its own."""
    attacks = (attack for attack in (method.attack, method.second_attack) if attack is not None)
    return method.awp is not None or any(attack.model_mode == "train" for attack in attacks)


def check_computes_once(
    model: nn.Module, image_shape: tuple[int, ...], methods: Iterable[Method], *, in_place: bool
) -> None:
    """Refuse a network that computes again in backward, which it does with its own weights and buffers.

    Where AWP moves weights `in_place`, for the whole step, these are the moved ones, and buffers alone matter.
    """
    changing = next(filter(changes_the_model, methods), None)
    again = Again() if changing is None else computed_again(model, image_shape)
    if changing is None or not again.computes or (in_place and changing.awp and not again.moves_buffers):
        return
    what, setting, value = "an attack in training mode cannot follow", "attack.model_mode", "eval"
    if changing.awp is not None:
        own = "moves its buffers in a pass that AWP adds" if in_place else "has its own weights, not those AWP moved"
        what, setting, value = f"what it computes {own}", "awp", "none"
    fix = f"--set {setting}={value}" if in_place else f'pm.resolve(..., settings={{"{setting}": "{value}"}})'
    raise UsageError(
        f"model {type(model).__name__} computes part of a pass again in backward, as torch.utils.checkpoint does, and "
        f"{what} there: leave checkpointing out, or use {fix}"
    )


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
