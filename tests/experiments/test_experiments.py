"""Experiments as data: every row is a recipe, every published number is the paper's."""

import json
import re
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest

from probmargin.core.errors import UsageError
from probmargin.evaluation.protocol import PROTOCOLS
from probmargin.experiments.catalogue import EXPERIMENTS, find
from probmargin.experiments.experiment import Column, Experiment
from probmargin.experiments.grid import make_grid, smoke_recipe
from probmargin.experiments.published import doubts, published, source
from probmargin.methods.resolve import METHODS, resolve

ALL = find(None)
SCALES = ("full", "smoke")


@pytest.mark.parametrize("experiment", ALL, ids=lambda experiment: experiment.name)
def test_rows_are_recipes_with_names_of_their_own(experiment: Experiment) -> None:
    ids = [row.id for row in experiment.rows]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in ids)
    assert all(row.id.startswith(row.method) and row.method in METHODS for row in experiment.rows)
    assert experiment.claim.endswith(".")
    assert experiment.command == f"probmargin reproduce {experiment.name}"
    assert {name for contrast in experiment.contrasts for name in contrast.rows} <= set(ids)
    for scale in SCALES:
        grid = make_grid(experiment, "full" if scale == "full" else "smoke")
        hashes = [recipe.hash() for recipe in grid.recipes.values()]
        assert len(set(hashes)) == len(hashes)
        assert [row.id for row in grid.table().rows] == ids


@pytest.mark.parametrize("scale", SCALES)
def test_a_run_of_the_same_name_has_the_same_recipe_in_every_table(scale: str) -> None:
    known: dict[str, str] = {}
    for experiment in ALL:
        grid = make_grid(experiment, "full" if scale == "full" else "smoke")
        for row in grid.rows:
            assert known.setdefault(grid.run_name(row), grid.recipes[row.id].hash()) == grid.recipes[row.id].hash()


def test_published_numbers_are_the_papers() -> None:
    assert published("table1/at/lps") == {"NAT": (82.26, 0.6), "PGD": (54.14, 0.15), "AA": (36.32, 0.57)}
    assert published("table2/mail-trades")["CW"] == (52.89, 0.31)
    assert published("table2/gairat")["AA"] == (33.35, 0.57)
    assert published("table3/awp")["NAT"] == (57.55, 0.23)
    assert published("table4-svhn/mail-at")["PGD"] == (65.54, 0.16)
    assert published("table4-cifar100/trades")["AA"] == (24.9, 0.33)
    assert published("table5/mm")["AA"] == (49.2, 0.09)
    assert published("table6/hinge")["AA"] == (43.4, 0.22)
    assert published("table7/at/cw")["PGD"] == (65.55, 0.2)
    assert published("") == {}
    assert "arXiv:2106.07904" in source()
    assert "57.55 cannot be right" in doubts("table3/awp")["NAT"]
    with pytest.raises(UsageError, match="did you mean mail-at"):
        published("table2/mail-a")
    with pytest.raises(UsageError, match="unknown table"):
        published("table8/at")


def test_every_number_that_the_paper_prints_otherwise_elsewhere_is_named_in_both_places() -> None:
    printed: dict[tuple[str, str, str, str], dict[str, tuple[float, float]]] = {}
    for experiment in ALL:
        for row in experiment.rows:
            if row.published and not row.published_for:
                for column, numbers in published(row.published).items():
                    cell = (experiment.data, experiment.model, row.id, column)
                    printed.setdefault(cell, {})[row.published] = numbers
    apart = {cell: found for cell, found in printed.items() if len(set(found.values())) > 1}
    assert {(row, column) for _, _, row, column in apart} == {
        *(("gairat", column) for column in ("NAT", "PGD", "AA")),
        *(("mail-at", column) for column in ("NAT", "AA")),
        *(("mail-trades", column) for column in ("NAT", "PGD")),
    }
    for (*_, column), found in apart.items():
        for place, (mean, spread) in found.items():
            others = {numbers for numbers in found.values() if numbers[0] != mean}
            text = doubts(place)[column]
            assert text.startswith(f"{mean:.2f} here, ")
            assert all(f"{other:.2f} for the same row" in text for other, _ in others)
            assert text.endswith("with the same deviation") is all(other == spread for _, other in others)


def test_every_published_row_is_somewhere_in_a_table() -> None:
    text = resources.files("probmargin.experiments").joinpath("published.json").read_text(encoding="utf-8")
    printed = {f"{table}/{row}" for table, facts in json.loads(text)["tables"].items() for row in facts["rows"]}
    assert {row.published for experiment in ALL for row in experiment.rows if row.published} == printed
    assert len(printed) == 52
    for experiment in ALL:
        for row in experiment.rows:
            wanted = {column.title for column in experiment.columns}
            assert not row.published or set(published(row.published)) <= wanted
            assert row.published or row.is_extra or experiment.name == "two-by-two"


