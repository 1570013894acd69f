"""Which layer of a network makes its logits."""

from typing import Any

import torch
from torch import nn

from probmargin.core.frozen import model_mode, with_clean_buffers
from probmargin.models.checks import as_the_model_computes, random_images


def head_of(model: nn.Module, image_shape: tuple[int, ...]) -> nn.Module | None:
    """The layer called last of those with a weight that has a row or a column for each class; None where none has.

    Its place among the other layers says nothing: a head may be made first, and a layer made last may never be called.

    >>> layers = nn.ModuleDict({"head": nn.Linear(4, 3), "body": nn.Linear(2, 4), "spare": nn.Linear(4, 3)})
    >>> layers.forward = lambda x: layers["head"](layers["body"](x))
    >>> head_of(layers, (2,)) is layers["head"]
    True
    """
    called: list[nn.Module] = []

    def note(layer: nn.Module, _args: Any, _output: Any) -> None:
        called.append(layer)

    hooks = [layer.register_forward_hook(note) for layer in model.modules() if layer._parameters]
    x = as_the_model_computes(random_images(model, 2, image_shape), model)
    try:
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), model_mode(model, "eval"), torch.no_grad():
            logits = with_clean_buffers(model, detach=True)(x)
    # What is wrong with the network is said by those who look for it.
    except (Exception, SystemExit):
        return None
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(logits, torch.Tensor) or not logits.ndim:
        return None
    return next((layer for layer in reversed(called) if _has_classes(layer, logits.shape[-1])), None)


def _has_classes(layer: nn.Module, num_classes: int) -> bool:
    tensors = (tensor for tensor in layer._parameters.values() if tensor is not None)
    return any(tensor.ndim > 1 and num_classes in tensor.shape[:2] for tensor in tensors)
