"""The survivors of an ensemble: attacked in chunks, and every claimed break confirmed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeGuard

import torch

from probmargin.attacks.apgd import APGD
from probmargin.attacks.attack import Attack, logits_without_gradient
from probmargin.attacks.balls import Norm
from probmargin.attacks.fab import FAB
from probmargin.core.losses import is_correct, logit_margin
from probmargin.core.noise import KeyedNoise
from probmargin.core.types import Classifier, Images, Labels

OnChunk = Callable[[str, torch.Tensor, torch.Tensor, Images], None]
"""Called after each chunk with the attack's name, the examples' positions, which of them broke, and their images."""

_TOLERANCE = 1e-6
_THIN = 1e-4


def aims(attack: Attack) -> TypeGuard[APGD | FAB]:
    """Whether an attack tries one wrong class after the other."""
    if isinstance(attack, APGD):
        return attack.loss == "dlr_targeted"
    return isinstance(attack, FAB) and attack.targeted


def rows_per_example(attack: Attack, num_classes: int) -> int:
    """How many images of one example an attack forwards at once.

    >>> rows_per_example(APGD(loss="dlr_targeted"), 10), rows_per_example(APGD(), 10), rows_per_example(FAB(), 4)
    (9, 1, 3)
    """
    if (isinstance(attack, APGD) and attack.loss == "dlr_targeted") or (isinstance(attack, FAB) and attack.targeted):
        return min(attack.num_targets, num_classes - 1)
    return 1


def inside_threat_model(x_adv: Images, x: Images, norm: Norm, eps: float) -> torch.Tensor:
    """True where an image is in [0, 1] and, measured in float64, within eps + 1e-6 of the clean one.

    >>> x = torch.full((1, 1, 1, 2), 0.5)
    >>> inside_threat_model(x + 0.1, x, "Linf", 0.1).tolist(), inside_threat_model(x + 0.1, x, "L2", 0.1).tolist()
    ([True], [False])
    """
    delta = (x_adv.double() - x.double()).flatten(1)
    size = delta.abs().amax(dim=1) if norm == "Linf" else delta.norm(dim=1)
    boxed = ((x_adv >= 0) & (x_adv <= 1)).flatten(1).all(dim=1)
    return boxed & (size <= eps + _TOLERANCE)


@contextmanager
def full_float32(x: Images) -> Iterator[None]:
    """On a GPU, no TF32 inside: it rounds to 10 bits, and a break must hold in float32."""
    if not x.is_cuda:
        yield
        return
    parts = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)  # type: ignore[attr-defined]
    found = [part.fp32_precision for part in parts]
    for part in parts:
        part.fp32_precision = "ieee"
    try:
        yield
    finally:
        for part, precision in zip(parts, found, strict=True):
            part.fp32_precision = precision


@dataclass
class Ensemble:
    """All examples of an evaluation and what is known about each so far."""

    call: Classifier
    x: Images
    labels: Labels
    ids: torch.Tensor
    norm: Norm
    eps: float
    seed: int
    chunk: int
    flags: torch.Tensor
    """True where the example stands."""
    num_classes: int
    on_chunk: OnChunk | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    thin_breaks: int = 0

    def __post_init__(self) -> None:
        self.x_adv = self.x.clone()
        self.broken_by = ["" if right else "clean" for right in self.flags.tolist()]

    def standing(self) -> float:
        """Share of the examples that stand."""
        return float(self.flags.double().mean())

    def run(self, name: str, attack: Attack) -> None:
        """Attack what stands, chunk by chunk; a chunk that does not fit in memory is halved."""
        begun = time.perf_counter()
        left = self.flags.nonzero()[:, 0]
        size = max(1, self.chunk // rows_per_example(attack, self.num_classes))
        position = 0
        while position < len(left):
            indices = left[position : position + size]
            try:
                self._attack_chunk(name, attack, indices)
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
                size //= 2
                continue
            position += len(indices)
        self.seconds[name] = time.perf_counter() - begun

    def _attack_chunk(self, name: str, attack: Attack, indices: torch.Tensor) -> None:
        x, labels = self.x[indices], self.labels[indices]
        noise = KeyedNoise(seed=self.seed, ids=self.ids[indices])
        found = attack(self.call, x, labels, noise=noise).x_adv
        with full_float32(x):
            logits = logits_without_gradient(self.call, found)
        broken = ~is_correct(logits, labels) & inside_threat_model(found, x, self.norm, self.eps)
        self.thin_breaks += int((broken & (logit_margin(logits, labels) > -_THIN)).sum())
        won = indices[broken]
        self.x_adv[won] = found[broken]
        self.flags[won] = False
        for index in won.tolist():
            self.broken_by[index] = name
        if self.on_chunk is not None:
            self.on_chunk(name, indices, broken, found)
