"""Margins and weights on the page, and that all of reporting works where torch cannot be imported."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from report_runs import report, write_run

from probmargin.reporting.page import render
from probmargin.reporting.page.curves import fan
from probmargin.reporting.page.pictures import amplified, data_uri
from probmargin.reporting.page.spreads import chosen_epochs, describe, load_history, spread


def test_spreads_are_those_of_each_epoch() -> None:
    values = np.array([[0.0, 0.5, 1.0, -1.0], [0.92, 0.92, 0.92, 0.92]])
    found = spread(values, np.array([4, 9]), (-1.0, 1.0))
    assert found.epochs == [5, 10]
    assert found.quantiles[2] == [0.25, 0.92]
    assert [sum(row) for row in found.counts] == [4, 4]
    assert found.counts[1].index(4) == 38
    clipped = spread(np.array([[5.0]]), np.array([0]), (0.0, 2.0))
    assert clipped.counts[0][-1] == 1, "what lies beyond is counted at the end"


def test_a_long_run_is_thinned_and_keeps_its_ends() -> None:
    rows = chosen_epochs(1000)
    assert len(rows) == 60
    assert (rows[0], rows[-1]) == (0, 999)


def test_the_heaviest_and_lightest_examples_are_shown(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    history = load_history(path / "dynamics.npz")
    assert history is not None
    found = describe(history, None, 3)
    assert not found.is_uniform
    weight = history.weight[3:].mean(axis=0)
    assert found.largest[0]["index"] == int(weight.argmax())
    assert found.smallest[0]["index"] == int(weight.argmin())
    text = render([report(path)])
    assert f'alt="training image {int(weight.argmax())}"' in text
    assert "Largest weight" in text


def test_without_weights_the_ends_are_those_of_the_margin(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    history = load_history(path / "dynamics.npz")
    assert history is not None
    history.weight[:] = 1.0
    found = describe(history, None, 0)
    assert found.is_uniform
    assert found.largest[0]["index"] == int(history.margin[-1].argmax())
    assert found.smallest[0]["index"] == int(history.margin[-1].argmin())
    text = render([report(path, dynamics=found)])
    assert "This method gives every image the same weight" in text
    assert "Smallest margin" in text


def test_the_margin_a_recipe_weighs_by_has_a_chart_of_its_own(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    history = load_history(path / "dynamics.npz")
    assert history is not None
    assert "own margin" not in render([report(path)])
    own = 10 * history.margin + 3
    own[:2] = np.nan
    found = describe(replace(history, recipe_margin=own, margin_names=("mine",) * 6), None, 0)
    assert found.recipe_margin is not None
    assert found.recipe_margin.epochs == [3, 4, 5, 6]
    assert found.recipe_margin.quantiles[2] == np.quantile(own[2:].astype(np.float64), 0.5, axis=1).round(4).tolist()
    low, high = found.recipe_margin.edges
    assert np.nanmin(own) <= low < high <= np.nanmax(own)
    assert "own margin (mine)" in render([report(path, dynamics=found)])


def test_a_fan_holds_its_median_and_bands(tmp_path: Path) -> None:
    history = load_history(write_run(tmp_path / "a") / "dynamics.npz")
    assert history is not None
    chart = fan(describe(history, None, 3).margin, "Margin", "a")
    assert chart["series"][0]["y"] == np.quantile(history.margin.astype(np.float64), 0.5, axis=1).round(4).tolist()
    outer, inner = chart["bands"]
    assert all(low <= inner_low for low, inner_low in zip(outer["low"], inner["low"], strict=True))
    assert all(high >= inner_high for high, inner_high in zip(outer["high"], inner["high"], strict=True))


def test_pictures_are_exact_and_differences_amplified() -> None:
    import base64
    import io

    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32), dtype=np.uint8)
    uri = data_uri(pixels)
    stored = np.array(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))
    assert np.array_equal(stored, pixels.transpose(1, 2, 0))
    clean = np.full((1, 2, 2), 0.5)
    moved = clean + np.array([[[-0.1, 0.0], [0.05, 0.1]]])
    assert amplified(clean, moved, 0.1).tolist() == [[[0, 128], [191, 255]]]


def test_reporting_works_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name) for name in "ab"]
    code = f"""
import importlib, pkgutil, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch is blocked")
sys.meta_path.insert(0, Blocked())
import probmargin.reporting
for module in pkgutil.walk_packages(probmargin.reporting.__path__, "probmargin.reporting."):
    importlib.import_module(module.name)
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from report_runs import report
from probmargin.reporting.page import render
from probmargin.reporting.watch import watch
folders = [Path(name) for name in {[str(folder) for folder in folders]!r}]
assert "AutoAttack" in render([report(folder) for folder in folders])
watch(folders[0], once=True)
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "effective sample size" in done.stdout
