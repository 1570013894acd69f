"""A small run on disk that tests of evaluation copy and judge."""

from pathlib import Path

import pytest

from probmargin.data.digits import load_digits
from probmargin.methods.resolve import resolve
from probmargin.training.progress import Reporter
from probmargin.training.request import TrainRequest
from probmargin.training.train import train


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two short epochs on digits; copy it before writing into it."""
    data = load_digits()
    recipe = resolve("at", data="digits", epochs=2, settings={"attack.num_steps": "2", "attack.eps": "0.05"})
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(recipe, data, TrainRequest(out=folder, model="small-cnn", seed=0, device="cpu"), Reporter(quiet=True))
    return folder
