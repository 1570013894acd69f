"""Small networks with the layer names that other repositories use, written anew for tests of the importer."""

import torch
import torch.nn.functional as F
from torch import nn


def conv(entering: int, leaving: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(entering, leaving, size, stride, size // 2, bias=False)


class PostBlock(nn.Module):
    def __init__(self, entering: int, leaving: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(entering, leaving, 3, stride), nn.BatchNorm2d(leaving)
        self.conv2, self.bn2 = conv(leaving, leaving, 3), nn.BatchNorm2d(leaving)
        self.shortcut = nn.Sequential()
        if stride != 1 or entering != leaving:
            self.shortcut = nn.Sequential(conv(entering, leaving, 1, stride), nn.BatchNorm2d(leaving))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (inner + self.shortcut(x)).relu()  # type: ignore[no-any-return]


class PreBlock(nn.Module):
    def __init__(self, entering: int, leaving: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(entering), conv(entering, leaving, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(leaving), conv(leaving, leaving, 3)
        if stride != 1 or entering != leaving:
            self.shortcut = nn.Sequential(conv(entering, leaving, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        active = self.bn1(x).relu()
        aside = self.shortcut(active) if hasattr(self, "shortcut") else x
        return self.conv2(self.bn2(self.conv1(active)).relu()) + aside  # type: ignore[no-any-return]


class Eighteen(nn.Module):
    """conv1, [bn1], layer1.0 ... layer4.1, [bn], linear."""

    def __init__(self, *, pre: bool, last_norm: bool = True, classes: int = 10) -> None:
        super().__init__()
        self.pre, self.last_norm = pre, last_norm
        self.conv1 = conv(3, 64, 3)
        if not pre:
            self.bn1 = nn.BatchNorm2d(64)
        block, widths = (PreBlock if pre else PostBlock), (64, 64, 128, 256, 512)
        for stage in range(1, 5):
            stride = 1 if stage == 1 else 2
            first = block(widths[stage - 1], widths[stage], stride)
            setattr(self, f"layer{stage}", nn.Sequential(first, block(widths[stage], widths[stage], 1)))
        if pre and last_norm:
            self.bn = nn.BatchNorm2d(512)
        self.linear = nn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.conv1(x) if self.pre else self.bn1(self.conv1(x)).relu()
        for stage in range(1, 5):
            out = getattr(self, f"layer{stage}")(out)
        if self.pre and self.last_norm:
            out = self.bn(out).relu()
        logits: torch.Tensor = self.linear(F.adaptive_avg_pool2d(out, 1).flatten(1))
        return logits


class WideBlock(nn.Module):
    def __init__(self, entering: int, leaving: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(entering), conv(entering, leaving, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(leaving), conv(leaving, leaving, 3)
        self.convShortcut = None if entering == leaving else conv(entering, leaving, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        active = self.bn1(x).relu()
        aside = x if self.convShortcut is None else self.convShortcut(active)
        return self.conv2(self.bn2(self.conv1(active)).relu()) + aside  # type: ignore[no-any-return]


class Stage(nn.Module):
    def __init__(self, count: int, entering: int, leaving: int, stride: int) -> None:
        super().__init__()
        rest = (WideBlock(leaving, leaving, 1) for _ in range(count - 1))
        self.layer = nn.Sequential(WideBlock(entering, leaving, stride), *rest)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


class Wide(nn.Module):
    """conv1, block1.layer.0 ..., bn1, fc; with `dead`, the sub_block1 that TRADES and GAIRAT carry along unused."""

    mu: torch.Tensor
    sigma: torch.Tensor

    def __init__(self, *, count: int = 2, width: int = 1, dead: bool = False, normalised: bool = False) -> None:
        super().__init__()
        self.conv1 = conv(3, 16, 3)
        widths = (16, 16 * width, 32 * width, 64 * width)
        self.block1 = Stage(count, widths[0], widths[1], 1)
        if dead:
            self.sub_block1 = Stage(count, widths[0], widths[1], 1)
        self.block2 = Stage(count, widths[1], widths[2], 2)
        self.block3 = Stage(count, widths[2], widths[3], 2)
        self.bn1 = nn.BatchNorm2d(widths[3])
        self.fc = nn.Linear(widths[3], 10)
        self.normalised = normalised
        if normalised:
            self.register_buffer("mu", torch.tensor([0.49, 0.48, 0.45]).view(1, 3, 1, 1))
            self.register_buffer("sigma", torch.tensor([0.25, 0.24, 0.26]).view(1, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.normalised:
            x = (x - self.mu) / self.sigma
        out = self.block3(self.block2(self.block1(self.conv1(x))))
        logits: torch.Tensor = self.fc(F.adaptive_avg_pool2d(self.bn1(out).relu(), 1).flatten(1))
        return logits


class Normalizer(nn.Module):
    """RobustBench's wrapper has `normalize` before `model`."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.2, 0.3, 0.2]).view(1, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = (x - self.mean) / self.std
        return out


def lively(model: nn.Module, seed: int = 0) -> nn.Module:
    """The network with batch norm that does something, so that two of them cannot be swapped unseen."""
    draw = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.1, generator=draw)
            module.running_var.uniform_(0.5, 1.5, generator=draw)
            with torch.no_grad():
                module.weight.uniform_(0.5, 1.5, generator=draw)
                module.bias.normal_(0, 0.1, generator=draw)
    return model.eval()
