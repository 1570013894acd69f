"""The network a run begins with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.speech import Say
from probmargin.data.dataset import DataSet
from probmargin.models.build import build_model, check_model
from probmargin.models.checks import check_trainable
from probmargin.models.layers import Normalize
from probmargin.runs.weights import mean_std_of, with_weights


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
        built = model
        model = with_weights(built, checkpoint, name, image_shape=shape, new_head=new_head, log=log)
        # A network of one's own that begins with a normalisation builds it itself.
        if settings is not None and (mean_std is not None or model is not built):
            settings["mean_std"] = mean_std_of(model)
    check_trainable(model, shape, data.num_classes, name)
    return model, name, settings
