"""Others' weights into our networks: by name, checked, and reported."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from probmargin.core.errors import UsageError, unknown_name
from probmargin.core.shell import typed
from probmargin.core.speech import Say
from probmargin.engine.checkpoints import load_weights
from probmargin.engine.files import check_is_new, written_aside
from probmargin.export.formats import write_network
from probmargin.export.layouts import LAYOUTS, Weights, renamer, split_normalisation
from probmargin.models.build import build_model
from probmargin.models.layers import Normalize
from probmargin.runs.weights import adopt, compare

Numbers = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """An import as asked for."""

    weights: Path
    layout: str
    model: str
    out: Path
    mean: Numbers | None = None
    """What the images are normalised by, where the file does not say."""
    std: Numbers | None = None
    partial: bool = False
    """Write what fits, though not everything does."""


def import_weights(request: ImportRequest, log: Say) -> nn.Module:
    """Read, rename, compare, write a safetensors file and return our network; refused unless everything matches."""
    if request.layout not in LAYOUTS:
        raise unknown_name("layout", request.layout, LAYOUTS)
    if request.out.suffix != ".safetensors":
        stem = request.out.with_suffix("") if request.out.name else "weights"
        raise UsageError(f"imported weights are written as safetensors: give -o {stem}.safetensors")
    check_is_new(request.out, "-o")
    weights, mean_std = _read(request, log)
    model = _network(request.model, weights)
    _check_normalisation(request, weights["conv1.weight"].shape[1])
    fit = compare(model, weights)
    for line in fit.lines():
        log(line)
    if not fit.is_exact and not request.partial:
        raise UsageError(
            f"{request.weights} is not a {request.model} in the layout {request.layout}: {fit.short()}; try another "
            "--model or --layout, or take what fits with --partial"
        )
    adopt(model, weights)
    count = len(weights.keys() & model.state_dict().keys()) - len(fit.misshapen)
    whole = model if mean_std is None else nn.Sequential(Normalize(*mean_std), model)
    with written_aside(request.out) as aside:
        write_network(aside, whole, {"model": request.model, "settings": {**_sizes(weights), "mean_std": mean_std}})
    _say(request, count, mean_std is not None, log)
    return whole.eval()


def _read(request: ImportRequest, log: Say) -> tuple[Weights, tuple[Numbers, Numbers] | None]:
    """The weights under our names, and the normalisation in the file or on the command line."""
    layout = LAYOUTS[request.layout]
    weights = load_weights(request.weights, log)
    found = None
    if layout.normalisation:
        weights, found = split_normalisation(weights)
    rename = renamer(request.model)
    kept = {rename(name): tensor for name, tensor in weights.items() if not name.startswith(layout.dead)}
    if (request.mean is None) != (request.std is None):
        raise UsageError("--mean and --std belong together: give both, one number a channel")
    if found is not None and request.mean is not None:
        raise UsageError(f"{request.weights} brings its own normalisation: leave out --mean and --std")
    if request.mean is not None and request.std is not None:
        return kept, (request.mean, request.std)
    if found is None:
        return kept, None
    mean, std = (tuple(float(value) for value in part.flatten().tolist()) for part in found)
    return kept, (mean, std)


def _check_normalisation(request: ImportRequest, channels: int) -> None:
    """Refuse numbers that would make every image NaN, or fit no image at all."""
    for option, numbers in (("--mean", request.mean), ("--std", request.std)):
        if numbers is None:
            continue
        if len(numbers) != channels:
            raise UsageError(f"{option} has {len(numbers)} of {channels} numbers: give one for each channel")
        if not all(math.isfinite(number) and (number > 0 or option == "--mean") for number in numbers):
            rule = "finite" if option == "--mean" else "finite and above 0"
            raise UsageError(f"{option} must be {rule}, not {','.join(map(str, numbers))}")


def _network(name: str, weights: Weights) -> nn.Module:
    """Our network for as many classes and channels as the weights have."""
    first, last = weights.get("conv1.weight"), weights.get("linear.weight")
    if first is None or last is None or first.ndim != 4 or last.ndim != 2:
        known = ", ".join(list(weights)[:3])
        raise UsageError(
            f"no conv1 and last linear layer is found among {len(weights)} names ({known}, ...): try another --layout"
        )
    with torch.random.fork_rng(devices=[]):
        return build_model(name, **_sizes(weights))


def _sizes(weights: Weights) -> dict[str, Any]:
    """Classes and channels, by the last and the first layer."""
    return {"num_classes": len(weights["linear.weight"]), "in_channels": weights["conv1.weight"].shape[1]}


def _say(request: ImportRequest, count: int, normalised: bool, log: Say) -> None:
    log(f"{count} tensors matched; normalisation {'is inside the file' if normalised else 'none'}")
    if note := LAYOUTS[request.layout].notes.get(request.model):
        log(f"note: {note}")
    log(f"written to {request.out}")
    judged = f"--model {request.model} --checkpoint {typed(request.out)}"
    log(f"judge it with: probmargin evaluate {judged} --data cifar10 --data-dir DIR")
