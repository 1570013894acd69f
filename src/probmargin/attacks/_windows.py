"""Square's proposals: windows of an image set to an extreme (L-inf) or to a patch of energy (L2).

Each function works on rows: one image, its best point so far and its own random numbers a row.
"""

import functools
import math

import torch

from probmargin.attacks._geometry import length, per_image
from probmargin.core.types import Images

_TINY = 1e-12
_STAGES = ((10, 1), (50, 2), (200, 4), (500, 8), (1000, 16), (2000, 32), (4000, 64), (6000, 128), (8000, 256))


def window_share(step: int, p_init: float) -> float:
    """The share of pixels in a window at a step counted from 0: it halves in stages that are not rescaled.

    >>> [window_share(step, 0.8) for step in (0, 10, 11, 4999, 9000)]
    [0.8, 0.8, 0.4, 0.00625, 0.0015625]
    """
    return p_init / next((divisor for last, divisor in _STAGES if step <= last), 512)


def steps_in_stage(step: int) -> int:
    """How many steps, this one included, have windows of this step's size.

    >>> [steps_in_stage(step) for step in (0, 10, 11)]
    [11, 1, 40]
    """
    return next((last - step + 1 for last, _ in _STAGES if step <= last), _STAGES[-1][0])


def window_side(share: float, height: int, width: int, *, odd: bool) -> int:
    """Side of a square of this share of the pixels; odd and 3 or more for L2, before the image caps it.

    >>> [window_side(0.8 / 2**k, 32, 32, odd=False) for k in range(8)]
    [29, 20, 14, 10, 7, 5, 4, 3]
    >>> [window_side(0.8 / 2**k, 32, 32, odd=True) for k in range(8)]
    [29, 21, 15, 11, 7, 5, 5, 3]
    """
    side = round(math.sqrt(share * height * width))
    side = max(side, 3) | 1 if odd else max(side, 1)
    return min(side, height, width)


def _offsets(draws: torch.Tensor, free: int) -> torch.Tensor:
    """Where a window begins; as in the reference the last place never occurs, unless it is the only one."""
    return (draws * free).long()


def _inside(row: torch.Tensor, column: torch.Tensor, side: int, x: Images) -> torch.Tensor:
    """True in the window of each row's image, (R, 1, H, W)."""
    down = torch.arange(x.shape[2], device=x.device) - row[:, None]
    across = torch.arange(x.shape[3], device=x.device) - column[:, None]
    rows, columns = (down >= 0) & (down < side), (across >= 0) & (across < side)
    return (rows[:, :, None] & columns[:, None, :])[:, None]


def extremes(x: Images, eps: float, up: torch.Tensor) -> Images:
    """x + eps where `up`, else x - eps, clipped."""
    return torch.where(up, (x + eps).clamp(max=1.0), (x - eps).clamp(min=0.0))


def propose_linf(x: Images, x_best: Images, draws: torch.Tensor, side: int, eps: float) -> Images:
    """One window at an extreme, a sign a channel; draws are row, column, signs."""
    row, column = _offsets(draws[:, 0], x.shape[2] - side), _offsets(draws[:, 1], x.shape[3] - side)
    signs = draws[:, 2:, None, None] > 0.5
    return torch.where(_inside(row, column, side, x), extremes(x, eps, signs), x_best)


def num_kinds_linf(x: Images, side: int) -> int:
    """How many different proposals there are for a window of this side.

    >>> num_kinds_linf(torch.zeros(1, 1, 8, 8), 1), num_kinds_linf(torch.zeros(1, 3, 8, 8), 8)
    (98, 8)
    """
    channels, height, width = x.shape[1:]
    return int(max(height - side, 1) * max(width - side, 1) * 2**channels)


def kind_of_linf(draws: torch.Tensor, side: int, x: Images) -> torch.Tensor:
    """The number of a row's proposal: equal numbers mean equal window and signs.

    >>> kind_of_linf(torch.tensor([[0.0, 0.5, 0.9], [0.99, 0.99, 0.9]]), 1, torch.zeros(2, 1, 8, 8)).tolist()
    [7, 97]
    """
    row, column = _offsets(draws[:, 0], x.shape[2] - side), _offsets(draws[:, 1], x.shape[3] - side)
    number = row * max(x.shape[3] - side, 1) + column
    for sign in (draws[:, 2:] > 0.5).long().unbind(dim=1):
        number = number * 2 + sign
    return number


