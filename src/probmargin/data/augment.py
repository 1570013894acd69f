"""Random crops and flips as indexing, decided by (seed, epoch) and the example's position alone."""

from typing import Literal

import torch

from probmargin.core.fusing import fusable
from probmargin.data.seeds import stream


def epoch_order(num_examples: int, *, seed: int, epoch: int) -> torch.Tensor:
    """Return the order in which an epoch visits the examples: a permutation, int64 (N,), on the CPU."""
    return torch.randperm(num_examples, generator=stream("order", seed, epoch))


def epoch_augmentation(num_examples: int, *, pad: int, flip: bool, seed: int, epoch: int) -> torch.Tensor:
    """Draw (dy, dx, flip) for every example of an epoch: int64 (N, 3), on the CPU.

    Row i belongs to the example at position i of the training set, so batch size and order do not matter.
    dy and dx are uniform on 0..2*pad, the corner of the crop in the padded image; flip is 0 or 1.
    """
    draws = torch.zeros(num_examples, 3, dtype=torch.int64)
    crops = stream("crop", seed, epoch)
    draws[:, :2] = torch.randint(0, 2 * pad + 1, (num_examples, 2), generator=crops)
    if flip:
        draws[:, 2] = torch.randint(0, 2, (num_examples,), generator=stream("flip", seed, epoch))
    return draws


@fusable
def augment(
    images: torch.Tensor, draws: torch.Tensor, *, pad: int, padding: Literal["zero", "reflect"]
) -> torch.Tensor:
    """Pad, crop at (dy, dx), then mirror left to right where asked; images (B, C, H, W), draws (B, 3).

    One gather on the images' own device, with static shapes and no host synchronisation, so that it can be
    part of a CUDA graph. The draws must lie on that device and come from the same `pad`.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    >>> augment(image, torch.tensor([[0, 1, 1]]), pad=1, padding="zero").tolist()  # moved down, then mirrored
    [[[[0, 0], [2, 1]]]]
    """
    batch, channels, height, width = images.shape
    if padding == "reflect" and pad >= min(height, width):
        raise ValueError(f"reflection by {pad} pixels needs images larger than that, not {height}x{width}")
    dy, dx, mirrored = draws[:, 0:1], draws[:, 1:2], draws[:, 2:3] > 0
    across = torch.arange(width, device=images.device)
    rows = torch.arange(height, device=images.device) + dy - pad
    columns = torch.where(mirrored, width - 1 - across, across) + dx - pad
    source = (_inside(rows, height)[:, :, None] * width + _inside(columns, width)[:, None, :]).flatten(1)
    picked = images.flatten(2).gather(2, source[:, None, :].expand(batch, channels, height * width))
    picked = picked.view(batch, channels, height, width)
    if padding == "reflect":
        return picked
    row_is_real = (rows >= 0) & (rows < height)
    column_is_real = (columns >= 0) & (columns < width)
    real = row_is_real[:, None, :, None] & column_is_real[:, None, None, :]
    return picked.masked_fill(~real, 0)


def _inside(where: torch.Tensor, size: int) -> torch.Tensor:
    """Reflect coordinates at the edges, then clamp: zero padding may reach further than a reflection can."""
    return ((size - 1) - ((size - 1) - where.abs()).abs()).clamp(0, size - 1)
