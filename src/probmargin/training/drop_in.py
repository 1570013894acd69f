"""The training loss for anyone's own loop."""

from dataclasses import replace

import torch
from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.frozen import frozen
from probmargin.core.noise import fresh_noise
from probmargin.core.types import Images, Labels
from probmargin.data.checks import check_labels, check_pixels
from probmargin.methods.method import Method
from probmargin.methods.plain import with_settings
from probmargin.methods.resolve import named
from probmargin.training.network import Network
from probmargin.training.step import Batch, attack_batch, batch_loss, view_of, weigh

_ROUNDING = 1e-4


def recipe_loss(model: nn.Module, x: Images, labels: Labels, recipe: Method, seed: int | None) -> torch.Tensor:
    """Attack a batch by a recipe, weigh its examples and return the loss."""
    _check_batch(x, labels)
    if x.device.type == "cpu":
        _check_values(model, x, labels)
    network = Network(model)
    batch = Batch(x=x, labels=labels.long(), noise=fresh_noise(len(x), x.device, seed))
    try:
        view = view_of(network.forward, recipe, batch, attack_batch(network, recipe, batch))
        weight, _ = weigh(view, recipe)
        return batch_loss(view, recipe, weight)
    except (IndexError, RuntimeError):
        if x.device.type == "cpu":
            _check_range(model, x, labels)
        raise


def _check_batch(x: object, labels: object) -> None:
    """Refuse what a loader may yield instead of a batch, by what is known without waiting for a device."""
    if not isinstance(x, torch.Tensor) or not isinstance(labels, torch.Tensor):
        found = type(x if not isinstance(x, torch.Tensor) else labels).__name__
        raise UsageError(f"mail_loss takes tensors x and labels, not {found}: take them out of the batch first")
    if x.ndim != 4 or not x.is_floating_point() or len(x) != len(labels):
        raise UsageError(
            f"mail_loss takes float images (B, C, H, W) in [0, 1] and B labels, not {x.dtype} {tuple(x.shape)} and "
            f"{tuple(labels.shape)}: convert them before the call"
        )
    if labels.ndim != 1 or labels.dtype.is_floating_point or labels.dtype == torch.bool:
        check_labels(labels, len(x), None)


def _check_values(model: nn.Module, x: Images, labels: Labels) -> None:
    """Look at pixels and labels, which costs nothing on a CPU; what rounding leaves outside [0, 1] is fine."""
    low, high = (float(value) for value in torch.aminmax(x))
    if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
        check_pixels(x)
    if int(labels.min()) < 0:
        _check_range(model, x, labels)


def _check_range(model: nn.Module, x: Images, labels: Labels) -> None:
    """Refuse labels of classes that the model has not."""
    with frozen(model, "eval") as call, torch.no_grad():
        num_classes = call(x[:1]).shape[1]
    check_labels(labels, len(x), num_classes)


def loss_recipe(method: str | Method, weighted: bool, **attack_settings: float) -> Method:
    """The recipe of the last epoch, or of burn-in; attack sizes go with a name, a Method brings its own."""
    recipe = method if isinstance(method, Method) else named(method)
    if recipe.attack is not None and isinstance(method, str):
        recipe = with_settings(recipe, {f"attack.{key}": value for key, value in attack_settings.items()})
    if not weighted:
        return recipe.without_weights()
    num_steps = getattr(recipe.attack, "num_steps", 0)
    weight = recipe.weight.resolve(epoch=recipe.epochs - 1, epochs=recipe.epochs, num_steps=num_steps)
    return replace(recipe, weight=weight)
