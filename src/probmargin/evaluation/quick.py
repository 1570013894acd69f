"""A copy of a model that is quick to ask, layer by layer, with and without gradient."""

import copy
from itertools import pairwise, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from probmargin.core.frozen import frozen
from probmargin.core.types import Classifier, Images

_SAME = 1e-4
_FEW_CHANNELS = 3


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
                _flatten_in_place(module, other, x[:1])
                _replace_stem(module, x)
        other = other.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with frozen(model, "eval") as call:
            pairs = zip(_logits_and_slope(call, x[:2]), _logits_and_slope(other, x[:2]), strict=True)
            is_same = all(torch.allclose(first, second, rtol=_SAME, atol=_SAME) for first, second in pairs)
    except Exception:  # whatever a foreign model raises here, it can still be judged as it is
        return model
    return other if is_same else model


def _logits_and_slope(model: Classifier, x: Images) -> tuple[torch.Tensor, torch.Tensor]:
    """What a model says of images, and its gradient there."""
    point = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        logits = model(point)
        # Each class by another share: logits that are centred have a sum without slope.
        shares = torch.linspace(1.0, 2.0, logits.shape[1], dtype=logits.dtype, device=logits.device)
        (slope,) = torch.autograd.grad((logits * shares).sum(), point)
    return logits.detach(), slope


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


def _shapes(layer: nn.Module, model: nn.Module, x: Images) -> set[tuple[torch.Size, torch.Size]]:
    """The shapes that go into a layer and come out of it when the model is asked."""
    seen: set[tuple[torch.Size, torch.Size]] = set()

    def note(_: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        seen.add((inputs[0].shape, output.shape))

    handle = layer.register_forward_hook(note)
    with torch.no_grad():
        model(x)
    handle.remove()
    return seen


def _drop_idle_pools(layers: nn.Sequential, model: nn.Module, x: Images) -> None:
    """Drop adaptive pooling to the size that images of this size already have there."""
    for name, pool in list(layers.named_children()):
        if type(pool) is nn.AdaptiveAvgPool2d and all(into == out for into, out in _shapes(pool, model, x)):
            setattr(layers, name, nn.Identity())


class _FlattenLast(nn.Module):
    """Flattens with the channels last, which moves nothing where they are last in memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


def _flatten_in_place(layers: nn.Sequential, model: nn.Module, x: Images) -> None:
    """Flatten features in the order they have in memory, and order the weights of the linear layer behind alike."""
    for (name, flatten), (_, linear) in pairwise(list(layers.named_children())):
        if type(flatten) is not nn.Flatten or type(linear) is not nn.Linear:
            continue
        shapes = {into for into, _ in _shapes(flatten, model, x)}
        if len(shapes) == 1 and len(shape := shapes.pop()) == 4 and flatten.start_dim == 1:
            weight = linear.weight.detach().unflatten(1, shape[1:])
            linear.weight = nn.Parameter(weight.permute(0, 2, 3, 1).flatten(1).contiguous())
            setattr(layers, name, _FlattenLast())


class _StemGradient(torch.autograd.Function):
    """A convolution whose gradient for its input is one matrix product, its rows added up where they belong."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, conv: nn.Conv2d) -> torch.Tensor:
        ctx.conv, ctx.size = conv, x.shape[2:]
        return F.conv2d(x, conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, None]:
        conv, (height, width), slope = ctx.conv, ctx.size, slopes[0]
        count, _, *out = slope.shape
        products = conv.weight.flatten(1).T @ slope.permute(0, 2, 3, 1).flatten(0, 2).T
        products = products.view(*conv.weight.shape[1:], count, *out)
        top, left = conv.padding
        padded = slope.new_zeros(count, conv.weight.shape[1], height + 2 * top, width + 2 * left)
        for place in product(*(range(length) for length in conv.weight.shape[1:])):
            down, across = (
                slice(at * gap, at * gap + step * (length - 1) + 1, step)
                for at, gap, step, length in zip(place[1:], conv.dilation, conv.stride, out, strict=True)
            )
            padded[:, place[0], down, across] += products[place]
        return padded[:, :, top : top + height, left : left + width], None


class _Stem(nn.Module):
    """The convolution that sees the images; nobody asks for its parameters' gradients."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _StemGradient.apply(x, self.conv)  # type: ignore[no-untyped-call]
        return found


def _replace_stem(layers: nn.Sequential, x: Images) -> None:
    """Find the gradient of a convolution of few channels otherwise: a CPU's kernels compute it for 16 at once."""
    for name, conv in list(layers.named_children()):
        if type(conv) is not nn.Conv2d or conv.weight.shape[1] > _FEW_CHANNELS or x.is_cuda:
            continue
        if conv.groups == 1 and conv.padding_mode == "zeros" and not isinstance(conv.padding, str):
            setattr(layers, name, _Stem(conv))
