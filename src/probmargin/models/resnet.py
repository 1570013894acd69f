"""ResNet-18 and PreAct-ResNet-18 for small images: 3x3 stem of stride 1, no max-pool."""

import torch
import torch.nn.functional as F
from torch import nn

from probmargin.core.types import Images, Logits
from probmargin.models.layers import conv1x1, conv3x3, global_average

_WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two convolutions with batch norm after each; the shortcut is a 1x1 convolution where shapes change."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv3x3(out_channels, out_channels)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(conv1x1(in_channels, out_channels, stride), nn.BatchNorm2d(out_channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(hidden)) + self.shortcut(x))


class PreActBlock(nn.Module):
    """Batch norm and ReLU before each convolution; the shortcut branches off after the first of them."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv3x3(out_channels, out_channels)
        changes = stride != 1 or in_channels != out_channels
        self.shortcut = nn.Sequential(conv1x1(in_channels, out_channels, stride)) if changes else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        active = F.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(active)
        hidden = self.conv1(active)
        result: torch.Tensor = self.conv2(F.relu(self.bn2(hidden))) + shortcut
        return result


def _stages(block: type[BasicBlock] | type[PreActBlock]) -> nn.Sequential:
    """Four stages of two blocks."""
    blocks: list[nn.Module] = []
    in_channels = _WIDTHS[0]
    for stage, width in enumerate(_WIDTHS):
        for position in range(2):
            blocks.append(block(in_channels, width, stride=2 if stage > 0 and position == 0 else 1))
            in_channels = width
    return nn.Sequential(*blocks)


class ResNet18(nn.Module):
    """Post-activation ResNet-18; 11,173,962 parameters for ten classes of colour images."""

    def __init__(self, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, _WIDTHS[0])
        self.bn1 = nn.BatchNorm2d(_WIDTHS[0])
        self.blocks = _stages(BasicBlock)
        self.linear = nn.Linear(_WIDTHS[-1], num_classes)

    def forward(self, x: Images) -> Logits:
        hidden = self.blocks(F.relu(self.bn1(self.conv1(x))))
        logits: Logits = self.linear(global_average(hidden))
        return logits


class PreActResNet18(nn.Module):
    """Pre-activation ResNet-18 with batch norm and ReLU before pooling; 11,172,170 parameters for ten classes."""

    def __init__(self, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, _WIDTHS[0])
        self.blocks = _stages(PreActBlock)
        self.bn = nn.BatchNorm2d(_WIDTHS[-1])
        self.linear = nn.Linear(_WIDTHS[-1], num_classes)

    def forward(self, x: Images) -> Logits:
        hidden = F.relu(self.bn(self.blocks(self.conv1(x))))
        logits: Logits = self.linear(global_average(hidden))
        return logits
