"""Lengths, directions and projections in the order of operations of the reference.

Ascents of the DLR quotient are chaotic: on the parity fixture another order of the same roundings moves one best loss
in sixty by more than 1e-3. Where a search is compared with the reference, it therefore uses these.
"""

import torch

from probmargin.attacks.balls import Norm
from probmargin.core.types import Images, PerExample

_TINY = 1e-12


def per_image(values: PerExample, x: Images) -> torch.Tensor:
    """Shape one value an example so that it multiplies or selects images."""
    return values.view(-1, *[1] * (x.ndim - 1))


def length(delta: torch.Tensor, norm: Norm) -> PerExample:
    """The norm of each example.

    >>> length(torch.tensor([[3.0, -4.0]]), "L2").tolist(), length(torch.tensor([[3.0, -4.0]]), "Linf").tolist()
    ([5.0], [4.0])
    """
    flat = delta.flatten(1)
    return flat.abs().amax(dim=1) if norm == "Linf" else flat.square().sum(dim=1).sqrt()


def unit(delta: torch.Tensor, norm: Norm) -> torch.Tensor:
    """Scale each example to norm 1; zero stays zero."""
    return delta / (per_image(length(delta, norm), delta) + _TINY)


def ascent(gradient: torch.Tensor, norm: Norm) -> torch.Tensor:
    """The direction of fastest ascent: the sign for L-inf (sign 0 = 0), the unit vector for L2."""
    return gradient.sign() if norm == "Linf" else unit(gradient, "L2")


def into_ball(moved: Images, x: Images, norm: Norm, eps: float) -> Images:
    """Into the ball around x, then into [0, 1].

    >>> into_ball(torch.tensor([[0.8, 0.9]]), torch.tensor([[0.5, 0.5]]), "L2", 0.25).tolist()   # (3, 4) / 5 of eps
    [[0.65, 0.70]]
    """
    if norm == "Linf":
        return torch.minimum(torch.maximum(moved, x - eps), x + eps).clamp(0.0, 1.0)
    delta = moved - x
    size = per_image(length(delta, "L2"), x)
    return (x + delta / (size + _TINY) * size.clamp(max=eps)).clamp(0.0, 1.0)
