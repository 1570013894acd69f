"""A model as the training step calls it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from probmargin.core.frozen import ModelMode, frozen, with_clean_buffers
from probmargin.core.types import Classifier, Images, Logits
from probmargin.engine.devices import Precision, network_precision


class Network:
    """A model run operation by operation, in the chosen precision."""

    def __init__(self, model: nn.Module, precision: Precision = "fp32") -> None:
        self.model = model
        self.precision: Precision = precision
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

    def trainable(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]
