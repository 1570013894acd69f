"""Three ways to hide a model's gradients without making it any safer."""

import torch
from torch import nn


class Quantised(nn.Module):
    """Whole numbers for logits: the gradient is zero everywhere."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner(x)
        return logits.round()


class LowTemperature(Quantised):
    """Logits a thousand times as large: the cross-entropy of a right answer is exactly zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner(x)
        return 1000.0 * logits


class NoisyInput(Quantised):
    """Random noise before the network: no two passes agree."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner(x + 0.1 * torch.randn_like(x))
        return logits
