"""Two blobs of images that a linear model tells apart: data for tiny end-to-end tests."""

import torch

from probmargin.data.dataset import DataSet, from_arrays


def blobs(count: int = 128, seed: int = 0) -> DataSet:
    """Bright upper halves against bright lower halves, with one weak and misleading pixel that attacks can use."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    images = 0.5 + 0.06 * torch.randn(count, 1, 4, 4, generator=draw)
    images[labels == 0, :, :2] += 0.25
    images[labels == 1, :, 2:] += 0.25
    images = images.clamp(0, 1)
    half = count // 2
    return from_arrays("blobs", (images[:half], labels[:half]), (images[half:], labels[half:]))
