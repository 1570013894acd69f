"""The network a run begins with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.speech import Say
from probmargin.data.dataset import DataSet
from probmargin.evaluation.run_data import numbered
from probmargin.models.build import build_model, check_model
from probmargin.models.checks import check_trainable
from probmargin.models.layers import Normalize
from probmargin.runs.weights import class_names, mean_std_of, with_weights


def make_model(
    asked: str | nn.Module,
    data: DataSet,
    *,
    seed: int,
    mean_std: tuple[Sequence[float], Sequence[float]] | None,
    checkpoint: Path | None,
    new_head: bool,
    log: Say,
) -> tuple[nn.Module, str, dict[str, Any] | None]:
    """The network, its name, and what is needed to build it again (None for an object)."""
    settings: dict[str, Any] | None = None
    if isinstance(asked, nn.Module):
        model, name = asked, type(asked).__name__
    else:
        name = asked
        settings = {"num_classes": data.num_classes, "in_channels": data.channels}
        if mean_std is not None:
            settings["mean_std"] = mean_std
        model = build_model(name, **settings, seed=seed)
        if mean_std is not None and sum(isinstance(layer, Normalize) for layer in model.modules()) > 1:
            raise UsageError(f"{name} normalises its images itself: leave out --normalize")
    shape = (data.channels, *data.image_size)
    if checkpoint is not None:
        check_model(model, shape, data.num_classes, name)
        if not new_head and (line := _other_classes(class_names(checkpoint), data)):
            log(f"{checkpoint} {line}")
        built = model
        model = with_weights(built, checkpoint, name, image_shape=shape, new_head=new_head, log=log)
        # A network of one's own that begins with a normalisation builds it itself.
        if settings is not None and (mean_std is not None or model is not built):
            settings["mean_std"] = mean_std_of(model)
    check_trainable(model, shape, data.num_classes, name)
    return model, name, settings


def _other_classes(names: tuple[str, ...], data: DataSet) -> str:
    """What to know of weights whose outputs stand for other classes than the data's; "" where they do not, as told."""
    are_named = numbered(data.classes) not in (names, data.classes)
    if names == data.classes or len(names) != len(data.classes) or not are_named:
        return ""
    place = next(place for place, pair in enumerate(zip(names, data.classes, strict=True)) if len(set(pair)) > 1)
    return (
        f"has {names[place]} as class {place}, and {data.name} has {data.classes[place]}: its last layer learns that "
        "anew; --new-head starts it afresh"
    )
