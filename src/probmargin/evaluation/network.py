"""A model made ready to be judged: in float32 at least, and for searches in a form that is quick to call."""

import copy
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from probmargin.core.errors import UsageError
from probmargin.core.frozen import model_mode
from probmargin.core.types import Classifier, Images

_SAME = 1e-4


@dataclass(frozen=True)
class Ready:
    """One model in two forms; what a search finds in the quick one counts only if it holds in the exact one."""

    exact: Classifier
    quick: Classifier
    notes: tuple[str, ...] = ()


def made_ready(model: Classifier, x: Images) -> Ready:
    """Refuse float16, judge bfloat16 weights in a float32 copy; what is not a module stays as it is."""
    if not isinstance(model, nn.Module):
        return Ready(model, model)
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if torch.float16 in dtypes:
        raise UsageError("float16 gradients underflow and attacks stall: call model.float() before evaluating")
    if torch.bfloat16 not in dtypes:
        return Ready(model, quick_copy(model, x))
    full = copy.deepcopy(model).float()
    return Ready(full, quick_copy(full, x), ("the weights are bfloat16: evaluated in a float32 copy",))


def quick_copy(model: nn.Module, x: Images) -> nn.Module:
    """A copy with channels last in memory, batch norm folded into convolutions and no pooling that does nothing.

    On a CPU it takes half the time. The model itself where that cannot be done: it may reshape by `view`, or refuse
    to be copied.
    """
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return model
    try:
        other = copy.deepcopy(model).eval()
        for module in list(other.modules()):
            if type(module) is nn.Sequential:
                _fold_norms(module)
                _overwrite_in_relu(module)
                _drop_idle_pools(module, other, x[:1])
        other = other.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with model_mode(model, "eval"), torch.no_grad():
            first, second = model(x[:2]), other(x[:2])
    except Exception:  # whatever a foreign model raises here, it can still be judged as it is
        return model
    return other if torch.allclose(first, second, rtol=_SAME, atol=_SAME) else model


def _fold_norms(layers: nn.Sequential) -> None:
    """Fold batch norm into the convolution right before it."""
    for (_, conv), (name, norm) in pairwise(list(layers.named_children())):
        if type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d and norm.track_running_stats:
            fused = fuse_conv_bn_eval(conv, norm)
            conv.weight, conv.bias = fused.weight, fused.bias
            setattr(layers, name, nn.Identity())


def _overwrite_in_relu(layers: nn.Sequential) -> None:
    """Let ReLU overwrite what a convolution or linear layer right before it made: nobody else sees that."""
    before: nn.Module | None = None
    for layer in layers.children():
        if type(layer) is nn.ReLU and type(before) in (nn.Conv2d, nn.Linear):
            layer.inplace = True
        if type(layer) is not nn.Identity:
            before = layer


def _drop_idle_pools(layers: nn.Sequential, model: nn.Module, x: Images) -> None:
    """Drop adaptive pooling to the size that images of this size already have there."""
    for name, pool in list(layers.named_children()):
        if type(pool) is not nn.AdaptiveAvgPool2d:
            continue
        shapes: set[bool] = set()

        def note(
            _: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor, seen: set[bool] = shapes
        ) -> None:
            seen.add(inputs[0].shape == output.shape)

        handle = pool.register_forward_hook(note)
        with torch.no_grad():
            model(x)
        handle.remove()
        if shapes == {True}:
            setattr(layers, name, nn.Identity())
