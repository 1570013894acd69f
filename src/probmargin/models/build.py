"""Models by name, or a user's own by package.module:factory."""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from probmargin.core.errors import unknown_name
from probmargin.models.checks import check_model as check_model
from probmargin.models.layers import Normalize
from probmargin.models.own import call_factory, origin as origin, own_factory
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
    """Build a model; with `seed` its initial weights depend on nothing else, and torch's generators are left alone."""
    factory = factory_of(name)
    with _seeded(seed):
        offered = accepted(factory, num_classes=num_classes, in_channels=in_channels)
        model = call_factory(name, factory, offered) if ":" in name else factory(**offered)
    return model if mean_std is None else nn.Sequential(Normalize(*mean_std), model)


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Whatever is drawn inside this block follows from the seed; torch's generators are then as they were found."""
    if seed is None:
        yield
        return
    # Not by torch.manual_seed: it seeds every GPU too, at once or when the first is used, and nothing takes that back.
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield


def factory_of(name: str) -> Callable[..., nn.Module]:
    """What builds the model of this name."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    if wide := re.fullmatch(r"wrn-(\d+)-(\d+)", name):
        depth, width = int(wide[1]), int(wide[2])
        return lambda num_classes, in_channels: WideResNet(depth, width, num_classes, in_channels)
    if ":" in name or name.endswith(".py"):
        return own_factory(name)
    raise unknown_name("model", name, DESCRIPTIONS)


def accepted(factory: Callable[..., nn.Module], **offered: int) -> dict[str, int]:
    """Those of the offered arguments the factory takes; a user's factory may take none."""
    parameters = inspect.signature(factory).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return offered
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in offered.items() if name in names}
