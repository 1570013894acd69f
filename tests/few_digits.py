"""Digits with fewer training images, where a test trains and does not ask how well."""

import pytest
import torch

from probmargin.data import loader
from probmargin.data.dataset import DataSet
from probmargin.data.digits import load_digits

COUNT = 256


def few_digits() -> DataSet:
    """The digits with their first training images alone, and every test image."""
    data = load_digits()
    return DataSet(data.name, data.train.take(torch.arange(COUNT)), data.test, data.classes)


def use_few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `--data digits` in this process mean these."""
    monkeypatch.setattr(loader, "load_digits", few_digits)
