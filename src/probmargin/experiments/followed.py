"""Attacks on many images at once, followed step by step; numbers come back as numpy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from probmargin.attacks.attack import Attack
from probmargin.core.errors import UsageError
from probmargin.core.frozen import frozen
from probmargin.core.losses import logit_margin, probabilistic_margin
from probmargin.core.noise import KeyedNoise
from probmargin.experiments.study import Bench
from probmargin.runs.run import Run

Array = npt.NDArray[Any]

CHUNK = 500


@dataclass(frozen=True, eq=False)
class Subject:
    """A trained network and the images it is asked about."""

    run: Run
    model: nn.Module
    x: torch.Tensor
    labels: torch.Tensor
    ids: torch.Tensor
    classes: Sequence[str]

    @property
    def eps(self) -> float:
        """The radius it was trained for."""
        return float(getattr(self.attack, "eps", 0.0))

    @property
    def attack(self) -> Attack:
        """The attack it was trained with, at the end."""
        attack = self.run.recipe.final_attack
        if attack is None:
            raise UsageError(f"{self.run.path} was trained without an attack: choose a run of adversarial training")
        return attack

    def take(self, place: int) -> "Subject":
        """One of its images alone."""
        one = slice(place, place + 1)
        return Subject(self.run, self.model, self.x[one], self.labels[one], self.ids[one], self.classes)

    def class_name(self, place: int) -> str:
        """The class of an image in words."""
        return self.classes[int(self.labels[place])]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Of images, in eval mode."""
        with frozen(self.model, "eval") as call, torch.no_grad():
            return torch.cat([call(part) for part in x.split(CHUNK)])


def subject_of(bench: Bench, row: str, count: int | None) -> Subject:
    """A run's network and the first `count` training images; all of them at the small scale where it is None."""
    run, train = bench.run(row), bench.data.train
    images = train.take(range(min(count or len(train), len(train)))).to(bench.device)
    model = run.model.to(bench.device)
    return Subject(run, model, images.floats(), images.labels, images.index, bench.data.classes)


@dataclass(frozen=True, eq=False)
class Followed:
    """What an attack did to each image: rows are iterates 0..K, columns images."""

    loss: Array
    correct: Array
    lps: Array
    """Iterates 0..K-1 that were still right."""
    first_cross: Array
    """Updates before the first wrong iterate; K where none of 0..K-1 is wrong."""
    pm: Array
    """Probabilistic margin of the image the attack returns."""
    mm: Array
    """Logit margin of that image."""
    x_adv: torch.Tensor

    @property
    def right_at_end(self) -> Array:
        """Is the returned image still classified as its label?"""
        return np.asarray(self.correct[-1])


def follow(subject: Subject, attack: Attack, seed: int = 0) -> Followed:
    """Attack all images; noise is keyed by the image, so two attacks of one seed begin at the same point."""
    parts = []
    for rows in torch.arange(len(subject.labels)).split(CHUNK):
        where = rows.to(subject.x.device)
        x, labels = subject.x[where], subject.labels[where]
        noise = KeyedNoise(seed=seed, ids=subject.ids[where])
        result = attack(subject.model, x, labels, noise=noise, trace="path")
        assert result.trace is not None
        logits = subject.logits(result.x_adv)
        trace = result.trace
        values = {
            "loss": trace.loss,
            "correct": trace.correct,
            "lps": trace.count_correct(),
            "first_cross": trace.first_cross(),
            "pm": probabilistic_margin(logits, labels),
            "mm": logit_margin(logits, labels),
        }
        parts.append(({name: value.cpu().numpy() for name, value in values.items()}, result.x_adv.cpu()))
    joined = {name: np.concatenate([values[name] for values, _ in parts], axis=-1) for name in parts[0][0]}
    return Followed(**joined, x_adv=torch.cat([x_adv for _, x_adv in parts]))
