"""The training loss for anyone's own loop."""

from dataclasses import replace

import torch
from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.noise import fresh_noise
from probmargin.core.types import Images, Labels
from probmargin.methods.method import Method
from probmargin.methods.plain import with_settings
from probmargin.methods.resolve import named
from probmargin.training.network import Network
from probmargin.training.step import Batch, attack_batch, batch_loss, view_of, weigh


def recipe_loss(model: nn.Module, x: Images, labels: Labels, recipe: Method, seed: int | None) -> torch.Tensor:
    """Attack a batch by a recipe, weigh its examples and return the loss."""
    _check_batch(x, labels)
    network = Network(model)
    batch = Batch(x=x, labels=labels, noise=fresh_noise(len(x), x.device, seed))
    view = view_of(network.forward, recipe, batch, attack_batch(network, recipe, batch))
    weight, _ = weigh(view, recipe)
    return batch_loss(view, recipe, weight)


def _check_batch(x: object, labels: object) -> None:
    """Refuse what a loader may yield instead of a batch; pixels are not looked at, since that waits for the device."""
    if not isinstance(x, torch.Tensor) or not isinstance(labels, torch.Tensor):
        found = type(x if not isinstance(x, torch.Tensor) else labels).__name__
        raise UsageError(f"mail_loss takes tensors x and labels, not {found}: take them out of the batch first")
    if x.ndim != 4 or not x.is_floating_point() or len(x) != len(labels):
        raise UsageError(
            f"mail_loss takes float images (B, C, H, W) in [0, 1] and B labels, not {x.dtype} {tuple(x.shape)} and "
            f"{tuple(labels.shape)}: convert them before the call"
        )


def loss_recipe(method: str | Method, weighted: bool, **attack_settings: float) -> Method:
    """The recipe of the last epoch, or of burn-in; attack sizes go with a name, a Method brings its own."""
    recipe = named(method) if isinstance(method, str) else method
    if recipe.attack is not None and isinstance(method, str):
        recipe = with_settings(recipe, {f"attack.{key}": value for key, value in attack_settings.items()})
    if not weighted:
        return recipe.without_weights()
    num_steps = getattr(recipe.attack, "num_steps", 0)
    weight = recipe.weight.resolve(epoch=recipe.epochs - 1, epochs=recipe.epochs, num_steps=num_steps)
    return replace(recipe, weight=weight)
