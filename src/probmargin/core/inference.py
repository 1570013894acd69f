"""Gradients where a caller is inside torch.inference_mode, or hands over tensors that were made there."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn

from probmargin.core.errors import UsageError


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave torch.inference_mode, in which nothing has a gradient; as its caller wanted, none is kept unless asked for.

    >>> with torch.inference_mode(), outside_inference_mode():
    ...     torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.zeros(1).is_inference()
    (False, False, False)
    """
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def with_gradients(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy that may take part in a gradient where it was made in inference mode."""
    return tensor.clone() if tensor.is_inference() else tensor


def writes(tensor: torch.Tensor) -> int:
    """How often a tensor has been written to, as far as torch counts that.

    >>> x = torch.zeros(2)
    >>> before = writes(x)
    >>> x += 1
    >>> writes(x) - before
    1
    """
    return 0 if tensor.is_inference() else int(tensor._version)


def check_takes_gradients(model: nn.Module) -> None:
    """Refuse a network that was made in inference mode: torch takes no gradient to its parameters."""
    if any(own.is_inference() for own in chain(model.parameters(), model.buffers())):
        raise UsageError(
            f"model {type(model).__name__} was made under torch.inference_mode, where nothing has a gradient: build or "
            "load it outside"
        )
