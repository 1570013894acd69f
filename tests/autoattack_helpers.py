"""The parity fixture: the network, its images, the reference's traces, and the reference's order of draws."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from probmargin.core.noise import Noise

FIXTURES = Path(__file__).parent / "autoattack" / "fixtures"
CONFIGS = [("Linf", 0.16), ("L2", 0.7)]


class DigitsCNN(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.fc1 = torch.nn.Linear(1024, 128)
        self.fc2 = torch.nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.conv2(F.relu(self.conv1(x))))
        logits: torch.Tensor = self.fc2(F.relu(self.fc1(hidden.flatten(1))))
        return logits


def digits_model() -> DigitsCNN:
    model = DigitsCNN()
    model.load_state_dict(load_file(FIXTURES / "digits_cnn.safetensors"))
    return model.eval().requires_grad_(False)


def digits_test() -> tuple[torch.Tensor, torch.Tensor]:
    split = np.load(FIXTURES / "digits_split.npz")
    return torch.from_numpy(split["x_test"]), torch.from_numpy(split["y_test"])


@dataclass(frozen=True)
class Reference:
    """What the reference did with the 356 correctly classified images, at one norm and radius."""

    index: torch.Tensor
    targets: torch.Tensor
    values: dict[str, torch.Tensor]


def reference(norm: str, eps: float) -> Reference:
    stored = np.load(FIXTURES / "reference_trace.npz")
    prefix = f"{norm}_{eps:g}_"
    values = {
        key.removeprefix(prefix): torch.from_numpy(stored[key]) for key in stored if key.startswith(prefix)
    }
    return Reference(torch.from_numpy(stored["index"]), torch.from_numpy(stored["targets"]), values)


@dataclass(frozen=True)
class ReferenceNoise(Noise):
    """Draws from one CPU generator in the order they are asked for, some of them shared by the whole batch."""

    size: int
    generator: torch.Generator

    @classmethod
    def seeded(cls, size: int, seed: int = 0) -> "ReferenceNoise":
        return cls(size, torch.Generator().manual_seed(seed))

    def uniform(
        self, shape: tuple[int, ...], *, stream: str, target: int = 0, step: int = 0
    ) -> torch.Tensor:
        if stream.startswith("square/shared"):
            return torch.rand(shape, generator=self.generator).expand(self.size, *shape)
        return torch.rand((self.size, *shape), generator=self.generator)

    def normal(self, shape: tuple[int, ...], *, stream: str, target: int = 0, step: int = 0) -> torch.Tensor:
        return torch.randn((self.size, *shape), generator=self.generator)

    def take(self, positions: torch.Tensor) -> "ReferenceNoise":
        return replace(self, size=len(positions))


def moved(ours: torch.Tensor, theirs: torch.Tensor) -> int:
    """How many entries are off by more than 1e-3 relative."""
    return int(((ours - theirs).abs() > 1e-3 * theirs.abs()).sum())
