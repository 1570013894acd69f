"""Adversarial weight perturbation and the moving average of weights."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.settings import AWP, EMA
from probmargin.core.types import Classifier, Reduce
from probmargin.training.network import Network

_TINY = 1e-20


def relative_ascent(weight: torch.Tensor, gradient: torch.Tensor, gamma: float) -> torch.Tensor:
    """gamma * ||W|| / ||g|| * g, one norm for the whole tensor.

    >>> relative_ascent(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]]), 0.1).tolist()
    [[0.0, 0.5]]
    """
    size: torch.Tensor = torch.linalg.vector_norm(weight) / (torch.linalg.vector_norm(gradient) + _TINY)
    return gamma * size * gradient


def _is_weight(name: str) -> bool:
    """By the parameter's own name: layers may be called anything.

    >>> _is_weight("head.weight"), _is_weight("weight.bias"), _is_weight("parametrizations.weight.original0")
    (True, False, True)
    """
    *path, own = name.split(".")
    # torch keeps what a parametrized tensor is made of under the tensor's name.
    return "weight" in (path[-1] if path[-2:-1] == ["parametrizations"] else own)


def moved_by_awp(model: nn.Module) -> dict[str, nn.Parameter]:
    """What AWP moves, by name: trained tensors called weight that have two dimensions or more.

    Biases and batch norm have one; position embeddings and tokens that are parameters of their own are not called so.
    """
    own = {name: p for name, p in model.named_parameters() if p.requires_grad and p.ndim >= 2 and _is_weight(name)}
    if not own:
        raise UsageError("AWP finds no trained matrix called weight in the model: name it so, or use --set awp=none")
    return own


def awp_moves(
    network: Network, awp: AWP, loss_at: Callable[[Classifier], torch.Tensor], reduce: Reduce
) -> list[tuple[nn.Parameter, torch.Tensor]]:
    """Parameters, and how far AWP moves each up the loss."""
    moved = list(moved_by_awp(network.model).values())
    gradients = torch.autograd.grad(loss_at(network.clean_forward()), moved, allow_unused=True)
    return [
        (parameter, relative_ascent(parameter.detach(), reduce(gradient), awp.gamma))
        for parameter, gradient in zip(moved, gradients, strict=True)
        if gradient is not None
    ]


@contextmanager
def perturbed_weights(
    network: Network,
    awp: AWP | None,
    loss_at: Callable[[Classifier], torch.Tensor],
    reduce: Reduce = lambda total: total,
) -> Iterator[None]:
    """Run the block at weights moved up the loss, and move them back by the same amount afterwards.

    The gradient is normalised directly: going through a proxy network's step, as released code does, loses digits. The
    extra pass leaves batch-norm buffers alone.
    `reduce` sums a gradient over all processes, so that all move to the same weights.
    """
    if awp is None:
        yield
        return
    moves = awp_moves(network, awp, loss_at, reduce)
    with torch.no_grad():
        for parameter, move in moves:
            parameter.add_(move)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, move in moves:
                parameter.sub_(move)


class MovingAverage:
    """An exponential moving average of a model's parameters; buffers are copied as they are."""

    def __init__(self, model: nn.Module, ema: EMA) -> None:
        self.ema = ema
        self.steps = 0
        """Steps behind it."""
        self.tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        # A tensor, so that a captured step sees every change of it.
        device = next(model.parameters()).device
        self._share = torch.zeros((), dtype=torch.float64, device=device)

    def prepare(self) -> None:
        """Use from the next update on what belongs to the steps taken so far."""
        self._share.fill_(1.0 - self.ema.decay_after(self.steps))

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take one step towards the model."""
        parameters = dict(model.named_parameters(remove_duplicate=False))
        for name, tensor in model.state_dict().items():
            if name in parameters:
                self.tensors[name].lerp_(tensor, self._share.to(tensor.dtype))
            else:
                self.tensors[name].copy_(tensor)
