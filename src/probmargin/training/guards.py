"""When to give a run up: what was saved before stays as it is."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from probmargin.core.errors import Failure


class TrainingStopped(Failure):
    """Training cannot go on; what was saved before stays."""


def check_finite(epoch: int, loss_sum: float) -> None:
    """Stop where a loss was not a number. Epochs here come from 0, and are told from 1 as in every line."""
    if not math.isfinite(loss_sum):
        raise TrainingStopped(f"the loss of epoch {epoch + 1} is not a number; lower the learning rate (--set lr=...)")


def check_numbers(epoch: int, weight: str, is_lost: bool) -> None:
    """Stop where weights were not numbers though the margins they were made of were."""
    if is_lost:
        raise TrainingStopped(
            f"the weight {weight} gave values that are not numbers in epoch {epoch + 1}; look at what it divides by"
        )


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
