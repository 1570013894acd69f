"""The ensemble against a plain one of our own, on a network with batch norm and three channels."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from autoattack_helpers import run_ensemble
from strategies import TinyNet

from probmargin.attacks.balls import Norm

pytestmark = pytest.mark.slow

PLAIN = Path(__file__).parents[2] / "benchmarks" / "plain_autoattack.py"


def plain_module() -> Any:
    spec = importlib.util.spec_from_file_location("plain_autoattack", PLAIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def colourful() -> tuple[TinyNet, torch.Tensor, torch.Tensor]:
    """A network whose batch norm has seen data, and images it classifies by its own lights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TinyNet(classes=10, channels=3)
        x = torch.rand(48, 3, 12, 12)
        model.train()
        with torch.no_grad():
            for _ in range(20):
                model(x)
    return model.eval(), x, model(x).argmax(dim=1)


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.1), ("L2", 0.85)])
def test_the_fast_ensemble_finds_what_the_plain_one_finds(norm: Norm, eps: float) -> None:
    model, x, labels = colourful()
    plain = plain_module().PlainAutoAttack(model, norm, eps).run(x, labels)
    fast = run_ensemble(model, x, labels, norm=norm, eps=eps)
    assert 0.15 < fast.accuracy() < 0.85
    for name, (flags, _) in plain.items():
        assert int((fast.robust[name] != flags).sum()) <= 1, name
