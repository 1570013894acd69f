"""Which layer of a network makes its logits."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from probmargin.models.checks import tried


def head_of(model: nn.Module, image_shape: tuple[int, ...]) -> nn.Module | None:
    """The layer called last of those that turn features into one number a class; None where that cannot be told.

    Its place among the other layers says nothing: a head may be made first, and a layer made last may never be called.

    >>> layers = nn.ModuleDict({"head": nn.Linear(4, 3), "body": nn.Linear(2, 4), "spare": nn.Linear(4, 3)})
    >>> layers.forward = lambda x: layers["head"](layers["body"](x))
    >>> head_of(layers, (2,)) is layers["head"]
    True
    """
    called: list[tuple[nn.Module, Any]] = []

    def note(layer: nn.Module, _args: Any, output: Any) -> None:
        called.append((layer, output))

    try:
        with ExitStack() as stack:
            for layer in model.modules():
                stack.callback(layer.register_forward_hook(note).remove)
            num_classes = int(tried(model, image_shape).shape[1])
    # What is wrong with the network is said by those who look for it.
    except (Exception, SystemExit):
        return None
    heads = [layer for layer, output in called if _classifies(layer, output, num_classes)]
    # One that holds another such layer has its matrix for something else.
    return next((layer for layer in reversed(heads) if not set(layer.modules()) & set(heads) - {layer}), None)


def _classifies(layer: nn.Module, output: Any, num_classes: int) -> bool:
    """Does a layer give one number a class, by a matrix of its own or by a convolution of single pixels?"""
    if not isinstance(output, torch.Tensor) or output.ndim not in (2, 4) or output.shape[1] != num_classes:
        return False
    shapes = [tuple(tensor.shape) for tensor in layer._parameters.values() if tensor is not None]
    if output.ndim == 2:
        return any(len(shape) == 2 and num_classes in shape for shape in shapes)
    return any(len(shape) == 4 and shape[0] == num_classes and shape[2:] == (1, 1) for shape in shapes)
