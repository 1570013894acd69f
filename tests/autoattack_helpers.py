"""The parity fixture: the network, its images, the reference's traces, and the reference's order of draws."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from probmargin.attacks.apgd import APGD
from probmargin.attacks.attack import Attack
from probmargin.attacks.balls import Norm
from probmargin.attacks.fab import FAB
from probmargin.attacks.square import Square
from probmargin.core.batch import AttackResult, TraceLevel
from probmargin.core.noise import KeyedNoise, Noise
from probmargin.core.types import Classifier
from probmargin.evaluation.evaluate import EvaluationSettings, Keep, judge
from probmargin.evaluation.protocol import Plan, make_plan
from probmargin.evaluation.search import Stage

FIXTURES = Path(__file__).parent / "autoattack" / "fixtures"
CONFIGS: list[tuple[Norm, float]] = [("Linf", 0.16), ("L2", 0.7)]

ROUNDED = 20
"""Best losses of 356 that rounding may move. With AVX-512 and torch 2.13, as where the traces come from, none was off.

With AVX2, without vectors, or with AVX-512 and torch 2.11 up to 16 were, whatever the network computed in, float64 too:
cross-entropy knows a loss of 1e-4 to 1 part in 1,000 only, and its gradient no better. DLR does not round so: which of
APGD-T's losses can move is known (shaken.py), and there all others must agree.
"""


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
    unsteady: torch.Tensor
    """Which best losses of APGD-T, by example and target, rounding can move."""


def traces(name: str = "reference_trace") -> dict[str, torch.Tensor]:
    return {key: torch.from_numpy(array) for key, array in np.load(FIXTURES / f"{name}.npz").items()}


def reference(norm: str, eps: float) -> Reference:
    stored, prefix = traces(), f"{norm}_{eps:g}_"
    values = {key.removeprefix(prefix): value for key, value in stored.items() if key.startswith(prefix)}
    return Reference(stored["index"], stored["targets"], values, traces("unsteady")[norm])


@dataclass(frozen=True)
class ReferenceNoise(Noise):
    """Draws from one CPU generator in the order they are asked for, some of them shared by the whole batch."""

    size: int
    generator: torch.Generator

    @classmethod
    def seeded(cls, size: int, seed: int = 0) -> "ReferenceNoise":
        return cls(size, torch.Generator().manual_seed(seed))

    def uniform(self, shape: tuple[int, ...], *, stream: str, target: int = 0, step: int = 0) -> torch.Tensor:
        if stream.startswith("square/shared"):
            return torch.rand(shape, generator=self.generator).expand(self.size, *shape)
        return torch.rand((self.size, *shape), generator=self.generator)

    def normal(self, shape: tuple[int, ...], *, stream: str, target: int = 0, step: int = 0) -> torch.Tensor:
        return torch.randn((self.size, *shape), generator=self.generator)

    def take(self, positions: torch.Tensor) -> "ReferenceNoise":
        return replace(self, size=len(positions))


def off(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Which entries are off by more than 1e-3 relative."""
    return (ours - theirs).abs() > 1e-3 * theirs.abs()


def moved(ours: torch.Tensor, theirs: torch.Tensor) -> int:
    """How many entries are off."""
    return int(off(ours, theirs).sum())


@dataclass(frozen=True, kw_only=True)
class Remembered(Attack):
    """Plays back images found before, by the examples' ids: for an attack without randomness."""

    images: torch.Tensor

    def run(
        self,
        model: Classifier,
        x: torch.Tensor,
        labels: torch.Tensor,
        *,
        noise: Noise,
        trace: TraceLevel,
    ) -> AttackResult:
        assert isinstance(noise, KeyedNoise)
        return AttackResult(x_adv=self.images[noise.ids])


class Linear(torch.nn.Module):
    """Logits W x + b, drawn from a seed."""

    def __init__(self, inputs: int, classes: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.nn.Parameter(torch.randn(classes, inputs, generator=generator))
        self.bias = torch.nn.Parameter(torch.randn(classes, generator=generator) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x.flatten(1), self.weight, self.bias)

    def distance(self, x: torch.Tensor, labels: torch.Tensor, norm: str) -> torch.Tensor:
        """Closed form of the distance to the nearest other class, the box left out; negative where wrong."""
        weight, logits = self.weight.detach(), self(x).detach()
        apart = weight[labels][:, None] - weight[None]
        dual = apart.abs().sum(dim=2) if norm == "Linf" else apart.norm(dim=2)
        gap = logits.gather(1, labels[:, None]) - logits
        nearest: torch.Tensor = (gap / dual).masked_fill(gap == 0, torch.inf).amin(dim=1)
        return nearest


def linear_task(
    classes: int = 10, count: int = 80, seed: int = 0, shape: tuple[int, int, int] = (1, 4, 4)
) -> tuple[Linear, torch.Tensor, torch.Tensor]:
    """A linear model and images so far from the walls that a ball of radius 0.2 stays inside [0, 1]."""
    generator = torch.Generator().manual_seed(seed + 1)
    x = 0.3 + 0.4 * torch.rand(count, *shape, generator=generator)
    model = Linear(x[0].numel(), classes, seed)
    return model, x, model(x).argmax(dim=1)


def small_budget(norm: Norm, eps: float) -> dict[str, Attack]:
    """The standard ensemble in seconds: the same attacks with few steps."""
    return {
        "apgd-ce": APGD(norm=norm, eps=eps, num_steps=15),
        "apgd-t": APGD(norm=norm, eps=eps, num_steps=15, loss="dlr_targeted"),
        "fab-t": FAB(norm=norm, eps=eps, num_steps=15),
        "square": Square(norm=norm, eps=eps, num_queries=120),
    }


@dataclass(frozen=True)
class Found:
    """What an ensemble found."""

    x_adv: torch.Tensor
    """A confirmed adversarial image where there is one, else the clean image."""
    robust: dict[str, torch.Tensor]
    """Which examples still stand after "clean" and after each attack."""
    broken_by: tuple[str, ...]
    facts: dict[str, Any]

    @property
    def warnings(self) -> list[str]:
        lines: list[str] = self.facts["warnings"]
        return lines

    def accuracy(self) -> float:
        return float(list(self.robust.values())[-1].double().mean())


def run_ensemble(
    model: Classifier,
    x: torch.Tensor,
    labels: torch.Tensor,
    *,
    norm: Norm,
    eps: float,
    attacks: str | Mapping[str, Attack] = "aa",
    seed: int = 0,
    ids: torch.Tensor | None = None,
    batch_size: int | None = None,
    log: Callable[[str], None] | None = None,
) -> Found:
    """Judge a model by an attack of a name, or by an ensemble of one's own."""
    if isinstance(attacks, str):
        plan = make_plan(attacks, norm, eps)
    else:
        stages = tuple(Stage(name, attack) for name, attack in attacks.items())
        plan = Plan("aa", stages, begins_with_all=False, version="standard")
    settings = EvaluationSettings(norm=norm, eps=eps, seed=seed, batch_size=batch_size, recheck=0)
    keep = Keep(ids=ids, images=True)
    verdicts, worst = judge(model, x, labels, attacks=[plan], settings=settings, log=log, keep=keep)
    assert worst is not None
    entry = verdicts.entries[plan.name]
    after = {"clean": verdicts.clean["predicted"] == verdicts.labels, **entry.after}
    robust = {name: torch.from_numpy(flags).to(x.device) for name, flags in after.items()}
    stands = torch.from_numpy(entry.correct).to(x.device).view(-1, 1, 1, 1)
    return Found(torch.where(stands, x, worst.to(x.device)), robust, verdicts.broken_by, entry.facts)
