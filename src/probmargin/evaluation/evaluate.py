"""Accuracy of a model on clean and attacked images."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from probmargin.attacks.attack import Attack
from probmargin.attacks.balls import Norm
from probmargin.core.errors import UsageError
from probmargin.core.losses import is_correct
from probmargin.core.noise import KeyedNoise
from probmargin.core.stats import wilson_interval
from probmargin.core.types import Classifier, Images, Labels
from probmargin.evaluation.protocol import build_attack, meaning

DEFAULT_CHUNK = 250


@dataclass(frozen=True)
class EvaluationSettings:
    """What every attack of an evaluation shares."""

    norm: Norm = "Linf"
    eps: float = 8 / 255
    seed: int = 0
    batch_size: int | None = None
    """Caps memory; verdicts do not depend on it."""
    protocol: str = "custom"


def correct_under(
    model: Classifier, attack: Attack | None, x: Images, labels: Labels, settings: EvaluationSettings
) -> torch.Tensor:
    """For each example: is it classified correctly, on the clean image or under the attack?

    All forwards go through one chunk shape: the last chunk is filled with copies of its first row.
    """
    size = min(settings.batch_size or DEFAULT_CHUNK, len(x))
    verdicts = []
    for start in range(0, len(x), size):
        rows = torch.arange(start, min(start + size, len(x)), device=x.device)
        filled = torch.cat([rows, rows[:1].expand(size - len(rows))])
        images, wanted = x[filled], labels[filled]
        if attack is not None:
            noise = KeyedNoise(seed=settings.seed, ids=filled)
            images = attack(model, images, wanted, noise=noise).x_adv
        with torch.no_grad():
            verdicts.append(is_correct(model(images), wanted)[: len(rows)])
    return torch.cat(verdicts)


def per_class_accuracy(correct: torch.Tensor, labels: Labels, num_classes: int) -> list[float | None]:
    """Accuracy of each class; None where the class has no example."""
    shares: list[float | None] = []
    for label in range(num_classes):
        own = correct[labels == label]
        shares.append(float(own.float().mean()) if len(own) else None)
    return shares


def entry(correct: torch.Tensor, labels: Labels, num_classes: int, *, clean: bool) -> dict[str, Any]:
    """One attack's result as plain data; the verdict of each example is a string of 0 and 1."""
    successes, total = int(correct.sum()), len(correct)
    return {
        "accuracy" if clean else "robust_accuracy": successes / total,
        "interval": list(wilson_interval(successes, total)),
        "per_class": per_class_accuracy(correct, labels, num_classes),
        "correct": "".join("1" if right else "0" for right in correct.tolist()),
    }


def evaluate(
    model: nn.Module,
    x: Images,
    labels: Labels,
    *,
    attacks: Sequence[str] = ("nat", "pgd-20"),
    settings: EvaluationSettings | None = None,
    log: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Judge a model that turns [0, 1] images into logits; the result is plain data, ready for evaluation.json."""
    settings = settings or EvaluationSettings()
    if len(x) == 0:
        raise UsageError("there is nothing to evaluate: the data has no images")
    built = {name: build_attack(name, settings.norm, settings.eps) for name in attacks}
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            num_classes = int(model(x[:1]).shape[1])
        if int(labels.max()) >= num_classes:
            raise UsageError(f"a label is {int(labels.max())} but the model has {num_classes} classes")
        results: dict[str, Any] = {
            "protocol": settings.protocol,
            "norm": settings.norm,
            "eps": settings.eps,
            "num_examples": len(x),
            "seed": settings.seed,
        }
        for name, attack in built.items():
            began = time.perf_counter()
            correct = correct_under(model, attack, x, labels, settings)
            results[name] = entry(correct, labels, num_classes, clean=attack is None)
            results[name] |= {"seconds": round(time.perf_counter() - began, 3), "attack": meaning(attack)}
            if log:
                share = results[name].get("accuracy", results[name].get("robust_accuracy"))
                log(f"{name}: {100 * share:.2f}% of {len(x)} ({results[name]['seconds']:.1f} s)")
    finally:
        model.train(was_training)
    return results
