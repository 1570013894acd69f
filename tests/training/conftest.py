"""What tests of training share."""

from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import Fit, fit

from probmargin.methods.method import Method


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Fit:
    """Runs on the blobs that nothing disturbs, trained once for all tests of a process; copy one to write into it."""
    known: dict[tuple[object, ...], tuple[dict[str, torch.Tensor], Path]] = {}

    def run(method: Method, **request: Any) -> tuple[dict[str, torch.Tensor], Path]:
        key = (method.hash(), *sorted(request.items()))
        if key not in known:
            known[key] = fit(tmp_path_factory.mktemp("undisturbed") / "run", method, **request)
        return known[key]

    return run