@pytest.mark.parametrize("experiment", ALL, ids=lambda experiment: experiment.name)
def test_claims_name_rows_and_columns_and_agree_with_what_the_paper_prints(experiment: Experiment) -> None:
    printed = {row.id: published(row.published) for row in experiment.rows}
    titles = {column.title for column in experiment.columns}
    assert experiment.claims
    assert len({claim.text for claim in experiment.claims}) == len(experiment.claims)
    for claim in experiment.claims:
        assert claim.column in titles
        assert {claim.row, *claim.others} <= set(printed)
        assert claim.row not in claim.others
        if experiment.name != "two-by-two":
            numbers = {row: printed[row][claim.column][0] for row in (claim.row, *claim.others)}
            margins = [numbers[claim.row] - numbers[other] - claim.by for other in claim.others]
            # "At least" and "at most" leave room for an equal number, "above" does not.
            assert min(margins) > 0 or (claim.by and min(margins) == 0), claim.text
            if claim.alike:
                assert printed[claim.alike][claim.column][0] == numbers[claim.row], claim.text


def test_the_papers_words_on_gairat_and_on_each_weighted_method_are_claims() -> None:
    (table2,) = find("table2")
    pairs = {(claim.row, claim.others[0], claim.column) for claim in table2.claims if len(claim.others) == 1}
    assert {("gairat", "at", "PGD"), ("gairat", "at", "APGD"), ("mail-at", "gairat", "CW")} <= pairs
    assert {("mail-at", "at", column) for column in ("PGD", "APGD")} <= pairs
    assert {("mail-trades", "trades", column) for column in ("PGD", "APGD", "CW", "AA")} <= pairs
    # No pair of rows is counted twice because two tables print it.
    every = [(claim, experiment) for experiment in ALL for claim in experiment.claims]
    told = [(claim.text, experiment.data, experiment.model) for claim, experiment in every if len(claim.others) == 1]
    assert len(told) == len(set(told))


def test_on_svhn_two_rows_share_the_most_natural_accuracy() -> None:
    (svhn,) = find("table4-svhn")
    assert "FAT and MAIL-AT have the most natural accuracy" in svhn.claim
    claims = {claim.row: claim for claim in svhn.claims if claim.column == "NAT"}
    assert claims["fat"].text == "`fat` above the paper's 6 other rows in NAT (the paper prints `mail-at` alike)"
    assert claims["mail-at"].text == "`mail-at` above the paper's 6 other rows in NAT (the paper prints `fat` alike)"
    paper = {row.id for row in svhn.rows if not row.is_extra}
    assert [{*claim.others, claim.row, claim.alike} for claim in claims.values()] == [paper, paper]


def test_autoattack_is_also_reported_on_the_first_thousand_images() -> None:
    for experiment in ALL:
        table = make_grid(experiment).table()
        parts = [column.label for column in table.columns if column.is_part]
        thousand, two = "AA (first 1,000)", "AA (first 2,000)"
        wanted = {"two-by-two": [two], "table2": [thousand], "table3": [thousand]}
        assert parts == wanted.get(experiment.name, [thousand, two])
        assert not any(column.is_part for column in make_grid(experiment).columns), "nothing is judged twice"
    (table2,) = find("table2")
    assert not any(column.is_part for column in make_grid(table2, aa_examples=500).table().columns)


def test_table_2_compares_the_first_release_and_prints_the_papers_numbers_beside_it() -> None:
    table = make_grid(find("table2")[0]).table()
    (release,) = (row for row in table.rows if row.id == "mail-trades-official-2021")
    assert release.published == published("table2/mail-trades")
    assert (release.published_for, release.doubts) == ("for mail-trades", {})
    assert "mail-trades-official-2021 - mail-trades" in [contrast.title for contrast in table.contrasts]


def test_the_interaction_is_the_difference_of_two_differences() -> None:
    (experiment,) = find("two-by-two")
    (found,) = (contrast for contrast in experiment.contrasts if contrast.title.startswith("interaction"))
    effect = {row: found.factor / 2 for row in found.plus} | {row: -found.factor / 2 for row in found.minus}
    assert effect == {
        "mail-trades-official-ce": 1.0,
        "trades-official-ce": -1.0,
        "mail-trades-official-kl": -1.0,
        "trades-official-kl": 1.0,
    }


