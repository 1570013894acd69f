"""Other repositories' names for the layers of our networks."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from probmargin.core.errors import UsageError
from probmargin.models.wide_resnet import blocks_per_stage

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Layout:
    """What a repository's files look like."""

    summary: str
    dead: tuple[str, ...] = ()
    """Prefixes of layers that its forward pass never uses."""
    normalisation: bool = False
    """Mean and deviation may lie among the weights."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """By model: what the names cannot tell."""


_DEAD = ("sub_block1.",)
_OUTSIDE = "AWP's script for AT normalises images outside the network: give --mean and --std if this file is from there"
_SHORTCUT = (
    "names cannot tell where a shortcut branches off: ours do after the first activation (out_shortcut=True there); "
    "check the accuracy with probmargin evaluate"
)

LAYOUTS = {
    "trades": Layout("TRADES and what descends from it", dead=_DEAD),
    "gairat": Layout("GAIRAT and MAIL", dead=_DEAD),
    "awp": Layout("AWP", dead=_DEAD, notes={"preact-resnet18": _OUTSIDE}),
    "robustbench": Layout("RobustBench", dead=_DEAD, normalisation=True, notes={"preact-resnet18": _SHORTCUT}),
}


def split_normalisation(weights: Weights) -> tuple[Weights, tuple[torch.Tensor, torch.Tensor] | None]:
    """Take mean and deviation out of RobustBench's weights: mu and sigma, or normalize.* around model.*.

    >>> mean, std = torch.zeros(3), torch.ones(3)
    >>> list(split_normalisation({"normalize.mean": mean, "normalize.std": std, "model.fc.bias": mean})[0])
    ['fc.bias']
    """
    if "normalize.mean" in weights and "normalize.std" in weights:
        rest = {name: tensor for name, tensor in weights.items() if not name.startswith("normalize.")}
        inner = {name.removeprefix("model."): tensor for name, tensor in rest.items()}
        return inner, (weights["normalize.mean"], weights["normalize.std"])
    if "mu" in weights and "sigma" in weights:
        rest = {name: tensor for name, tensor in weights.items() if name not in ("mu", "sigma")}
        return rest, (weights["mu"], weights["sigma"])
    return weights, None


def renamer(model: str) -> Callable[[str], str]:
    """How a layer of their network is called in ours.

    >>> renamer("wrn-34-10")("block2.layer.0.convShortcut.weight"), renamer("resnet18")("layer3.1.bn2.bias")
    ('blocks.5.shortcut.weight', 'blocks.5.bn2.bias')
    """
    if model in ("resnet18", "preact-resnet18"):
        return lambda name: _stage(name, r"layer([1-4])\.(\d+)\.", 2)
    if wide := re.fullmatch(r"wrn-(\d+)-(\d+)", model):
        count = blocks_per_stage(int(wide[1]))
        return lambda name: _wide(name, count)
    raise UsageError(f"there is no layout for {model}: import weights into resnet18, preact-resnet18 or wrn-D-W")


def _stage(name: str, pattern: str, count: int) -> str:
    """The name with (stage from 1, place in it) as one number."""
    found = re.match(pattern, name)
    if found is None:
        return name
    return f"blocks.{(int(found[1]) - 1) * count + int(found[2])}.{name[found.end() :]}"


def _wide(name: str, count: int) -> str:
    if name.startswith("block"):
        return _stage(name, r"block([1-3])\.layer\.(\d+)\.", count).replace(".convShortcut.", ".shortcut.")
    return re.sub(r"^fc\.", "linear.", re.sub(r"^bn1\.", "bn.", name))
