"""The page of all tables: made from kept records alone, whole, and up to date."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from kept_records import keep, made_up
from page_blocks import ROOT

from probmargin.core.errors import UsageError
from probmargin.experiments.catalogue import STUDIES, find
from probmargin.experiments.grid import ScaleName, make_grid
from probmargin.experiments.records import read_records
from probmargin.experiments.reproduce import render
from probmargin.experiments.request import ReproduceRequest
from probmargin.experiments.results_page import BEGIN, END, filled_page, kept_tables
from probmargin.reporting.tables import build_table

PAGE = f"# Records\n\n{BEGIN}\nold\n{END}\n\nend\n"


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a page and one record of MAIL-TRADES."""
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    Path("results/README.md").write_text(PAGE, encoding="utf-8")
    Path("results/bench.json").write_text('{"id": "bench", "rows": []}', encoding="utf-8")
    keep(Path("results"), made_up("mail-trades", 1000))
    return Path("results/README.md")


def drawn(**changes: Any) -> list[str]:
    said: list[str] = []
    render(ReproduceRequest(**changes), said.append)
    return said


def test_render_without_a_name_fills_the_page_between_its_marks(results: Path) -> None:
    said = drawn()
    text = results.read_text(encoding="utf-8")
    assert text.startswith(f"# Records\n\n{BEGIN}\n\n## table1: ")
    assert text.endswith(f"{END}\n\nend\n")
    assert "old" not in text.partition(BEGIN)[2][:10]
    assert "| `mail-trades` | 1 | 50.00 (±2.19) |" in text
    assert "- `trades`: no record" in text
    assert said[-1] == "tables written into results/README.md, from the records in results alone"
    # The first 1,000 images are all right.
    assert "| 50.00 (±2.19) | 100.00 (±0.19) | 0.00 |" in text


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"scale": "smoke"}, "--scale"),
        ({"only": ("mail-trades",)}, "--only"),
        ({"aa_examples": 100, "trials": 1}, "--trials, --aa-examples"),
    ],
)
def test_a_page_is_never_written_in_part(results: Path, changes: dict[str, Any], options: str) -> None:
    said = drawn(**changes)
    assert results.read_text(encoding="utf-8") == PAGE
    assert said[-1] == (f"printed only: results/README.md has all tables whole, and is written without {options}")


def test_a_weakened_attack_in_the_first_row_does_not_decide_what_its_column_means(results: Path) -> None:
    weak = made_up("at", 1900)
    weak["evaluation"]["aa"]["attack"]["stages"]["apgd-ce"]["num_steps"] = 5
    keep(results.parent, weak)
    drawn()
    text = results.read_text(encoding="utf-8")
    assert "cifar10-resnet18-at-s1: aa refused: attack.stages.apgd-ce.num_steps is 5, not 100" in text
    assert "| 50.00 (±2.19) | 100.00 (±0.19) | 0.00 |" in text


@pytest.mark.parametrize("scale", ["full", "smoke"])
def test_the_columns_mean_what_the_kept_records_were_judged_by(scale: ScaleName) -> None:
    folder = ROOT / "results" / ("smoke" if scale == "smoke" else "")
    tables = [build_table(make_grid(one, scale).table(), read_records([folder])) for one in find(None)]
    told = [line for table in tables for line in (*table.missing, *table.remarks)]
    assert not [line for line in told if "attack" in line and "refused" in line]
    assert any(not table.is_empty for table in tables)


def test_the_page_has_no_number_without_a_kept_record(results: Path) -> None:
    keep(Path("runs/reproduce/records"), made_up("at", 900))
    said = drawn()
    assert any("| `at` | 1 | 45.00" in text for text in said), "what lies in the folder of the runs is printed"
    assert "| `at` | - | - |" in results.read_text(encoding="utf-8")
    assert said[-1] == (
        "not in that page, since not in results: cifar10-resnet18-at-s1; --keep-records results copies records"
    )
    assert [table.spec.name for table in kept_tables(Path("results"))] == [one.name for one in find(None)]


def test_only_so_many_seeds_as_asked_for_are_averaged(results: Path) -> None:
    keep(Path("results"), made_up("mail-trades", 1200, seed=2))
    assert any("| `mail-trades` | 1 | 50.00 (±2.19) |" in text for text in drawn(name="table2", trials=1))
    assert any("| `mail-trades` | 2 | 55.00 ± 7.07 |" in text for text in drawn(name="table2"))


def test_a_folder_without_a_place_for_tables_has_no_page(tmp_path: Path) -> None:
    assert filled_page(tmp_path) is None
    (tmp_path / "README.md").write_text("# Records\n", encoding="utf-8")
    assert filled_page(tmp_path) is None


def test_the_page_of_this_repository_is_up_to_date() -> None:
    page = ROOT / "results" / "README.md"
    assert filled_page(page.parent) == page.read_text(encoding="utf-8"), "run probmargin reproduce --render"


def test_every_folder_of_records_is_listed() -> None:
    head = (ROOT / "results" / "README.md").read_text(encoding="utf-8").partition(BEGIN)[0]
    for folder in (path for path in (ROOT / "results").iterdir() if path.is_dir()):
        assert f"| `{folder.name}/" in head, f"results/README.md does not say what {folder.name}/ is"


def test_records_of_figures_lie_in_their_folder() -> None:
    found = {path.stem for path in (ROOT / "results").glob("*.json")}
    assert not found & set(STUDIES), "a figure's record belongs into results/figures"


def test_every_record_of_a_run_or_figure_names_its_whole_commit() -> None:
    for path in (ROOT / "results").rglob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "recipe" in record or "figures" in path.parts:
            judged = record.get("evaluation", record)
            assert re.fullmatch("[0-9a-f]{40}", record["commit"]), path.name
            assert re.fullmatch("[0-9a-f]{40}", judged["commit"]), path.name


def test_what_the_docs_say_of_the_drop_at_smoke_scale_is_so() -> None:
    lines = build_table(make_grid(find("table2")[0], "smoke").table(), read_records([ROOT / "results/smoke"])).lines
    drops = {line.row.id: line.drop for line in lines if line.drop is not None}
    assert len(drops) == 12
    assert drops["mail-at"] > 2 * max(drop for row, drop in drops.items() if row != "mail-at")
    assert drops["gairat"] < min(drops["trades"], drops["fat"])


def test_an_unknown_scale_is_refused(results: Path) -> None:
    with pytest.raises(UsageError, match="--scale"):
        drawn(scale="small")
