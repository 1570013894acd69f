"""Projection on a hyperplane within the box [0, 1], for L-inf and L2, without sorting."""

import torch

from probmargin.attacks.balls import Norm

_FLAT = 1e-8


def _level(slope: torch.Tensor, reach: torch.Tensor, height: torch.Tensor) -> torch.Tensor:
    """Solve sum_i slope_i min(t, reach_i) = height for t, a row each; infinite where even t = inf is too low.

    Newton's method on a concave, increasing, piecewise linear function: from the left it rises to the root and
    stops when no further coordinate is exhausted.

    >>> _level(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 4.0]]), torch.tensor([3.0])).tolist()   # .5 + 2t = 3
    [1.25]
    """
    spent = torch.zeros_like(slope, dtype=torch.bool)
    level = torch.zeros_like(height)
    whole = slope * reach
    for _ in range(slope.shape[1] + 1):
        rest = height - whole.masked_fill(~spent, 0.0).sum(dim=1)
        rate = slope.masked_fill(spent, 0.0).sum(dim=1)
        level = torch.where(rate > 0, torch.maximum(rest / rate, level), torch.inf)
        now = reach <= level[:, None]
        if torch.equal(now, spent):
            break
        spent = now
    return level


def shift_to_hyperplane(points: torch.Tensor, normal: torch.Tensor, excess: torch.Tensor, norm: Norm) -> torch.Tensor:
    """The smallest d with <normal, points + d> lower by `excess` and points + d in [0, 1]; (R, n) each.

    Where the box forbids it, every useful coordinate goes to its wall.

    >>> points, normal = torch.tensor([[0.5, 0.1]]), torch.tensor([[1.0, 1.0]])
    >>> shift_to_hyperplane(points, normal, torch.tensor([0.4]), "Linf").tolist()   # .1 is all the second can give
    [[-0.3, -0.1]]
    >>> shift_to_hyperplane(points, normal, torch.tensor([-0.4]), "L2").tolist()
    [[0.2, 0.2]]
    """
    normal = torch.where(excess[:, None] < 0, -normal, normal)
    room = torch.where(normal >= 0, points, 1.0 - points)
    size = normal.abs()
    if norm == "Linf":
        level = _level(size, room, excess.abs())
        return -normal.sign() * torch.minimum(level[:, None], room)
    useful = size >= _FLAT
    slope = size.square().masked_fill(~useful, 0.0)
    reach = (room / size.clamp(min=_FLAT)).masked_fill(~useful, 0.0)
    level = _level(slope, reach, excess.abs())
    return -normal.sign() * torch.minimum(level[:, None], reach) * size
