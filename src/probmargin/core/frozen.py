"""A model as attacks see it: no gradient for parameters, no buffer moves, train/eval mode put back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

from probmargin.core.inference import with_gradients
from probmargin.core.types import Classifier, Images, Logits

ModelMode = Literal["eval", "train"]
_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


@contextmanager
def model_mode(model: nn.Module, mode: ModelMode) -> Iterator[None]:
    """Switch the whole model to a mode, and put every part back as it was found."""
    found = [(module, module.training) for module in model.modules()]
    try:
        _switch(model, mode)
        yield
    finally:
        for module, was_training in found:
            module.training = was_training


def _switch(model: nn.Module, mode: ModelMode) -> None:
    try:
        model.train(mode == "train")
    except NotImplementedError:
        # A program of torch.export has its mode built in and refuses to be asked; the parts around it have not.
        for module in model.modules():
            module.training = mode == "train"


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside torch's wrappers for several devices, which bring devices together in every pass.

    What lies around such a wrapper, as torch.compile and Lightning Fabric put it there, goes with it.

    >>> net = nn.Linear(2, 2)
    >>> unwrapped(nn.DataParallel(net)) is net
    True
    """
    layer: nn.Module | None = model
    while layer is not None:
        inner = _inside(layer)
        if inner is not None and isinstance(layer, _PARALLEL):
            model = inner
        layer = inner
    return model


def _inside(model: nn.Module) -> nn.Module | None:
    """What a wrapper is around: torch's own for several devices, of torch.compile, or of Lightning Fabric."""
    names = ("module",) if isinstance(model, _PARALLEL) else ("_orig_mod", "_forward_module")
    return next((model._modules[name] for name in names if name in model._modules), None)


def called_with(model: nn.Module, instead: Callable[[torch.Tensor], torch.Tensor]) -> Classifier:
    """The model over other tensors than its own: what `instead` makes of each parameter and buffer.

    A tensor or a layer may have several names. Each layer is listed once and each tensor replaced once: torch's own
    treatment of such names puts the replacement back in the place of the parameter.
    """
    made: dict[int, torch.Tensor] = {}
    tensors: dict[str, torch.Tensor] = {}
    for path, layer in model.named_modules():
        for name, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            if tensor is not None:
                if id(tensor) not in made:
                    made[id(tensor)] = instead(tensor)
                if made[id(tensor)] is not tensor:
                    tensors[f"{path}.{name}" if path else name] = made[id(tensor)]

    def forward(x: Images) -> Logits:
        logits: Logits = torch.func.functional_call(model, tensors, (x,), tie_weights=False)
        return logits

    return forward


def with_clean_buffers(model: nn.Module, *, detach: bool) -> Classifier:
    """The model over copies of its buffers; with `detach`, over its parameters cut off from the graph too."""

    def instead(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            return tensor.clone()
        return with_gradients(tensor.detach()) if detach else tensor

    return called_with(unwrapped(model), instead)


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
