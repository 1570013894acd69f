"""A model as attacks see it: no gradient for parameters, no buffer moves, train/eval mode put back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

from probmargin.core.inference import with_gradients
from probmargin.core.types import Classifier, Images, Logits

ModelMode = Literal["eval", "train"]


@contextmanager
def model_mode(model: nn.Module, mode: ModelMode) -> Iterator[None]:
    """Switch the whole model to a mode, and put every part back as it was found."""
    found = [(module, module.training) for module in model.modules()]
    model.train(mode == "train")
    try:
        yield
    finally:
        for module, was_training in found:
            module.training = was_training


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside torch's wrappers for several devices, which bring devices together in every pass.

    >>> net = nn.Linear(2, 2)
    >>> unwrapped(nn.DataParallel(net)) is net
    True
    """
    while isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        model = model.module
    return model


def with_clean_buffers(model: nn.Module, *, detach: bool) -> Classifier:
    """The model over copies of its buffers; with `detach`, over its parameters cut off from the graph too."""
    model = unwrapped(model)
    tensors: dict[str, torch.Tensor] = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for name, parameter in model.named_parameters():
        tensors[name] = with_gradients(parameter.detach()) if detach else parameter

    def forward(x: Images) -> Logits:
        logits: Logits = torch.func.functional_call(model, tensors, (x,))
        return logits

    return forward


@contextmanager
def frozen(model: Classifier, mode: ModelMode = "eval") -> Iterator[Classifier]:
    """Yield a callable that computes the model's logits and cannot change the model.

    >>> net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 2))
    >>> with frozen(net, "train") as call:
    ...     logits = call(torch.rand(3, 1, 2, 2))
    >>> logits.requires_grad, net.training, net[1].num_batches_tracked.item()
    (False, True, 0)
    """
    if not isinstance(model, nn.Module):
        yield model
        return
    with model_mode(model, mode):
        yield with_clean_buffers(model, detach=True)
