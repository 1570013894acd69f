"""What the networks share."""

from collections.abc import Sequence

import torch
from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.types import Images


class Normalize(nn.Module):
    """Subtract a mean and divide by a standard deviation, channel by channel, so that images stay in [0, 1] outside."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: Sequence[float] | float, std: Sequence[float] | float) -> None:
        super().__init__()
        middle, width = (torch.as_tensor(numbers, dtype=torch.float32).flatten() for numbers in (mean, std))
        inside = bool(((middle >= 0) & (middle <= 1)).all()) and bool(((width > 0) & (width <= 1)).all())
        if len(middle) != len(width) or not len(middle) or not inside:
            raise UsageError(
                f"Normalize({mean}, {std}) is not for images in [0, 1]: give one mean and one deviation a "
                "channel, those of 0 to 255 divided by 255"
            )
        self.register_buffer("mean", middle.clone().view(1, -1, 1, 1))
        self.register_buffer("std", width.clone().view(1, -1, 1, 1))

    def forward(self, x: Images) -> Images:
        return (x - self.mean) / self.std


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution without bias that keeps the size at stride 1."""
    return nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)


def conv1x1(in_channels: int, out_channels: int, stride: int) -> nn.Conv2d:
    """A 1x1 convolution without bias."""
    return nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False)


def global_average(x: torch.Tensor) -> torch.Tensor:
    """Average over height and width: the published 4x4 and 8x8 pools at 32x32, and any other size as well."""
    return x.mean(dim=(2, 3))
