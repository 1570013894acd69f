"""A network and images as a caller holds them, checked and judged."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from probmargin.core.frozen import unwrapped
from probmargin.core.types import Images
from probmargin.data.checks import Array, as_tensor, check_images
from probmargin.data.given import collected
from probmargin.engine.devices import pick_device
from probmargin.evaluation.evaluate import EvaluationSettings, evaluate
from probmargin.evaluation.subject import WITHOUT_GRADIENTS
from probmargin.models.checks import (
    as_the_model_computes,
    check_gradient,
    check_is_network,
    check_keeps_images,
)


def evaluate_given(
    model: nn.Module,
    data: tuple[Array, Array] | DataLoader[Any],
    attacks: Sequence[str],
    settings: EvaluationSettings,
    device: str | None,
) -> dict[str, Any]:
    """Judge a network on (x, y), tensors or arrays, or on a loader of both; not every class need occur in them."""
    check_is_network(model)
    given = collected(data)
    x, labels = as_tensor(given[0], "images"), as_tensor(given[1], "labels")
    one_class = labels.numel() > 0 and not labels.is_floating_point() and bool(labels.min() == labels.max())
    check_images(x, labels, num_classes=max(2, int(labels.max()) + 1) if one_class else None)
    bare = unwrapped(model)
    found = next((tensor.device for tensor in (*bare.parameters(), *bare.buffers())), torch.device("cpu"))
    chosen = pick_device(device or str(found))
    try:
        results = _judged(bare.to(chosen), x, labels, attacks, settings, chosen)
    finally:
        bare.to(found)
    results["warnings"] += _one_class_first(labels, settings.aa_examples)
    return results


def _one_class_first(labels: torch.Tensor, first: int | None) -> list[str]:
    """A line where AutoAttack's part of the images has one class of several: they lie class by class."""
    classes = len(labels.unique())
    if first is None or classes == 1 or min(first, len(labels)) < 2 or len(labels[:first].unique()) > 1:
        return []
    return [f"the first {first} images are of 1 of the {classes} classes: shuffle them, or judge all"]


def _judged(
    on_device: nn.Module,
    x: torch.Tensor,
    labels: torch.Tensor,
    attacks: Sequence[str],
    settings: EvaluationSettings,
    chosen: torch.device,
) -> dict[str, Any]:
    """Judge a network where it lies."""
    name = type(on_device).__name__
    check_keeps_images(on_device, tuple(x.shape[1:]), name)
    if not set(attacks) <= WITHOUT_GRADIENTS:
        check_gradient(on_device, tuple(x.shape[1:]), name)
    images = _as_floats(x, on_device).to(chosen)
    return evaluate(on_device, images, labels.long().to(chosen), attacks=attacks, settings=settings)


def _as_floats(x: torch.Tensor, model: nn.Module) -> Images:
    """Bytes as floats in [0, 1], and all in the precision the model computes in."""
    return as_the_model_computes(x.float() / 255.0 if x.dtype == torch.uint8 else x, model)
