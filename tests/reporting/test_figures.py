"""Committed records are drawn without torch, and every committed picture has its record."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from probmargin.core.errors import UsageError
from probmargin.reporting.figures import DRAWINGS, draw
from probmargin.reporting.figures_bench import grouped_bars
from probmargin.reporting.figures_geometry import place
from probmargin.reporting.figures_style import LINES, new_figure
from probmargin.reporting.study_text import text_of

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "results" / "figures"
PICTURES = ROOT / "docs" / "figures"


def record(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_committed_picture_has_its_record(name: str) -> None:
    found = record(name)
    assert found["id"] == name
    assert found["commit"]
    assert "dirty" not in found["commit"]
    assert found["command"] == f"probmargin reproduce {name} --scale smoke"
    for run in found["runs"]:
        assert run["recipe_hash"]
        assert "dirty" not in run["commit"]
    with Image.open(PICTURES / f"{name}.png") as picture:
        assert picture.size[0] in (670, 1380)  # one column, two columns
    assert (PICTURES / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    page = (PICTURES / "README.md").read_text(encoding="utf-8")
    assert f"({name}.png)" in page
    assert f"results/figures/{name}.json" in page
    assert text_of(found).startswith(f"## {name}: ")


def test_pictures_are_drawn_without_torch(tmp_path: Path) -> None:
    code = (
        "import json, sys; from pathlib import Path; from probmargin.reporting.figures import draw; "
        f"draw(json.loads(Path({str(RECORDS / 'figure4.json')!r}).read_text()), Path({str(tmp_path)!r})); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "figure4.png").stat().st_size > 10_000


def test_the_same_record_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (draw(record("weight-functions"), tmp_path / name) for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_record_nobody_can_draw(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing is known to draw of a record named 'table2'"):
        draw({"id": "table2"}, tmp_path)


def test_lines_differ_by_more_than_colour() -> None:
    assert len({line["color"] for line in LINES}) == len(LINES)
    assert len({str(line["linestyle"]) for line in LINES}) == len(LINES)
    assert len({line["marker"] for line in LINES}) == len(LINES)


def test_corners_of_the_simplex() -> None:
    assert place([0.0, 1.0, 0.0]).tolist() == [0.0, 0.0]
    assert place([1 / 3, 1 / 3, 1 / 3]).tolist() == pytest.approx([0.5, 3**0.5 / 6])


def test_bars_have_the_heights_they_are_given() -> None:
    axes = new_figure(3, 2).subplots()
    grouped_bars(axes, ["a", "b"], {"one": [1.0, 2.0], "two": [None, 4.0]})
    assert [bar.get_height() for bar in axes.patches] == [1.0, 2.0, 0.0, 4.0]  # type: ignore[attr-defined]
    assert [text.get_text() for text in axes.texts] == ["1.0", "2.0", "-", "4.0"]
