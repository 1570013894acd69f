"""Weights from a file into a network: what fits, what does not, and normalisation that comes with them."""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.speech import Say, silent
from probmargin.engine.checkpoints import load_weights
from probmargin.engine.files import holds_json, read_json_object
from probmargin.engine.shapes import misfit_record
from probmargin.models.head import head_of
from probmargin.models.layers import Normalize

Weights = Mapping[str, torch.Tensor]
EXPORT_KEY = "probmargin"
"""Under this name an exported safetensors file says how its model is built."""
NO_FACTS = (SafetensorError, OSError, json.JSONDecodeError)
"""What reading that raises of a file that is none."""
_COUNTER = "num_batches_tracked"
_SHOWN = 10
"""Names of one kind that are listed before a count."""


@dataclass(frozen=True)
class Fit:
    """How weights compare with what a network needs."""

    missing: tuple[str, ...] = ()
    """Needed and not there."""
    unexpected: tuple[str, ...] = ()
    """There and not needed."""
    misshapen: Mapping[str, str] = field(default_factory=dict)
    """Of another shape: both shapes by name."""

    @property
    def count(self) -> int:
        """How many tensors do not match."""
        return len(self.missing) + len(self.unexpected) + len(self.misshapen)

    @property
    def is_exact(self) -> bool:
        """Does everything match?"""
        return not self.count

    def _groups(self) -> dict[str, list[str]]:
        shapes = [f"{name} {shapes}" for name, shapes in self.misshapen.items()]
        return {"missing": list(self.missing), "unexpected": list(self.unexpected), "of another shape": shapes}

    def lines(self) -> list[str]:
        """What did not match, a line each: the first of each kind, and how many more there are.

        >>> Fit(tuple(f"layer{number}" for number in range(12))).lines()[-2:]
        ['missing: layer9', 'missing: 2 more']
        """
        lines = []
        for kind, names in self._groups().items():
            lines += [f"{kind}: {name}" for name in names[:_SHOWN]]
            lines += [f"{kind}: {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
        return lines

    def short(self) -> str:
        """The same in one line: counts and the first of each.

        >>> Fit(("bn.weight", "bn.bias")).short()
        '2 missing (bn.weight, ...)'
        """
        rows = [(kind, names, ", ..." if len(names) > 1 else "") for kind, names in self._groups().items() if names]
        return "; ".join(f"{len(names)} {kind} ({names[0]}{more})" for kind, names, more in rows)


def compare(model: nn.Module, weights: Weights) -> Fit:
    """What of these weights fits the model; counters of batch norm, which old files lack, do not count."""
    wanted = model.state_dict()
    both = [name for name in wanted if name in weights and wanted[name].shape != weights[name].shape]
    return Fit(
        tuple(name for name in wanted if name not in weights and not name.endswith(_COUNTER)),
        tuple(name for name in weights if name not in wanted),
        {name: f"{tuple(weights[name].shape)} for {tuple(wanted[name].shape)}" for name in both},
    )


def adopt(model: nn.Module, weights: Weights) -> None:
    """Take over every tensor that fits; the rest of the model stays as it is."""
    own = model.state_dict()
    fitting = {name: weights[name] for name in own if name in weights and own[name].shape == weights[name].shape}
    model.load_state_dict({**own, **fitting})


def with_weights(
    model: nn.Module,
    path: Path,
    name: str,
    *,
    image_shape: tuple[int, ...],
    new_head: bool | None = None,
    log: Say = silent,
) -> nn.Module:
    """The model with the weights of a file, inside the normalisation that comes with them.

    With `new_head` the last layer is left as the model has it, for as many classes or others; None is where a new
    one makes no sense, since nothing will train it.
    """
    model, target, weights = _matched(model, load_weights(path, log))
    fit = compare(target, weights)
    head = set() if fit.is_exact and not new_head else _head(model, target, image_shape)
    is_head = _is_head(fit, target, weights, head)
    if is_head and new_head is None:
        raise UsageError(f"{path} is for another number of classes ({fit.short()}): give data with its classes")
    if not fit.is_exact and not (new_head and is_head):
        if networks := _networks(target, weights):
            raise UsageError(
                f"{path} does not fit {name}: {fit.short()}; save what follows {' or '.join(networks)} in its names "
                "alone"
            )
        if ":" in name and not is_head:
            raise UsageError(
                f"{path} does not fit {name}: {fit.short()}; name the network that it is of, in front of which nothing "
                "but pm.Normalize may stand"
            )
        hint = "--new-head starts its last layer afresh for other classes" if is_head else "name its own model"
        raise UsageError(f"{path} does not fit {name}: {fit.short()}; {hint}, or see: probmargin import --help")
    if new_head:
        kept = {key: tensor for key, tensor in weights.items() if _layer(key) not in head}
        fresh = {key: tensor for key, tensor in target.state_dict().items() if _layer(key) in head}
        log(f"starts afresh: {', '.join(f'{key} {tuple(tensor.shape)}' for key, tensor in sorted(fresh.items()))}")
        weights = kept
    adopt(target, weights)
    return model


def _networks(model: nn.Module, weights: Weights) -> list[str]:
    """What the names of each of several networks begin with that lie side by side and would fit the model."""
    wanted = {name for name in model.state_dict() if not name.endswith(_COUNTER)}
    prefixes = sorted({f"{name.partition('.')[0]}." for name in weights if "." in name})
    return [prefix for prefix in prefixes if all(f"{prefix}{name}" in weights for name in wanted)]


def exported_facts(path: Path) -> Any:
    """What an exported safetensors file says of its model; None where it says nothing."""
    with safe_open(path, framework="pt") as file:
        return json.loads((file.metadata() or {}).get(EXPORT_KEY, "null"))


def class_names(path: Path) -> tuple[str, ...]:
    """The names of the classes that an exported file carries, or the run whose state it is; none where nothing does."""
    record = path.resolve().parent.parent / "record.json"
    if path.resolve().parent.name == "checkpoints" and holds_json(record, "class_counts"):
        return tuple(read_json_object(record, misfit_record)["class_counts"])
    try:
        facts = exported_facts(path)
    except NO_FACTS:
        return ()
    return tuple(map(str, facts.get("classes") or ())) if isinstance(facts, dict) else ()


def classes_of(path: Path, model: nn.Module, image_shape: tuple[int, ...]) -> int | None:
    """For how many classes a file's last layer is, where nothing but this number does not fit the model."""
    model, target, weights = _matched(model, load_weights(path))
    fit = compare(target, weights)
    is_head = not fit.is_exact and _is_head(fit, target, weights, _head(model, target, image_shape))
    return len(weights[next(iter(fit.misshapen))]) if is_head else None


def _unwrapped(weights: Weights, model: nn.Module) -> Weights:
    """Without what stands before all names alike, as where a network was a part of something larger."""
    own = model.state_dict()
    # A count that torch's averages of a network keep beside it.
    weights = {name: tensor for name, tensor in weights.items() if name != "n_averaged" or name in own} or weights
    while not any(name in own for name in weights):
        prefix = next(iter(weights)).partition(".")[0] + "."
        if prefix[:-1].isdigit() or any(not name.startswith(prefix) for name in weights):
            break
        weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    return weights


def mean_std_of(model: nn.Module) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """The normalisation a model begins with."""
    first = next(iter(model), None) if isinstance(model, nn.Sequential) else None
    if not isinstance(first, Normalize):
        return None
    return tuple(first.mean.flatten().tolist()), tuple(first.std.flatten().tolist())


def _matched(model: nn.Module, weights: Weights) -> tuple[nn.Module, nn.Module, Weights]:
    """The model as it will be, the part of it that the weights are of, and the weights by that part's names."""
    wholes, bare = [model], _unwrapped(weights, model)
    if {"0.mean", "0.std"} <= bare.keys():
        # What is called so may be the user's own, for images in 0 to 255, say.
        with suppress(UsageError):
            mean, std = (bare[f"0.{key}"].flatten().tolist() for key in ("mean", "std"))
            wholes.append(nn.Sequential(Normalize(mean, std), model))
    found = [(whole, part, _unwrapped(weights, part)) for whole in wholes for part in _parts(whole)]
    apart = {place: compare(part, own).count for place, (_, part, own) in enumerate(found)}
    return found[min(apart, key=lambda place: apart[place])]


def _parts(model: nn.Module) -> Iterator[nn.Module]:
    """The model, and what of it holds all its tensors but for those of our normalisation."""
    normalised = {id(tensor) for layer in model.modules() if isinstance(layer, Normalize) for tensor in _tensors(layer)}
    wanted = {id(tensor) for tensor in _tensors(model)} - normalised
    for part in model.modules():
        if wanted <= {id(tensor) for tensor in _tensors(part)}:
            yield part
    if mean_std_of(model) is not None:
        # Layers of a sequence are called by their number, which counts from the first behind the normalisation, or not.
        layers = list(model._modules.items())[1:]
        yield nn.Sequential(*(layer for _, layer in layers if layer is not None))
        yield nn.Sequential(OrderedDict((name, layer) for name, layer in layers if layer is not None))


def _tensors(layer: nn.Module) -> Iterator[torch.Tensor]:
    yield from layer.parameters()
    yield from layer.buffers()


def _layer(name: str) -> str:
    """Whose tensor it is."""
    return name.rpartition(".")[0]


def _head(model: nn.Module, target: nn.Module, image_shape: tuple[int, ...]) -> set[str]:
    """All names that the layer which makes the model's logits has in a part of it."""
    layers = dict(target.named_modules(remove_duplicate=False))
    # Where it cannot be told it is the last that has tensors, a second name of an earlier one left aside.
    stored = dict.fromkeys(layers[path] for path in map(_layer, target.state_dict()) if path in layers)
    last = head_of(model, image_shape) or next(reversed(stored), None)
    return {name for name, layer in layers.items() if layer is last}


def _is_head(fit: Fit, model: nn.Module, weights: Weights, head: set[str]) -> bool:
    """Is all that does not fit the last layer's number of classes?"""
    own = model.state_dict()
    same_otherwise = all(own[name].shape[1:] == weights[name].shape[1:] for name in fit.misshapen)
    in_head = all(_layer(name) in head for name in fit.misshapen)
    return bool(fit.misshapen) and not fit.missing and not fit.unexpected and same_otherwise and in_head