def _pyramid(height: int, width: int) -> torch.Tensor:
    down = (torch.arange(height) - height // 2).abs()
    across = (torch.arange(width) - width // 2).abs()
    ring = torch.maximum(down[:, None], across[None, :])
    layers = torch.arange(max(height // 2, width // 2) + 1)
    steps = (layers[:, None, None] >= ring) / (layers[:, None, None] + 1.0).square()
    total = steps.sum(dim=0)
    return total / total.square().sum().sqrt().clamp(min=_TINY)


def patch(side: int) -> torch.Tensor:
    """Energy of both signs in the two halves of a square, of norm 1, beside its transpose: (2, side, side).

    >>> patch(1).tolist()
    [[[-1.0]], [[-1.0]]]
    """
    half = side // 2
    both = torch.cat([_pyramid(half, side), -_pyramid(side - half, side)])
    both = both / both.square().sum().sqrt()
    return torch.stack([both, both.T])


@functools.lru_cache(maxsize=64)
def _patch_like(side: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """The patch where it is needed, kept so that a search does not upload it at every step."""
    return patch(side).to(device, dtype)


def _place(row: torch.Tensor, column: torch.Tensor, turned: torch.Tensor, x: Images, side: int) -> torch.Tensor:
    """The patch at each row's window, zero elsewhere, (R, 1, H, W)."""
    down = (torch.arange(x.shape[2], device=x.device) - row[:, None]).clamp(0, side - 1)
    across = (torch.arange(x.shape[3], device=x.device) - column[:, None]).clamp(0, side - 1)
    shapes = _patch_like(side, x.device, x.dtype)
    placed = shapes[turned[:, None, None], down[:, :, None], across[:, None, :]][:, None]
    return placed * _inside(row, column, side, x)


def _channel_norm(values: torch.Tensor) -> torch.Tensor:
    return values.square().sum(dim=(2, 3), keepdim=True).sqrt()


def on_sphere(x: Images, delta: torch.Tensor, eps: float) -> Images:
    """x + delta at length eps, clipped."""
    return (x + eps * delta / (per_image(length(delta, "L2"), x) + _TINY)).clamp(0.0, 1.0)


def propose_l2(x: Images, x_best: Images, draws: torch.Tensor, side: int, eps: float) -> Images:
    """Move the energy of a second window into a patch at the first; draws are two windows, turn, signs."""
    row, other_row = (_offsets(draws[:, k], x.shape[2] - side) for k in (0, 2))
    column, other_column = (_offsets(draws[:, k], x.shape[3] - side) for k in (1, 3))
    signs = torch.where(draws[:, 5:, None, None] > 0.5, 1.0, -1.0).to(x.dtype)
    first, second = _inside(row, column, side, x), _inside(other_row, other_column, side, x)
    delta = x_best - x
    spare = eps**2 - per_image(length(delta, "L2").square(), x)
    energy = _channel_norm(delta * (first | second)).square()
    within = delta * first
    fresh = _place(row, column, (draws[:, 4] > 0.5).long(), x, side) * signs
    fresh = fresh + within / (_TINY + _channel_norm(within))
    fresh = fresh / (_TINY + _channel_norm(fresh))
    fresh = fresh * (spare.clamp(min=0.0) / x.shape[1] + energy).sqrt()
    return on_sphere(x, torch.where(first, fresh, delta.masked_fill(second, 0.0)), eps)


def tile_grid(height: int, width: int) -> tuple[int, list[tuple[int, int]]]:
    """Side and upper left corners of the tiles that start the L2 search; those past the edge are cropped."""
    side = max(height // 5, 1)
    first = max((height - 5 * side) // 2, 0)
    return side, [(first + i * side, first + j * side) for i in range(height // side) for j in range(width // side)]


def add_tile(delta: torch.Tensor, corner: tuple[int, int], turn: torch.Tensor, signs: torch.Tensor, side: int) -> None:
    """Add the patch at a tile in place, with a turn an image (R, 1) and a sign an image and channel (R, C)."""
    place = delta[:, :, corner[0] : corner[0] + side, corner[1] : corner[1] + side]
    shapes = _patch_like(side, delta.device, delta.dtype)[(turn[:, 0] > 0.5).long()]
    ups = torch.where(signs > 0.5, 1.0, -1.0).to(delta.dtype)
    place += shapes[:, None, : place.shape[2], : place.shape[3]] * ups[:, :, None, None]
