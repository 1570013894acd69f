"""Accuracy during training: on held-out images for the choice of a state, on test images for curves alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from probmargin.attacks.attack import Attack
from probmargin.attacks.balls import Norm
from probmargin.attacks.pgd import PGD
from probmargin.core.batch import AttackResult, TraceLevel
from probmargin.core.errors import UsageError
from probmargin.core.noise import Noise
from probmargin.core.types import Classifier, Images, Labels
from probmargin.data.dataset import ImageSet
from probmargin.engine.distributed import World
from probmargin.evaluation.evaluate import EvaluationSettings, correct_under
from probmargin.evaluation.own_attacks import PREFIX
from probmargin.evaluation.protocol import build_attack
from probmargin.evaluation.search import inside_threat_model
from probmargin.methods.method import Method
from probmargin.training.network import Network

NUM_STEPS = 10


def ball_of(method: Method) -> tuple[Norm, float]:
    """The norm and radius a recipe trains for, at the end; 8/255 in L-inf where it attacks nothing."""
    attack = method.final_attack
    norm: Norm = getattr(attack, "norm", "Linf")
    return norm, float(getattr(attack, "eps", 8 / 255))


@dataclass(frozen=True)
class _Kept(Attack):
    """An attack of the user's own; an image that leaves the ball or [0, 1] counts unattacked, as in an evaluation."""

    inner: Attack
    norm: Norm
    eps: float

    def run(self, model: Classifier, x: Images, labels: Labels, *, noise: Noise, trace: TraceLevel) -> AttackResult:
        found = self.inner.carry_out(model, x, labels, noise=noise, trace=trace)
        inside = inside_threat_model(found.x_adv, x, self.norm, self.eps)
        return replace(found, x_adv=torch.where(inside[:, None, None, None], found.x_adv, x))


@dataclass(frozen=True)
class Judge:
    """Counts right answers, each process on its share of the images."""

    network: Network
    world: World
    batch_size: int
    """Training's own on each device, so that nothing is compiled for a second shape."""

    def accuracy(self, images: ImageSet, attack: Attack | None) -> float:
        """Accuracy of the network in eval mode, clean or under an attack."""
        rows = self.world.rows(len(images))
        right = torch.zeros((), dtype=torch.float64, device=images.images.device)
        if rows.stop > rows.start:
            part = images.take(torch.arange(rows.start, rows.stop))
            settings = EvaluationSettings(batch_size=self.batch_size)
            with self.network.frozen("eval") as call:
                # In the order in memory that training uses: for another one the network would be compiled again.
                x = part.floats().contiguous(memory_format=self.network.order)
                right += correct_under(call, attack, x, part.labels, settings, rows.start).sum()
        return float(self.world.reduce(right)) / len(images)


@dataclass(frozen=True)
class Validation:
    """Held-out training images: they choose the best state and may end a run; test images never do."""

    images: ImageSet
    method: Method
    every: int | None = None
    """Epochs between two looks; None is every epoch in which the recipe's weights are in force."""
    patience: int | None = None
    """Looks without a better result after which the run ends."""

    @property
    def attack(self) -> Attack | None:
        """PGD-10 with steps of a quarter of the recipe's radius; None for a recipe without an attack."""
        if self.method.final_attack is None:
            return None
        norm, eps = ball_of(self.method)
        return PGD(norm=norm, eps=eps, step_size=eps / 4, num_steps=NUM_STEPS, start="uniform_eps", clamp_start=True)

    def is_due(self, epoch: int) -> bool:
        """Look after this epoch (from 0)? Always after the last."""
        if epoch == self.method.epochs - 1:
            return True
        if self.every is not None:
            return (epoch + 1) % self.every == 0
        return epoch >= self.method.burn_in_epochs or not self.method.is_reweighted

    def look(self, judge: Judge) -> dict[str, Any]:
        """Accuracies on the held-out images."""
        attack = self.attack
        robust = None if attack is None else judge.accuracy(self.images, attack)
        return {"natural_accuracy": judge.accuracy(self.images, None), "robust_accuracy": robust}

    def update(
        self, best: Mapping[str, Any] | None, look: Mapping[str, Any], epoch: int
    ) -> tuple[dict[str, Any], bool]:
        """The best so far after a look, and whether it is this one; among equals the first stays."""
        if best is None or score(look) > score(best):
            return {"epoch": epoch, **look, "looks_since": 0}, True
        return {**best, "looks_since": best["looks_since"] + 1}, False

    def is_over(self, best: Mapping[str, Any] | None) -> bool:
        """Has patience run out?"""
        return self.patience is not None and best is not None and best["looks_since"] >= self.patience


def score(look: Mapping[str, Any]) -> float:
    """What a look is judged by: robust accuracy where the recipe attacks.

    >>> score({"natural_accuracy": 0.9, "robust_accuracy": 0.5}), score({"natural_accuracy": 0.9})
    (0.5, 0.9)
    """
    robust = look.get("robust_accuracy")
    return float(look["natural_accuracy"] if robust is None else robust)


@dataclass(frozen=True)
class Monitors:
    """Attacks on the first test images, for curves alone: nothing is chosen by them."""

    test: ImageSet
    counts: Mapping[str, int]
    """Images each attack looks at."""
    method: Method
    every: int = 5
    _attacks: dict[str, Attack | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        norm, eps = ball_of(self.method)
        for name in self.counts:
            attack = build_attack(name, norm, eps)
            self._attacks[name] = _Kept(attack, norm, eps) if attack and name.startswith(PREFIX) else attack

    def is_due(self, epoch: int) -> bool:
        """Look after this epoch (from 0)? Always after the last."""
        return (epoch + 1) % self.every == 0 or epoch == self.method.epochs - 1

    def look(self, judge: Judge) -> dict[str, float]:
        """Accuracy under each attack."""
        return {
            name: judge.accuracy(self.test.take(range(count)), self._attacks[name])
            for name, count in self.counts.items()
        }


def parse_monitors(text: str, num_test: int) -> dict[str, int]:
    """Read attacks and how many test images each gets; all of them where no number is given.

    >>> parse_monitors("pgd-20:1000,cw", 10000)
    {'pgd-20': 1000, 'cw': 10000}
    """
    counts: dict[str, int] = {}
    for item in text.split(","):
        name, colon, number = (part.strip() for part in item.partition(":"))
        if not name or (colon and not number.isdigit()):
            raise UsageError(f"--monitor takes ATTACK:IMAGES, such as pgd-20:1000,cw:1000, not {item!r}")
        if name in counts:
            raise UsageError(f"--monitor names {name} twice: leave one out")
        build_attack(name, "Linf", 8 / 255)
        counts[name] = int(number) if colon else num_test
        if not 1 <= counts[name] <= num_test:
            raise UsageError(f"--monitor {item.strip()}: there are {num_test} test images; ask for 1 to {num_test}")
    return counts