def test_extra_rows_are_marked() -> None:
    extras = {experiment.name: {row.id for row in experiment.rows if row.is_extra} for experiment in ALL}
    assert extras["table1"] == {"mail-at-pm-dif", "mail-mart-pm-dif", "mail-trades-pm-dif"}
    assert extras["table2"] == {"trades-beta5", "mart-beta6", "mail-mart", "mail-trades-official-2021"}
    assert extras["table5"] == {"mail-trades-mm-nat"}
    assert extras["table6"] == {"mail-trades-hinge"}
    assert extras["two-by-two"] == {"mail-trades-official-2021"}


def recipe(experiment: str, row: str) -> dict[str, Any]:
    return make_grid(find(experiment)[0]).recipes[row].plain()


def test_rows_say_what_the_table_says() -> None:
    assert recipe("table1", "gair-trades")["margin"]["name"] == "lps"
    assert recipe("table5", "mail-trades-mm-adv")["margin"]["name"] == "mm_adv"
    step = recipe("table6", "mail-trades-step")["weight"]
    assert step == {"name": "step", "alpha": 0.2, "bias": 0.0}
    hinge = recipe("table6", "mail-trades-hinge-as-printed")["weight"]
    assert hinge == {"name": "hinge_as_printed", "slope": 2.0, "bias": 0.0}
    assert recipe("table7", "mail-at-kl")["attack"]["loss"] == "kl"
    assert recipe("table3", "mart")["objective"]["beta"] == 6.0
    assert recipe("table3", "at")["lr"] == 0.1
    assert recipe("table2", "trades-beta5")["objective"]["beta"] == 5.0
    assert make_grid(find("table2")[0]).recipes["mail-trades"] == resolve("mail-trades", data="cifar10")


def test_the_two_by_two_switches_one_thing_at_a_time() -> None:
    recipes = make_grid(find("two-by-two")[0]).recipes
    phases = [{"from_epoch": 76, "start_from_epoch": None, "fresh_momentum": False, "set": {"attack.loss": "ce"}}]
    for name, found in recipes.items():
        if name == "mail-trades-official-2021":
            continue
        plain = found.plain()
        assert (plain["epochs"], plain["burn_in_epochs"], plain["objective"]["beta"]) == (101, 76, 5.0)
        assert plain["attack"]["loss"] == "kl"
        assert plain["phases"] == (phases if name.endswith("-ce") else [])
        is_mail = name.startswith("mail")
        assert plain["weight"]["name"] == ("sigmoid" if is_mail else "uniform")
        assert not is_mail or plain["normalizer"] == {"name": "fixed", "factor": 3.0}


def test_smoke_shrinks_a_schedule_in_proportion() -> None:
    experiment = find("two-by-two")[0]
    small = {row.id: smoke_recipe(experiment, row) for row in experiment.rows}
    ce = small["mail-trades-official-ce"]
    assert ce.burn_in_epochs == ce.phases[0].from_epoch < ce.epochs
    assert getattr(ce.attack, "eps", None) == 0.15
    grid = make_grid(experiment, "smoke")
    assert (grid.data, grid.model, grid.trials) == ("digits", "small-cnn", 1)
    assert [column.title for column in grid.columns] == ["NAT", "PGD", "APGD", "CW", "AA"]
    assert [column.attack for column in grid.columns] == ["nat", "pgd-20", "apgd-ce", "cw", "aa"]
    assert grid.table().rows[0].published == {}


def test_columns_carry_their_protocol() -> None:
    columns = {column.title: column for column in make_grid(find("two-by-two")[0], aa_examples=2000).columns}
    assert columns["AA"].label == "AA (first 2,000)"
    assert (columns["AA-1000"].eps, columns["AA-1000"].first) == (0.031, 1000)
    assert columns["PGD"].attack == "pgd-100"
    assert columns["PGD"].first is None


def test_columns_say_what_their_attack_means() -> None:
    for scale in SCALES:
        columns = [column for experiment in ALL for column in make_grid(experiment, scale).columns]  # type: ignore[arg-type]
        assert all(column.meaning is not None for column in columns)
    odd = make_grid(replace(find("table2")[0], columns=(Column("PGD", "pgd-20", "official-1000"),)))
    assert (odd.columns[0].meaning or {})["step_size"] == PROTOCOLS["official-1000"].step_size


def test_wrong_use_is_named() -> None:
    assert [experiment.name for experiment in find("table4")] == ["table4-svhn", "table4-cifar100"]
    assert set(EXPERIMENTS) == {"table4", *(experiment.name for experiment in ALL)}
    with pytest.raises(UsageError, match="did you mean table"):
        find("tabel2")
    with pytest.raises(UsageError, match="did you mean mail-trades"):
        make_grid(find("table2")[0], only=["mail-trade"])
    with pytest.raises(UsageError, match="--trials"):
        make_grid(find("table2")[0], trials=0)
    with pytest.raises(UsageError, match="--aa-examples"):
        make_grid(find("table2")[0], aa_examples=0)
