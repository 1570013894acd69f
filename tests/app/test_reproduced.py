"""What the page on reproduction says is made from records: numbers, verdicts, and the open question."""

import importlib.util
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept_records import keep, made_up
from page_blocks import ROOT
from scipy.stats import sem, t as t_test

from probmargin.core.stats import agreement_bound
from probmargin.experiments.results_page import kept_tables
from probmargin.experiments.table2 import METHODS
from probmargin.reporting.compare import Comparison, compare
from probmargin.reporting.render_words import comparison_texts
from probmargin.reporting.spec import Contrast
from probmargin.reporting.tables import Line

PAGE = " ".join((ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8").split())
SQUARE = ("trades-official-kl", "mail-trades-official-kl", "trades-official-ce", "mail-trades-official-ce")


@pytest.fixture
def parts() -> Any:
    """The functions that make the parts of the page, by name."""
    spec = importlib.util.spec_from_file_location("docs_reproduced", ROOT / "docs" / "reproduced.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PARTS


def test_a_row_is_shown_once_with_the_papers_number_within_or_beyond(parts: Any, tmp_path: Path) -> None:
    assert parts["reproduced"](tmp_path) == "No row of any table has a record yet.\n"
    keep(tmp_path, made_up("mail-trades", 1010))
    keep(tmp_path, made_up("trades-beta5", 1000))
    lines = parts["reproduced"](tmp_path).splitlines()[2:]
    # Table 1 prints another natural accuracy for the same row; tables 5 to 7 print what table 2 does.
    assert [line.split(" | ")[:3] for line in lines] == [
        ["| `table2`, `table5`, `table6`, `table7`", "`mail-trades`", "1"],
        ["| ", "· paper", ""],
        ["| ", "· difference", ""],
        ["| `table2`", "`trades-beta5`", "1"],
        ["| `table1`", "`mail-trades`", "1"],
        ["| ", "· paper", ""],
        ["| ", "· difference", ""],
    ]
    assert [line.split(" | ")[3] for line in lines[:3]] == ["50.50 (±2.19)", "81.84", "-31.34 **beyond**"]
    assert [line.split(" | ")[-1] for line in lines[:4]] == [
        "50.50 (±2.19) |",
        "50.60 |",
        "-0.10 within |",
        "50.00 (±2.19) |",
    ]
    assert lines[5].split(" | ")[5:7] == ["-", "-"], "table 1 has no such columns"


def cells_of(text: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]


def test_every_row_that_is_counted_is_shown(parts: Any, tmp_path: Path) -> None:
    for row, right in (("mail-mart", 900), ("mail-trades-official-2021", 950), ("at", 990)):
        keep(tmp_path, made_up(row, right))
    for folder in (ROOT / "results", tmp_path):
        counted = {cells[0]: int(cells[3]) for cells in cells_of(parts["reproduction"](folder))}
        rows = [line for line in parts["reproduced"](folder).splitlines() if line.startswith("| `")]
        shown = Counter(name for cells in cells_of("\n\n" + "\n".join(rows)) for name in cells[0].split(", "))
        assert shown == Counter({name: count for name, count in counted.items() if count})


def test_what_the_page_says_of_table_2_in_words_is_so() -> None:
    (table,) = (table for table in kept_tables(ROOT / "results") if table.spec.name == "table2")
    far: dict[str, list[str]] = {}
    for line in table.lines:
        cells = [
            cell for cell in map(line.cell, ("NAT", "PGD", "APGD", "CW", "AA")) if cell and cell.is_within is False
        ]
        if line.trials:
            far[line.row.id] = [f"{'+' if (cell.difference or 0) > 0 else '-'}{cell.column.title}" for cell in cells]
    assert far["at"] == ["+NAT"]
    assert far["trades"] == []
    assert far["gairat"] == ["+CW", "+AA"]
    (first_table,) = (table for table in kept_tables(ROOT / "results") if table.spec.name == "table1")
    lines = {line.row.id: line for line in first_table.lines}
    gairat, weighted = lines["gairat"].cell("AA"), lines["mail-trades"].cell("NAT")
    assert gairat is not None
    assert weighted is not None
    assert (gairat.difference or 0) < 0, "under AutoAttack table 1 prints more than ours"
    assert round(weighted.difference or 0) == 2, "table 1 prints two points less than ours"
    assert far["mail-at"] == ["-PGD", "-APGD", "-AA"]
    assert far["mail-trades"] == ["-CW", "-AA"]
    assert far["mail-trades-official-2021"] == ["-AA"]
    assert far["mart"] == []
    assert far["fat"] == []
    assert far["awp"] == ["-NAT", "+APGD", "+AA"]
    assert far["mail-mart"] == ["-NAT"]
    pairs = {
        one.column.title: one.interval for one in table.comparisons if one.contrast.title == "mail-trades - trades"
    }
    assert {title: interval[0] > 0 for title, interval in pairs.items()} == {
        "NAT": False,
        "PGD": True,
        "APGD": True,
        "CW": False,
        "AA": False,
    }
    weights = {one.column.title: one for one in table.comparisons if one.contrast.title == "mail-mart - mart-beta6"}
    assert weights["NAT"].interval[0] > 0
    assert all(weights[title].interval[0] < 0 < weights[title].interval[1] for title in ("PGD", "APGD"))
    assert [round(weights[title].difference, 1) for title in ("CW", "AA")] == [-0.5, -0.7]
    assert all(weights[title].interval[1] < 0 for title in ("CW", "AA"))
    printed = {line.row.id: line.row.published for line in table.lines}
    theirs = [round(printed["mail-mart"][title][0] - printed["mart"][title][0], 2) for title in ("NAT", "PGD", "AA")]
    assert theirs == [1.84, 0.15, -1.2]
    betas = [one.interval for one in table.comparisons if one.contrast.title == "mart-beta6 - mart"]
    assert len(betas) == 5
    assert all(low < 0 < high for low, high in betas), "no column tells MART at the two betas apart"
    for line in table.lines:
        first = next(cell for cell in line.cells if cell.column.is_part)
        if first.mean is not None and (paper := line.row.published.get("AA")):
            bound = 100 * agreement_bound(paper[1] / 100, 1, first.mean / 100, first.num_examples)
            assert abs(first.mean - paper[0]) <= bound, f"{line.row.id} is beyond on the first 1,000 images too"


def test_what_the_page_says_of_awp_is_so() -> None:
    (table,) = (table for table in kept_tables(ROOT / "results") if table.spec.name == "table2")
    printed = {line.row.id: line.row.published for line in table.lines}
    moved, below = (
        {one.column.title: one for one in table.comparisons if one.contrast.title == title}
        for title in ("awp - at", "mail-trades - awp")
    )
    ours = {title: f"{one.difference:+.2f}" for title, one in moved.items()}
    gained = {title: printed["awp"][title][0] - printed["at"][title][0] for title in ours}
    assert f"under PGD, {ours['PGD']} (printed {gained['PGD']:+.2f})" in PAGE
    assert (
        f"AutoAttack, {ours['AA']} ({gained['AA']:+.2f}), more under APGD, {ours['APGD']} ({gained['APGD']:+.2f})"
        in PAGE
    )
    assert all(moved[title].interval[0] < gained[title] < moved[title].interval[1] for title in ("PGD", "AA"))
    assert moved["APGD"].interval[0] > gained["APGD"], "more than printed"
    assert moved["CW"].interval[0] < 0 < moved["CW"].interval[1], "nothing that shows"
    assert f"it pays {-moved['NAT'].difference:.2f} points of natural accuracy for that" in PAGE
    assert 0 < gained["NAT"] < 0.5, "as high as AT"
    assert f"MAIL-TRADES ends {told(below['AA'])} above it under AutoAttack in this seed" in PAGE
    assert f"{printed['mail-trades']['AA'][0] - printed['awp']['AA'][0]:.2f} between the two" in PAGE
    assert below["AA"].interval[0] > 0


def lines_of(data: str) -> dict[str, Line]:
    """The rows of all tables of a data set that have a record, by name."""
    tables = [table for table in kept_tables(ROOT / "results") if table.spec.data == data]
    return {line.row.id: line for table in tables for line in table.lines if line.trials}


def paired(plus: str, minus: str, title: str, data: str = "cifar10") -> Comparison:
    """Two rows of one data set on all images that both were judged on."""
    lines = lines_of(data)
    plus_cell, minus_cell = lines[plus].cell(title), lines[minus].cell(title)
    assert plus_cell is not None
    assert minus_cell is not None
    rows = {"plus": plus_cell.verdicts, "minus": minus_cell.verdicts}
    found = compare(Contrast(f"{plus} - {minus}", ("plus",), ("minus",)), plus_cell.column, rows)
    assert found is not None
    return found


def told(found: Comparison, unit: str = " points") -> str:
    """A difference as the page words it."""
    low, high = found.interval
    return f"{found.difference:.2f}{unit} [{low:+.2f}, {high:+.2f}]"


def chance_of(found: Comparison) -> str:
    """The p of a difference over images."""
    return f"{float(' '.join(comparison_texts(found)).rpartition('p ')[2].split()[0]):.3f}"


def less_its_burn_in(row: str, title: str) -> Comparison:
    """What a row is above MAIL-TRADES, each less the row that stands for its own burn-in."""
    names = row, base_of("mail-trades"), base_of(row), "mail-trades"
    lines = lines_of("cifar10")
    cells = [cell for cell in (lines[name].cell(title) for name in names) if cell is not None]
    rows = {name: cell.verdicts for name, cell in zip(names, cells, strict=True)}
    found = compare(Contrast("", names[:2], names[2:], factor=2.0), cells[0].column, rows)
    assert found is not None
    return found


def line_of(table: str, row: str) -> Line:
    (found,) = (one for one in kept_tables(ROOT / "results") if one.spec.name == table)
    return next(line for line in found.lines if line.row.id == row)


def beyond(table: str, row: str) -> list[str]:
    """The columns in which a row is beyond the paper's number; AutoAttack looked at its first 2,000 images."""
    cells = [cell for cell in map(line_of(table, row).cell, ("NAT", "PGD", "AA")) if cell is not None]
    assert [cell.num_examples for cell in cells] == [10_000, 10_000, 2_000]
    return [cell.column.title for cell in cells if not cell.is_within]


def printed_gap(table: str, plus: str, minus: str, title: str) -> str:
    numbers = [line_of(table, row).row.published[title][0] for row in (plus, minus)]
    return f"{abs(numbers[0] - numbers[1]):.2f}"


FALLING = ("mail-trades", "mail-trades-pm-nat", "gair-trades", "mail-trades-mm-adv", "mail-trades-step")
"""Rows of TRADES whose weights fall with safety."""


def base_of(row: str) -> str:
    """The row of the same burn-in whose examples all count the same, or almost."""
    return "trades-beta5" if row == "mail-trades" else "mail-trades-pm-dif"


def test_weights_are_compared_with_what_shares_their_burn_in(parts: Any, tmp_path: Path) -> None:
    assert parts["within-burn-in"](tmp_path) == "None of these rows has a record yet.\n"
    keep(tmp_path, made_up("mail-trades", 1010))
    assert parts["within-burn-in"](tmp_path) == "None of these rows has a record yet.\n", "nothing to compare with"
    keep(tmp_path, made_up("trades-beta5", 1000))
    (cells,) = cells_of(parts["within-burn-in"](tmp_path))
    assert cells[:2] == ["`mail-trades`", "`trades-beta5`"]
    assert all(cell.startswith("+0.50 [") for cell in cells[2:]), "ten of 2,000 images"
    parents = {file.stem: fork_of(file) for file in (ROOT / "results").glob("cifar10-resnet18-*-s1.json")}
    shown = cells_of(parts["within-burn-in"](ROOT / "results"))
    assert [cells[0] for cells in shown] == [f"`{row}`" for row in (*FALLING, "mail-trades-hinge-as-printed")]
    for row, less in ((cells[0].strip("`"), cells[1].strip("`")) for cells in shown):
        assert less == base_of(row)
        assert parents[f"cifar10-resnet18-{row}-s1"] == parents[f"cifar10-resnet18-{less}-s1"], "one burn-in"
    assert all(cells[4].endswith(", first 2,000") == (cells[1] == "`mail-trades-pm-dif`") for cells in shown)


def fork_of(record: Path) -> str:
    """The run whose burn-in a record's run went through."""
    told = json.loads(record.read_text(encoding="utf-8"))
    return str((told.get("forked_from") or {}).get("run", told["id"]))


def test_what_the_page_says_of_measures_of_safety_is_so() -> None:
    ours, steps = "mail-trades", "gair-trades"
    weights = {row: {title: paired(row, base_of(row), title) for title in ("NAT", "PGD", "AA")} for row in FALLING}
    assert all(of["NAT"].interval[1] < 0 for of in weights.values()), "all cost natural accuracy"
    assert [row for row, of in weights.items() if of["PGD"].interval[0] <= 0] == [steps], "all but LPS gain under PGD"
    decided = {row: of["AA"].difference > 0 for row, of in weights.items() if of["AA"].is_clear}
    assert decided == {f"{ours}-step": True, steps: False}, "the step above PM-dif, LPS below, margins show neither"
    step, lps = (weights[row]["AA"] for row in decided)
    ps = (chance_of(step), chance_of(lps)) if step.difference > 0 else (chance_of(lps), chance_of(step))
    assert f"(p {ps[0]} and {ps[1]}, neither of which stands among five comparisons;" in PAGE
    assert min(map(float, ps)) > 0.05 / len(weights)
    gainers = [row for row in FALLING if row != steps]
    assert min(gainers, key=lambda row: weights[row]["NAT"].difference) == f"{ours}-mm-adv", "costs most"
    over_beta5 = paired(f"{ours}-step", "trades-beta5", "AA")
    assert not over_beta5.is_clear
    assert f"above `trades-beta5` the step is not clearly, +{told(over_beta5, '')})" in PAGE
    rising = paired(f"{ours}-hinge-as-printed", base_of(f"{ours}-hinge-as-printed"), "AA")
    assert f"the hinge that rises loses {-rising.difference:.0f} points" in PAGE


def test_what_the_page_says_of_margins_and_their_burn_ins_is_so() -> None:
    ours, steps = "mail-trades", "gair-trades"
    chance = paired(f"{ours}-pm-dif", "trades-beta5", "NAT")
    low, high = chance.interval
    assert low > 0
    assert f"{chance.difference:.2f} points [{low:+.2f}, {high:+.2f}] above `trades-beta5` in natural accuracy" in PAGE
    sizes = []
    for row in (f"{ours}-pm-dif", ours):
        file = ROOT / "results" / f"cifar10-resnet18-{row}-s1.metrics.jsonl"
        sizes.append(json.loads(file.read_text(encoding="utf-8").splitlines()[-1])["effective_sample_size"])
    assert f"count like {sizes[0]:,.0f} of the 50,000 images (PM-adv's like {sizes[1]:,.0f})" in PAGE
    adv, nat = (paired(row, steps, "AA") for row in (ours, f"{ours}-pm-nat"))
    assert min(adv.interval[0], nat.interval[0]) > 0, "better than LPS holds"
    gaps = [printed_gap("table1", row, steps, "AA") for row in (ours, f"{ours}-pm-nat")]
    assert f"by {told(adv)} for PM-adv, across the two burn-ins, and by {told(nat, '')} for PM-nat" in PAGE
    assert f"both intervals end below what the paper has ({gaps[0]} and {gaps[1]})" in PAGE
    assert adv.interval[1] < float(gaps[0])
    assert nat.interval[1] < float(gaps[1])
    holds = [paired(row, steps, "PGD").interval[0] > 0 for row in (ours, f"{ours}-pm-nat")]
    assert holds == [True, False], "under PGD for PM-adv alone"
    places = {title: paired(ours, f"{ours}-pm-nat", title) for title in ("NAT", "PGD", "AA")}
    assert {title: one.is_clear for title, one in places.items()} == {"NAT": True, "PGD": False, "AA": False}
    kept = -places["NAT"].difference
    assert f"the {kept:.2f} points of natural accuracy that PM-nat keeps more may be the burn-ins'" in PAGE
    assert not less_its_burn_in(f"{ours}-pm-nat", "NAT").is_clear
    assert line_of("table5", f"{ours}-mm-adv").row.left_open
    tables = {"table1": (steps, f"{ours}-pm-nat"), "table5": (f"{ours}-mm-adv",), "table6": (f"{ours}-step",)}
    assert not any("AA" in beyond(table, row) for table, rows in tables.items() for row in rows)
    assert "LPS, PM-nat, MM-adv and the step are within the paper's numbers under AutoAttack" in PAGE


def test_what_the_page_says_of_weight_functions_is_so() -> None:
    row = "mail-trades"
    assert beyond("table6", f"{row}-step") == ["NAT"]
    assert beyond("table6", f"{row}-hinge-as-printed") == ["NAT", "PGD", "AA"]
    steps = {title: paired(f"{row}-step", row, title) for title in ("NAT", "PGD", "AA")}
    chance = {title: f"p {chance_of(one)}" for title, one in steps.items()}
    low, high = steps["AA"].interval
    assert f"{steps['PGD'].difference:.2f} points above under PGD ({chance['PGD']})" in PAGE
    assert f"{steps['AA'].difference:.2f} [{low:+.2f}, {high:+.2f}] above under AutoAttack" in PAGE
    assert f"{-steps['NAT'].difference:.2f} below in natural accuracy ({chance['NAT']})" in PAGE
    assert {title: one.is_clear for title, one in steps.items()} == {"NAT": True, "PGD": True, "AA": False}
    pgd, nat = (less_its_burn_in(f"{row}-step", title) for title in ("PGD", "NAT"))
    ends = [f"{-end:+.2f}" for end in reversed(nat.interval)]
    assert f"it is {told(pgd, '')} above under PGD and {-nat.difference:.2f} [{ends[0]}, {ends[1]}] below in" in PAGE
    cells = [cell for cell in map(line_of("table6", f"{row}-hinge-as-printed").cell, ("NAT", "AA")) if cell is not None]
    assert (
        f"at {cells[0].mean:.2f}% natural accuracy and at {cells[1].mean:.2f}% under AutoAttack (first 2,000)" in PAGE
    )
    theirs = [cell.published[0] for cell in cells if cell.published is not None]
    assert f"where the paper prints {theirs[0]:.2f} and {theirs[1]:.2f}" in PAGE
    assert not line_of("table6", f"{row}-hinge").trials, "one that falls with the margin is not run yet"


def test_what_the_page_says_of_cifar_100_is_so() -> None:
    table, titles = "table4-cifar100", ("NAT", "PGD", "AA")
    assert sorted(lines_of("cifar100")) == ["at", "mail-at", "trades-beta5"], "MAIL-TRADES is not judged"
    assert beyond(table, "at") == []
    assert beyond(table, "mail-at") == ["NAT", "PGD"]
    weights = {title: paired("mail-at", "at", title, "cifar100") for title in titles}
    assert f"cost {less(weights['NAT'])} of natural accuracy" in PAGE
    assert f"nothing that shows under PGD, +{told(weights['PGD'], '')}" in PAGE
    assert f"cost {less(weights['AA'])} under AutoAttack" in PAGE
    assert [one.interval[0] * one.interval[1] > 0 for one in weights.values()] == [True, False, True]
    printed = {row: line_of(table, row).row.published for row in ("at", "mail-at", "trades")}
    gaps = [printed["mail-at"][title][0] - printed["at"][title][0] for title in titles]
    assert f"(the paper's rows differ by {gaps[0]:+.2f}, {gaps[1]:+.2f} and {gaps[2]:+.2f})" in PAGE
    trades = {title: line_of(table, "trades-beta5").cell(title) for title in titles}
    means = [cell.mean for cell in trades.values() if cell is not None and cell.mean is not None]
    theirs = [printed["trades"][title][0] for title in titles]
    assert f"{means[0]:.2f}, {means[1]:.2f} and {means[2]:.2f}, beside {theirs[0]:.2f}, {theirs[1]:.2f} and" in PAGE
    assert f"and {theirs[2]:.2f} printed for a β that the paper leaves open" in PAGE
    parents = {file.stem: fork_of(file) for file in (ROOT / "results").glob("cifar100-resnet18-*-s1.json")}
    assert parents["cifar100-resnet18-mail-at-s1"] == parents["cifar100-resnet18-at-s1"], "one burn-in"


def less(found: Comparison) -> str:
    """A loss as the page words it: the points and their interval, both turned."""
    low, high = found.interval
    return f"{-found.difference:.2f} points [{-high:+.2f}, {-low:+.2f}]"


def test_which_rows_share_a_burn_in_is_what_the_page_says() -> None:
    origins: dict[str, list[str]] = {}
    for file in (ROOT / "results").glob("cifar10-resnet18-*-s1.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        name = record["id"].removeprefix("cifar10-resnet18-").removesuffix("-s1")
        parent = (record.get("forked_from") or {}).get("run", record["id"])
        origins.setdefault(parent.removeprefix("cifar10-resnet18-").removesuffix("-s1"), []).append(name)
    forks = ("hinge-as-printed", "mm-adv", "pm-dif", "pm-nat", "step")
    assert sorted(origins["gair-trades"]) == ["gair-trades", *(f"mail-trades-{fork}" for fork in forks)]
    assert any({"mail-trades", "trades-beta5"} <= set(names) for names in origins.values())


def first_standing(count: int) -> dict[str, dict[int, list[bool]]]:
    """Which of the first images stand after the attacks that a seed's rows of the two-by-two share, by row and seed."""
    found: dict[str, dict[int, list[bool]]] = {}
    for path in sorted((ROOT / "results").glob("two-by-two-before-square-s*.json")):
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            name = row["run"].removeprefix("cifar10-resnet18-").rpartition("-s")[0]
            found.setdefault(name, {})[row["seed"]] = [mark == "1" for mark in row["correct"][:count]]
    return found


def shares_apart(plus: dict[int, list[bool]], minus: dict[int, list[bool]]) -> list[float]:
    """Points by which one row is above another, a seed each."""
    return [100 * float(np.mean(plus[seed]) - np.mean(minus[seed])) for seed in sorted(set(plus) & set(minus))]


def test_what_the_page_says_of_the_first_thousand_images_is_so() -> None:
    standing = first_standing(1000)
    variances = [np.var([np.mean(right) for right in standing[row].values()], ddof=1) for row in SQUARE]
    spread = 100 * float(np.sqrt(np.mean(variances)))
    # One seed of ours and a mean of five of theirs, on the same images.
    bound = 2 * spread * float(np.sqrt(1 + 1 / 5))
    assert f"have a standard deviation of {spread:.1f} points on them" in PAGE
    assert f"should lie within {bound:.1f} points of a mean of five" in PAGE
    tables = {table.spec.name: table for table in kept_tables(ROOT / "results")}
    off = {}
    for line in tables["table2"].lines:
        first = next(cell for cell in line.cells if cell.column.is_part)
        if first.mean is not None and "AA" in line.row.published:
            off[line.row.id] = first.mean - line.row.published["AA"][0]
    far = sorted((value, row) for row, value in off.items() if abs(value) > bound and row in METHODS)
    assert [row for _, row in far] == ["mail-trades", "mart", "mail-at", "gairat"]
    *below, above = (f"{value:+.2f}" for value, _ in far)
    table1 = next(line for line in tables["table1"].lines if line.row.id == "gairat")
    part = next(cell for cell in table1.cells if cell.column.is_part)
    other = f"{(part.mean or 0) - table1.row.published['AA'][0]:+.2f}"
    assert "four of table 2's seven rows do not" in PAGE
    assert len([row for row in off if row in METHODS]) == 7
    assert (
        f"MAIL-TRADES {below[0]}, MART {below[1]}, MAIL-AT {below[2]}, GAIRAT {above} ({other} from table 1's)" in PAGE
    )
    smaller = [
        100 * (script.verdicts[seed].count("1") / 1000) - 100 * float(np.mean(standing[line.row.id][seed]))
        for line in tables["two-by-two"].lines
        if (script := line.cell("AA-1000"))
        for seed in script.verdicts
        if seed in standing.get(line.row.id, {})
    ]
    assert len(smaller) >= 5
    assert 0.4 < float(np.mean(smaller)) < 0.7, "half a point up"
    assert abs(off["mail-at"] + float(np.mean(smaller))) < bound < abs(off["mart"] + float(np.mean(smaller)))


def test_what_the_page_says_of_gains_on_the_first_thousand_images_is_so() -> None:
    standing = first_standing(1000)
    tables = {table.spec.name: table for table in kept_tables(ROOT / "results")}
    (release,) = (line for line in tables["two-by-two"].lines if line.row.id == "mail-trades-official-2021")
    script = release.cell("AA-1000")
    assert script is not None
    assert f"keeps {' and '.join(f'{value:.1f}' for value in script.values)}% of them in its two seeds" in PAGE
    weights, attack = (shares_apart(standing[row], standing[SQUARE[0]]) for row in (SQUARE[1], SQUARE[2]))
    means = [float(np.mean(one)) for one in (weights, attack)]
    assert f"weights add {means[0]:.1f} on them under KL, and the CE attack {means[1]:.1f} without weights" in PAGE
    ends = [float(t_test.interval(0.95, 2, np.mean(one), sem(one))[1]) for one in (weights, attack)]
    assert f"at most {max(ends):.1f} by the intervals over seeds" in PAGE
    base = {line.row.id: line.cell("AA") for line in tables["two-by-two"].lines}
    whole = [base[name] for name in ("mail-trades-official-2021", SQUARE[0])]
    seed1 = [cell.verdicts[1][:1000] for cell in whole if cell is not None]
    seed3 = ["".join("01"[right] for right in standing[name][3]) for name in ("mail-trades-official-2021", SQUARE[0])]
    columns = tables["two-by-two"].spec.columns
    both = {name: {1: first, 3: third} for name, first, third in zip("ab", seed1, seed3, strict=True)}
    found = compare(Contrast("a - b", ("a",), ("b",)), columns[4], both)
    assert found is not None
    gaps, (low, high) = found.seed_differences, found.interval
    assert f"the recipe of 2021 is {gaps[0]:.1f} and {gaps[1]:.1f} above it there in its two seeds" in PAGE
    assert f"in its two seeds, {found.difference:.1f} [{low:+.1f}, {high:+.1f}] together" in PAGE
    lines = {line.row.id: line.cell("AA") for line in tables["table2"].lines}
    rows = {name: cell.verdicts for name in ("mail-trades-official-2021", "trades") if (cell := lines[name])}
    texts = []
    for count in (1000, 10_000):
        cut = {name: {seed: right[:count] for seed, right in row.items()} for name, row in rows.items()}
        gained = compare(Contrast("", tuple(rows)[:1], tuple(rows)[1:]), tables["table2"].spec.columns[4], cut)
        assert gained is not None
        low, high = gained.interval
        texts.append(f"{gained.difference:.1f} [{low:+.1f}, {high:+.1f}]")
    assert f"that recipe gains {texts[0]} on these images and {texts[1]} on all 10,000" in PAGE


def test_what_fats_first_three_attacks_left_is_what_the_page_says() -> None:
    told = json.loads((ROOT / "results" / "table2-before-square-fat-s1.json").read_text(encoding="utf-8"))
    (row,) = told["rows"]
    record = json.loads((ROOT / "results" / f"{row['run']}.json").read_text(encoding="utf-8"))
    assert told["stage"] == "fab-t"
    assert f"leave {row['correct'].count('1') / 100:.2f}%" in PAGE
    assert all(
        mark <= right for mark, right in zip(row["correct"], record["evaluation"]["nat"]["correct"], strict=True)
    )


def test_the_mean_of_the_weights_is_what_the_page_says() -> None:
    means = []
    for loss in ("kl", "ce"):
        files = (ROOT / "results").glob(f"cifar10-resnet18-mail-trades-official-{loss}-s*.metrics.jsonl")
        epochs = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
        weights = [epoch["weight_mean"] for epoch in epochs if epoch["epoch"] >= 76]
        means.append(sum(weights) / len(weights))
    assert f"a mean of {means[0]:.2f} under KL and {means[1]:.2f} under CE" in PAGE
    assert f"a higher β, of {5 * means[0]:.1f} and {5 * means[1]:.1f}" in PAGE


def test_the_seconds_of_autoattack_are_those_of_the_records() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    records = [json.loads(file.read_text(encoding="utf-8")) for file in (ROOT / "results").glob("cifar10-*.json")]
    found = [record["evaluation"]["aa"] for record in records if "aa" in record["evaluation"]]
    seconds = [entry["seconds"] for entry in found if entry["num_examples"] == 10_000]
    assert f"took {min(seconds):.0f} seconds and more, beside other work on the GPU up to {max(seconds):.0f})" in readme
    file = ROOT / "results" / "cifar10-resnet18-mail-trades-official-kl-s2.json"
    look = json.loads(file.read_text(encoding="utf-8"))["evaluation"]["aa"]["recheck"]
    assert f"survivors in float32 took another {look['seconds']:.0f} seconds" in readme


def test_claims_are_counted_and_listed(parts: Any, tmp_path: Path) -> None:
    keep(tmp_path, made_up("at", 1000))
    keep(tmp_path, made_up("gairat", 700))
    counted = "Of 72 claims of the paper 2 hold, 2 do not, 0 are undecided and 68 are not tested yet."
    wider = "With intervals widened for the 4 comparisons behind them (Bonferroni) 2 hold and 2 do not.\n"
    assert parts["verdicts"](tmp_path) == f"{counted} {wider}"
    text = parts["claims"](tmp_path)
    assert "| `table2` | `at` at least 5 points above `gairat` in AA | holds | `at - gairat` +15.00 [" in text
    assert "| `table2` | `mail-trades` above the paper's 7 other rows in AA | not tested | rows missing: " in text


def test_a_claim_that_holds_narrowly_does_not_among_many(parts: Any, tmp_path: Path) -> None:
    keep(tmp_path, made_up("trades", 1000))
    keep(tmp_path, made_up("mail-trades", 1007))
    # 7 of 2,000 images one way: 7 ± 1.96 * 3 at one comparison, 7 ± 2.50 * 3 at four.
    said = parts["verdicts"](tmp_path)
    assert said.startswith("Of 72 claims of the paper 4 hold, 0 do not, 0 are undecided and 68 are not tested yet.")
    assert said.endswith("widened for the 4 comparisons behind them (Bonferroni) 0 hold and 0 do not.\n")


def test_a_claim_that_holds_narrowly_over_seeds_does_not_among_many(parts: Any, tmp_path: Path) -> None:
    for seed, gained in ((1, 30), (2, 40), (3, 50)):
        keep(tmp_path, made_up("trades", 1000, seed))
        keep(tmp_path, made_up("mail-trades", 1000 + gained, seed))
    # 2 points, deviation 0.5 over seeds: 2 ± 4.30 * 0.29 at one comparison, 2 ± 8.86 * 0.29 at four; over images ± 0.8.
    said = parts["verdicts"](tmp_path)
    assert said.startswith("Of 72 claims of the paper 4 hold, 0 do not, 0 are undecided")
    assert said.endswith("widened for the 4 comparisons behind them (Bonferroni) 0 hold and 0 do not.\n")


def test_at_is_compared_with_its_weighted_kin_beside_the_papers_differences(parts: Any, tmp_path: Path) -> None:
    assert parts["reweighting"](tmp_path) == "None of these rows has a record yet.\n"
    keep(tmp_path, made_up("at", 1000))
    keep(tmp_path, made_up("gairat", 700))
    rows = cells_of(parts["reweighting"](tmp_path))
    assert [cells[:2] for cells in rows] == [["gairat - at", "PGD"], ["gairat - at", "AA"]]
    assert rows[1][2].startswith("-15.00 [")
    assert [cells[4:] for cells in rows] == [["1", "+5.90"], ["1", "-11.55"]]


def test_two_recipes_for_one_row_of_the_paper_have_no_difference_there(parts: Any, tmp_path: Path) -> None:
    for row, right in (("mail-trades", 1000), ("mail-trades-official-2021", 1010), ("mail-mart", 1000)):
        keep(tmp_path, made_up(row, right))
    line = next(line for line in parts["open-question"](tmp_path).splitlines() if "mail-trades-official-2021 -" in line)
    assert line.endswith("| 2,000 | 1 | - |")
    shown = re.findall(r"· paper[^|]*(?= \|)", parts["reproduced"](tmp_path))
    assert shown[:3] == ["· paper", "· paper in table 1", "· paper for mail-trades"]


def test_the_question_stays_open_until_the_two_by_two_is_run(parts: Any, tmp_path: Path) -> None:
    assert parts["open-question"](tmp_path).startswith("The question is open: `two-by-two` has no record of `trades-")
    for row, right in zip(SQUARE[:3], (980, 984, 1020), strict=True):
        keep(tmp_path, made_up(row, right, experiment="two-by-two"))
    text = parts["open-question"](tmp_path)
    assert text.startswith("The question is open: `two-by-two` has no record of `mail-trades-official-ce`.\n")
    assert "| trades-official-ce - trades-official-kl | AA | +2.00 [+" in text
    keep(tmp_path, made_up(SQUARE[3], 1030, experiment="two-by-two"))
    text = parts["open-question"](tmp_path)
    assert "open" not in text
    assert "| `trades-official-ce` above `trades-official-kl` in AA | holds | " in text
    assert "| weights | AA | +0.35 [" in text
    assert "| interaction: weights under CE - under KL | AA | +0.30 [" in text


def test_what_all_seeds_say_short_of_the_unfinished_attacks_has_a_verdict_too(parts: Any, tmp_path: Path) -> None:
    asked = {cells[0]: cells[1:] for cells in cells_of(parts["open-question"](ROOT / "results").split("\n\n")[0])}
    weights, attack = (f"`{row}` above `{SQUARE[0]}` in AA" for row in (SQUARE[1], SQUARE[2]))
    verdict, evidence = asked[f"{weights}, unfinished attacks left out"]
    assert verdict == "holds"
    assert evidence.endswith("+0.74 [+0.40, +1.07], 10,000 images, 3 seeds"), (
        "the interval is that over seeds, the wider"
    )
    verdict, evidence = asked[f"{attack}, unfinished attacks left out"]
    assert verdict == "undecided"
    assert evidence.endswith("+0.49 [-0.29, +1.27], 10,000 images, 3 seeds")
    for row, right in zip(SQUARE, (980, 984, 1020, 1030), strict=True):
        keep(tmp_path, made_up(row, right, experiment="two-by-two"))
    assert "left out" not in parts["open-question"](tmp_path), "no record of unfinished ones"


PAIRS = ((SQUARE[1], SQUARE[0]), (SQUARE[3], SQUARE[2]), (SQUARE[2], SQUARE[0]), (SQUARE[3], SQUARE[0]))
SIGNED = re.compile(r"[-+]\d+\.\d+")


def test_what_the_page_says_of_weights_and_attack_in_words_is_so(parts: Any, tmp_path: Path) -> None:
    assert parts["before-square"](tmp_path) == "None of these rows has a record yet.\n"
    after, differences = parts["before-square"](ROOT / "results").split("\n\n")[:2]
    fab, square = ([row for row in cells_of(after) if row[place] != "unfinished"] for place in (4, 5))
    lost = sorted(round(100 * (float(row[3][:-1]) - float(row[4][:-1]))) for row in fab)
    assert lost == [0, 0, 0, 0, 2, 4], "images that FAB-T broke"
    assert [row[4] == row[5] for row in square] == [True] * 3, "Square broke none"
    (table,) = (table for table in kept_tables(ROOT / "results") if table.spec.name == "two-by-two")
    release = "mail-trades-official-2021 - trades-official-kl"
    seeds = {one.contrast.title: len(one.seeds) for one in table.comparisons if one.column.title == "NAT"}
    assert {title: count for title, count in seeds.items() if count != 3} == {release: 2}
    (whole,) = (one for one in table.comparisons if (one.contrast.title, one.column.title) == (release, "AA"))
    paper, printed = (paired("mail-trades", base, "AA") for base in ("trades", "trades-beta5"))
    assert paper.seeds == (1,)
    robust, over_seeds, chance = {}, {}, {}
    for cells in cells_of(differences):
        robust[cells[0]] = [float(number) for number in SIGNED.findall(cells[1])]
        over_seeds[cells[0]] = [float(number) for number in SIGNED.findall(cells[-1])]
        chance[cells[0]] = [float(number) for number in re.findall(r"p ([\d.]+)", cells[-1])]
    low, high = paper.interval
    recipes = (
        f"the paper's brings {paper.difference:+.2f} [{low:+.2f}, {high:+.2f}] in one seed, that of the first code"
    )
    first, (third, *ends) = told(whole, ""), robust[release]
    assert f"{recipes} +{first} and {third:+.2f} [{ends[0]:+.2f}, {ends[1]:+.2f}] in two, over `{SQUARE[0]}`" in PAGE
    ends = [paper.interval[1], whole.interval[1], *(high for _, _, high in robust.values())]
    assert max(*ends, *(both[1] for both in over_seeds.values() if both)) < 2.5, "none is near what the paper prints"

    def told_of(title: str) -> str:
        low, high = over_seeds[title]
        return f"{robust[title][0]:+.2f} [{low:+.2f}, {high:+.2f}]"

    weights, beside, attack, together = (f"{plus} - {minus}" for plus, minus in PAIRS)
    assert f"the weights, as the code scales them, add {told_of(weights)[1:]}".replace(" [", " points [") in PAGE
    assert f"Normalised as the paper prints them, the weights add +{told(printed, '')} to TRADES" in PAGE
    assert printed.seeds == (1,)
    assert over_seeds[weights][0] > 0, "which holds"
    assert f"what the CE attack adds without weights, {told_of(attack)}" in PAGE
    assert f"what both add together, {told_of(together)}" in PAGE
    assert f"what the weights add under CE, {told_of(beside)}, three seeds leave undecided" in PAGE
    assert all(chance[title] > [0.05] for title in (beside, attack, together))
    assert all(over_seeds[title][0] < 0 < over_seeds[title][1] for title in (beside, attack, together))
    assert chance["interaction: weights under CE - under KL"] > [0.05], "undecided too"
    costs = {one.contrast.title: one for one in table.comparisons if one.column.title == "NAT"}
    assert (
        f"the weights {-costs[weights].difference:.1f} points under KL and {-costs[beside].difference:.1f} under"
        in PAGE
    )
    assert f"the CE attack {-costs[attack].difference:.1f} without weights" in PAGE
    assert all(one[1] < 0 for one in (costs[title].deciding_interval for title in (weights, beside, attack)))


def test_the_commands_of_the_page_keep_the_records_it_is_made_from() -> None:
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    commands = re.findall(r"^probmargin reproduce table2 .*--trials.*$", page, re.MULTILINE)
    assert commands
    assert all(command.endswith("--keep-records results") for command in commands)
