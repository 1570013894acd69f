"""Every method takes two steps on a batch of real CIFAR images, where the files are there."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from probmargin.data.dataset import DataSet
from probmargin.data.loader import load
from probmargin.methods.resolve import METHODS, resolve
from probmargin.runs.run import open_run
from probmargin.training.progress import Reporter
from probmargin.training.request import TrainRequest
from probmargin.training.train import train

WHERE = os.environ.get("PROBMARGIN_DATA")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(WHERE is None, reason="PROBMARGIN_DATA names no folder with CIFAR's files"),
]


@pytest.fixture(scope="module")
def data(request: pytest.FixtureRequest) -> DataSet:
    whole = load(request.param)
    assert len(whole.train) == 50_000
    assert len(whole.test) == 10_000
    assert whole.num_classes == int(request.param.removeprefix("cifar"))
    assert set(whole.class_counts()) == {50_000 // whole.num_classes}
    return replace(whole, train=whole.train.take(range(32)), test=whole.test.take(range(32)))


CASES = [("cifar10", name) for name in METHODS] + [("cifar100", "mail-trades")]


@pytest.mark.parametrize(("data", "name"), CASES, indirect=["data"])
def test_two_steps_on_a_batch_of_16(name: str, data: DataSet, tmp_path: Path) -> None:
    """Two epochs of one batch: the first burns in, the second is weighted."""
    short = replace(data, train=data.train.take(range(16)))
    method = resolve(name, data=data.name, model="resnet18", epochs=2, batch_size=16)
    request = TrainRequest(out=tmp_path / "run", model="resnet18", device="cpu")
    train(method, short, request, Reporter(quiet=True))
    rows = open_run(tmp_path / "run").metrics
    assert len(rows) == 2
    if method.is_reweighted:
        assert rows[0]["effective_sample_size"] == pytest.approx(16)
        assert rows[1]["effective_sample_size"] < 16
