"""A model as the training step calls it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from probmargin.core.frozen import ModelMode, frozen, with_clean_buffers
from probmargin.core.types import Classifier, Images, Logits
from probmargin.engine.devices import Precision, network_precision


def to_training_mode(model: nn.Module) -> None:
    """Training mode, but for batch norm whose parameters are all frozen: its statistics stay as well."""
    model.train()
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and own and not any(p.requires_grad for p in own):
            module.eval()


def to_channels_last(model: nn.Module, image_shape: Sequence[int]) -> bool:
    """Order the weights as convolutions like them, unless the model cannot run so: some reshape by `view`."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    parameter = next(model.parameters())
    try:
        with frozen(model, "eval") as call, torch.no_grad():
            images = torch.zeros(2, *image_shape, device=parameter.device, dtype=parameter.dtype)
            call(images.contiguous(memory_format=torch.channels_last))
    except RuntimeError:
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return False
    return True


class Network:
    """A model run operation by operation, in the chosen precision."""

    def __init__(self, model: nn.Module, precision: Precision = "fp32") -> None:
        self.model = model
        self.precision: Precision = precision
        self.order = torch.contiguous_format
        """Of images in memory."""
        self.notes: list[str] = []
        """What a user should know of how this network runs."""
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def _in_precision(self, call: Classifier) -> Classifier:
        def forward(x: Images) -> Logits:
            with network_precision(self.precision, self._device):
                logits = call(x)
            return logits.to(x.dtype)

        return forward

    def forward(self, x: Images) -> Logits:
        """Training-mode pass with gradient; moves batch-norm statistics."""
        return self._in_precision(self.model)(x)

    def ahead(self, x: Images) -> Callable[[], Logits]:
        """A training-mode pass that an attack comes before; what it hands back finishes it."""
        return lambda: self.forward(x)

    def forget(self) -> None:
        """A step that was begun will not be finished."""

    def clean_forward(self) -> Classifier:
        """Training-mode pass with gradient that leaves the buffers alone."""
        return self._in_precision(with_clean_buffers(self.model, detach=False))

    @contextmanager
    def frozen(self, mode: ModelMode) -> Iterator[Classifier]:
        """What attacks get: no gradient for parameters, no buffer moves."""
        with frozen(self.model, mode) as call:
            yield self._in_precision(call)

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of a loss that was made of `forward`."""
        loss.backward()

    def settle(self) -> None:
        """Called after every step: a place to bring processes together."""
