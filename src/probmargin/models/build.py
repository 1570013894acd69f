"""Models by name, or a user's own by package.module:factory."""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from probmargin.core.errors import UsageError, unknown_name
from probmargin.models.layers import Normalize
from probmargin.models.resnet import PreActResNet18, ResNet18
from probmargin.models.small_cnn import SmallCNN
from probmargin.models.wide_resnet import WideResNet

DESCRIPTIONS = {
    "small-cnn": "four convolutions; for small data and CPUs",
    "resnet18": "post-activation ResNet-18, 3x3 stem (11,173,962 parameters for CIFAR-10)",
    "preact-resnet18": "pre-activation ResNet-18 (11,172,170 parameters for CIFAR-10)",
    "wrn-D-W": "wide ResNet of depth D and width W, such as wrn-34-10 (the paper's wrn-32-10 is the same network)",
    "pkg.module:factory": "your own: a function or class that returns an nn.Module from [0, 1] images to logits",
}

_BY_NAME: dict[str, Callable[..., nn.Module]] = {
    "small-cnn": SmallCNN,
    "resnet18": ResNet18,
    "preact-resnet18": PreActResNet18,
}


def build_model(
    name: str,
    *,
    num_classes: int,
    in_channels: int,
    mean_std: tuple[Sequence[float], Sequence[float]] | None = None,
    seed: int | None = None,
) -> nn.Module:
    """Build a model; with `seed` its initial weights depend on nothing else, and torch's generator is left alone."""
    factory = _factory(name)
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        model = factory(**_accepted(factory, num_classes=num_classes, in_channels=in_channels))
    if not isinstance(model, nn.Module):
        raise UsageError(f"{name} returned {type(model).__name__}, not an nn.Module")
    return model if mean_std is None else nn.Sequential(Normalize(*mean_std), model)


def _factory(name: str) -> Callable[..., nn.Module]:
    if name in _BY_NAME:
        return _BY_NAME[name]
    if wide := re.fullmatch(r"wrn-(\d+)-(\d+)", name):
        depth, width = int(wide[1]), int(wide[2])
        return lambda num_classes, in_channels: WideResNet(depth, width, num_classes, in_channels)
    if ":" in name:
        return _user_factory(name)
    raise unknown_name("model", name, DESCRIPTIONS)


def _user_factory(name: str) -> Callable[..., nn.Module]:
    """Import package.module:factory, looking in the current folder too, as `python -m` does."""
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(f"model {name}: cannot import {error.name}; run where it can be imported") from None
    factory: object = getattr(module, attribute, None)
    if not callable(factory):
        raise UsageError(f"model {name}: {module_name} has no function or class named {attribute!r}")
    return factory


def _accepted(factory: Callable[..., nn.Module], **offered: int) -> dict[str, int]:
    """Those of the offered arguments the factory takes; a user's factory may take none."""
    parameters = inspect.signature(factory).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return offered
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in offered.items() if name in names}


def check_model(model: nn.Module, image_shape: tuple[int, ...], num_classes: int, name: str) -> None:
    """Refuse a model that does not turn the data's images into one logit a class."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    was_training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            shape = tuple(model(torch.full((2, *image_shape), 0.5, device=device)).shape)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"model {name} does not take images of shape {image_shape}: {reason}") from None
    finally:
        for module, mode in was_training:
            module.training = mode
    if shape != (2, num_classes):
        raise UsageError(
            f"model {name} gives an output of shape {shape} for 2 images; the data has {num_classes} classes, "
            f"so it must be (2, {num_classes})"
        )
