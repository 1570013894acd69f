"""Whole runs with everything on: the same tests on a CPU and, where there is one, on a GPU's captured steps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import Listener, fit, recipe

from probmargin.core.settings import EMA
from probmargin.runs.run import open_run

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
WATCHED: dict[str, Any] = {"validation": 18, "monitor": "nat,pgd-5:10", "monitor_every": 2, "dynamics": True}


@pytest.fixture(autouse=True)
def _repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def request(device: str) -> dict[str, Any]:
    return {"device": device, "precision": "fp32", "compile": "default" if device == "cuda" else "off"}


def close(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    """On a GPU the same run twice differs by rounding, which an attack's sign or AWP now and then amplifies."""
    for name, tensor in first.items():
        rtol, atol = (1e-2, 1e-3) if tensor.is_cuda else (0.0, 0.0)
        torch.testing.assert_close(second[name].cpu(), tensor.cpu(), msg=name, rtol=rtol, atol=atol)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["mail-trades", "mail-awp", "gairat", "fat"])
def test_a_watched_run_is_resumed_and_forked(tmp_path: Path, name: str, device: str) -> None:
    """Held-out images, monitors, dynamics and an average; then its second half again, and again as a fork."""
    method, listener = recipe(name, epochs=6, ema=EMA(decay=0.9)), Listener()
    whole, path = fit(tmp_path / "run", method, reporter=listener, keep_epochs=(3,), **WATCHED, **request(device))
    assert not [line for line in listener.said if "fast path is off" in line]
    run = open_run(path)
    rows = run.metrics
    assert [row["epoch"] for row in rows if "monitors" in row] == [1, 3, 5]
    assert any("validation" in row for row in rows)
    assert all(np.isfinite(row["loss"]) for row in rows)
    with np.load(path / "dynamics.npz") as found:
        assert found["margin"].shape == found["weight"].shape == found["lps"].shape == (6, len(found["index"]))
        assert np.isfinite(found["margin"]).all()

    forked, _ = fit(tmp_path / "fork", method, fork=f"{path}@3", **WATCHED, **request(device))
    close(whole, forked)
    for state in run.states():
        if state.name != "state-0003":
            state.with_suffix(".json").unlink()
    resumed, _ = fit(path, method, resume=True, keep_epochs=(3,), **WATCHED, **request(device))
    close(whole, resumed)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", DEVICES)
def test_looking_on_changes_nothing(tmp_path: Path, device: str) -> None:
    method = recipe("mail-at", epochs=4, ema=EMA(decay=0.9))
    plain, _ = fit(tmp_path / "plain", method, **request(device))
    watched, _ = fit(
        tmp_path / "watched", method, monitor="nat,pgd-5:10", monitor_every=1, dynamics=True, **request(device)
    )
    close(plain, watched)
