"""Wide residual networks by depth and width."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.types import Images, Logits
from probmargin.models.layers import conv1x1, conv3x3, global_average


class WideBlock(nn.Module):
    """Pre-activation block; where shapes change, the shortcut too branches off after the activation."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv3x3(out_channels, out_channels)
        self.shortcut = conv1x1(in_channels, out_channels, stride) if in_channels != out_channels else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        active = F.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(active)
        hidden = self.conv2(F.relu(self.bn2(self.conv1(active))))
        result: torch.Tensor = hidden + shortcut
        return result


def blocks_per_stage(depth: int) -> int:
    """Blocks in each of the three stages: (depth - 4) / 6, or (depth - 2) / 6 in Madry's way of counting.

    >>> blocks_per_stage(34), blocks_per_stage(32), blocks_per_stage(28)
    (5, 5, 4)
    """
    for offset in (4, 2):
        if depth > offset and (depth - offset) % 6 == 0:
            return (depth - offset) // 6
    raise UsageError(f"a WRN has depth 6n+4 (such as 28 or 34) or 6n+2 (such as 32), not {depth}")


class WideResNet(nn.Module):
    """WRN-depth-width, no dropout, no dead block; wrn-34-10 has 46,160,474 parameters for ten classes."""

    def __init__(self, depth: int, width: int, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        count = blocks_per_stage(depth)
        widths = (16, 16 * width, 32 * width, 64 * width)
        self.conv1 = conv3x3(in_channels, widths[0])
        blocks: list[nn.Module] = []
        for stage in range(3):
            for position in range(count):
                entering = widths[stage] if position == 0 else widths[stage + 1]
                blocks.append(WideBlock(entering, widths[stage + 1], stride=2 if stage and position == 0 else 1))
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(widths[-1])
        self.linear = nn.Linear(widths[-1], num_classes)
        self._initialise()

    def _initialise(self) -> None:
        """Convolutions from N(0, 2 / (k^2 c_out)), the linear layer's bias at zero."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
                nn.init.normal_(module.weight, 0.0, math.sqrt(2.0 / fan))
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Images) -> Logits:
        hidden = F.relu(self.bn(self.blocks(self.conv1(x))))
        logits: Logits = self.linear(global_average(hidden))
        return logits
