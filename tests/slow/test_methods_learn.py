"""Every robust method, trained on digits by the recipe a user gets, is far more robust than standard training."""

import functools
from pathlib import Path
from typing import Any

import pytest

from probmargin.experiments.demo import demo_run
from probmargin.methods.resolve import METHODS, resolve
from probmargin.runs.run import open_run
from probmargin.training.progress import Reporter

pytestmark = pytest.mark.slow


@functools.cache
def judged(name: str, folder: Path) -> dict[str, Any]:
    return demo_run(name, folder / name, 1, Reporter(quiet=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("methods")


@pytest.mark.parametrize("name", [name for name in METHODS if name != "standard"])
def test_a_robust_method_beats_standard_training_by_20_points(name: str, folder: Path) -> None:
    standard = judged("standard", folder)["pgd-20"]["robust_accuracy"]
    robust = judged(name, folder)
    assert robust["pgd-20"]["robust_accuracy"] >= standard + 0.2
    assert robust["nat"]["accuracy"] >= 0.85
    recipe = resolve(name, data="digits")
    rows = open_run(folder / name).metrics
    sizes = [row["effective_sample_size"] for row in rows]
    if recipe.is_reweighted:
        assert all(size == pytest.approx(1437) for size in sizes[: recipe.burn_in_epochs])
        assert all(size < 1430 for size in sizes[recipe.burn_in_epochs :])
    else:
        assert all(size == pytest.approx(1437) for size in sizes)
