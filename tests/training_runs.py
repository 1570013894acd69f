"""Recipes and runs so small that tests can train them whole."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from blobs import blobs
from torch import nn

from probmargin.attacks.attack import Attack
from probmargin.data.dataset import DataSet, ImageSet
from probmargin.methods.method import Method
from probmargin.methods.resolve import resolve
from probmargin.training.progress import Reporter
from probmargin.training.request import TrainRequest
from probmargin.training.train import train
from probmargin.training.validation import Judge

SMALL = {
    "attack.eps": 0.1,
    "attack.step_size": 0.05,
    "attack.num_steps": 2,
    "lr": 0.05,
    "augment.pad": 0,
    "augment.flip": False,
}


def recipe(name: str = "mail-at", epochs: int = 6, **changes: object) -> Method:
    settings = SMALL if name != "standard" else {k: v for k, v in SMALL.items() if "attack" not in k}
    if name in ("gairat", "gair-mart", "fat"):
        settings = {**settings, "attack.num_steps": 4}  # they count steps, and two tell few examples apart
    method = resolve(name, epochs=epochs, batch_size=16, settings=settings)
    return replace(method, **changes)  # type: ignore[arg-type]


class Listener(Reporter):
    """Notes what is said."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


class StopAfter(Listener):
    """Sends a signal to this process after some steps, as a user or a scheduler would."""

    def __init__(self, steps: int, number: signal.Signals = signal.SIGINT) -> None:
        super().__init__()
        self.left = steps
        self.number = number

    def advance(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)


def fit(
    out: Path, method: Method, *, data: DataSet | None = None, reporter: Reporter | None = None, **request: Any
) -> tuple[dict[str, torch.Tensor], Path]:
    """Train on the blobs, and return the trained weights and the run's folder."""
    settings = {"model": "small-cnn", "save_seconds": 0.0, "device": "cpu", **request}
    asked = TrainRequest(out=out, **settings)
    run, model = train(method, data or blobs(), asked, reporter or Reporter(quiet=True))
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}, run.path


Fit = Callable[..., tuple[dict[str, torch.Tensor], Path]]


def let_accuracy_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held-out accuracy falls with every step of training, so that the first look is the best one."""

    def accuracy(judge: Judge, images: ImageSet, attack: Attack | None) -> float:
        norms = (module for module in judge.network.model.modules() if isinstance(module, nn.BatchNorm2d))
        steps = next(norms).num_batches_tracked
        assert steps is not None
        return 1.0 / (2.0 + float(steps))

    monkeypatch.setattr(Judge, "accuracy", accuracy)


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def within(seconds: float, is_so: Callable[[], bool]) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:
        time.sleep(0.002)
    return is_so()
