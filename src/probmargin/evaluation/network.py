"""A model made ready to be judged: in float32 at least, and laid out so that convolutions are fast."""

import copy

import torch
from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.frozen import model_mode
from probmargin.core.types import Classifier, Images

_SAME = 1e-4


def made_ready(model: Classifier, x: Images) -> tuple[Classifier, list[str]]:
    """The model to judge, and a sentence where it is not the one given; what is not a module stays as it is."""
    if not isinstance(model, nn.Module):
        return model, []
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if torch.float16 in dtypes:
        raise UsageError("float16 gradients underflow and attacks stall: call model.float() before evaluating")
    notes = []
    if torch.bfloat16 in dtypes:
        model = copy.deepcopy(model).float()
        notes = ["the weights are bfloat16: evaluated in a float32 copy"]
    return in_channels_last(model, x), notes


def in_channels_last(model: nn.Module, x: Images) -> nn.Module:
    """A copy with channels last in memory, half as slow on a CPU; the model itself where it does not stand that.

    A model may reshape by `view`, or not be copied at all; then it is judged as it is.
    """
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return model
    try:
        other = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with model_mode(model, "eval"), model_mode(other, "eval"), torch.no_grad():
            first, second = model(x[:2]), other(x[:2])
    except Exception:  # whatever a foreign model raises here, it can still be judged in its own layout
        return model
    close = torch.allclose(first, second, rtol=_SAME, atol=_SAME)
    return other if close else model
