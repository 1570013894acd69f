"""A table's arithmetic, worked by hand, and the records it refuses."""

import math
from typing import Any

import pytest
from scipy.stats import binomtest
from table_records import EPS, RECIPES, column, record, row, table

from probmargin.core.stats import mcnemar
from probmargin.reporting.compare import compare
from probmargin.reporting.spec import Contrast
from probmargin.reporting.tables import Cell, build_table


def cell(records: list[dict[str, Any]], place: int = 0, line: int = 0, **changes: Any) -> Cell:
    return build_table(table(**changes), records).lines[line].cells[place]


def test_mean_deviation_difference_and_bound_are_those_worked_by_hand() -> None:
    found = cell([record("at", 1, nat="1110"), record("at", 2, nat="1100")])
    assert found.values == [75.0, 50.0]
    assert found.trials == 2
    assert found.mean == 62.5
    assert found.std == pytest.approx(12.5 * math.sqrt(2))
    assert found.difference == -17.5
    # s^2 / n = 312.5 / 2; binomial error^2 = 0.625 * 0.375 / 4 of 100^2
    assert found.bound == pytest.approx(2 * math.sqrt(156.25 + 585.9375))
    assert found.is_within
    assert found.reasons == ()


def test_a_single_trial_borrows_the_papers_deviation() -> None:
    found = cell([record("at", nat="1110")])
    assert found.std is None
    assert found.bound == pytest.approx(2 * math.sqrt(100 + 10000 * 0.75 * 0.25 / 4))
    far = cell([record("at", nat="1110")], rows=(row("at", published={"NAT": (10.0, 1.0)}), row("mail-at")))
    assert far.is_within is False


def test_blank_cells_carry_a_reason() -> None:
    made = build_table(
        table(),
        [record("at", evaluation={"aa": {}})],
        {"blobs-net-at-s2": "no CUDA device", "blobs-net-mail-at-s1": "out of memory"},
    )
    assert made.missing == [
        "`at`: blobs-net-at-s2 failed: no CUDA device",
        "`at` AA: blobs-net-at-s1: aa was not evaluated under protocol standard",
        "`mail-at`: blobs-net-mail-at-s1 failed: out of memory",
        "`mail-at`: 0 of 2 trials",
    ]
    assert made.lines[1].cells[0].mean is None
    assert build_table(table(), []).missing == ["`at`: no record", "`mail-at`: no record"]
    assert build_table(table(), []).is_empty
    assert build_table(table(), [record("at")]).missing[0] == "`at`: 1 of 2 trials"


OTHER = {**RECIPES["at"], "attack": {"name": "pgd", "eps": 0.1}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipe": OTHER}, "its recipe is not the row's: attack.eps is 0.1, not 0.03"),
        ({"recipe": {**RECIPES["at"], "nesterov": True}}, "nesterov is True, not missing"),
        ({"recipe_hash": "0" * 16}, "its recipe_hash is 0000000000000000, but its recipe's is"),
        ({"data": "cifar10"}, "data is 'cifar10', not 'blobs'"),
        ({"model": "resnet18"}, "model is 'resnet18', not 'net'"),
        ({"validation": 1000}, "held-out images"),
        ({"label_noise": "symmetric:0.2"}, "wrong labels"),
    ],
)
def test_a_record_that_is_not_the_rows_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    line = build_table(table(), [record("at", **changes)]).lines[0]
    assert line.trials == 0
    assert len(line.remarks) == 1
    assert "record blobs-net-at-s1 refused" in line.remarks[0]
    assert words in line.remarks[0]


def test_a_run_of_another_name_counts_by_its_recipe() -> None:
    assert cell([record("at", id="my-run")]).mean == 75.0
    assert cell([record("at", id="my-run", recipe=OTHER)]).mean is None


def test_the_records_of_a_cell_differ_in_the_seed_alone() -> None:
    first = record("at", 1)
    line = build_table(table(), [first, record("at", 2, precision="bf16")]).lines[0]
    assert line.trials == 1
    assert "differs in more than the seed: precision is 'bf16', not 'fp32'" in line.remarks[0]
    line = build_table(table(), [first, record("at", 1, id="again")]).lines[0]
    assert line.remarks == ("record again refused: seed 1 is already there as blobs-net-at-s1",)
    assert build_table(table(), [first, record("at", 1)]).lines[0].remarks == ()


@pytest.mark.parametrize(
    ("evaluation", "words"),
    [
        ({"eps": 0.031}, "eps is 0.031, not 0.03137"),
        ({"norm": "L2"}, "norm is 'L2', not 'Linf'"),
        ({"protocol": "official-1000"}, "was not evaluated under protocol standard"),
        ({"seed": 1}, "seed of the evaluation is 1, not 0 as in blobs-net-at-s1"),
        ({"aa": {"correct": "1000", "attack": {"name": "aa", "eps": 0.1}}}, "attack.eps is 0.1, not 0.03"),
        ({"aa": {"correct": "10", "attack": {"name": "aa", "eps": EPS}}}, "aa looked at 2 of 4 images"),
    ],
)
def test_a_column_has_one_protocol(evaluation: dict[str, Any], words: str) -> None:
    found = cell([record("at"), record("mail-at", evaluation=evaluation)], place=1, line=1)
    assert found.mean is None
    assert any(words in reason for reason in found.reasons), found.reasons


def test_a_column_of_the_first_images_cuts_longer_records() -> None:
    columns = (column("AA", "aa", first=2),)
    records = [
        record("at", aa="1000"),
        record("mail-at", evaluation={"aa": {"correct": "11", "attack": {"name": "aa", "eps": EPS}}}),
    ]
    made = build_table(table(columns=columns), records)
    assert [line.cells[0].mean for line in made.lines] == [50.0, 100.0]
    assert made.comparisons[0].num_examples == 2
    assert cell([record("at", aa="1")], columns=(column("AA", "aa", first=2),)).mean is None


def test_other_protocols_of_a_record_fill_their_own_columns() -> None:
    other = {**record("at")["evaluation"], "protocol": "official-1000", "eps": 0.031, "aa": {"correct": "11"}}
    official = column("AA-1000", "aa", first=2)
    official = type(official)(**{**vars(official), "protocol": "official-1000", "eps": 0.031})
    spec_columns = (column("AA", "aa"), official)
    made = build_table(table(columns=spec_columns), [record("at", evaluations={"official-1000": other})])
    assert [entry.mean for entry in made.lines[0].cells] == [25.0, 100.0]


def test_paired_comparisons_over_images_and_seeds() -> None:
    records = [
        record("at", 1, aa="1100"),
        record("at", 2, aa="1000"),
        record("mail-at", 1, aa="1011"),
        record("mail-at", 2, aa="1111"),
        record("mail-at", 3, aa="0000"),
    ]
    found = build_table(table(trials=3), records).comparisons[1]
    assert found.column.title == "AA"
    assert found.seeds == (1, 2)
    assert [(pair.seed, pair.only_plus, pair.only_minus) for pair in found.pairs] == [(1, 2, 1), (2, 3, 0)]
    assert found.pairs[0].p == mcnemar(2, 1) == 1.0
    assert found.pairs[1].p == 0.25
    # seeds: +25 and +75 points; images: 0, 0, 1, 1 on average over seeds
    assert found.difference == 50.0
    assert found.seeds_std == pytest.approx(25 * math.sqrt(2))
    assert found.seeds_p == pytest.approx(2 / math.pi * math.atan(0.5))
    assert found.half_width == pytest.approx(100 * 1.959964 * math.sqrt(1 / 3) / 2)
    assert not found.is_clear


def test_a_contrast_of_two_rows_with_two_others_has_no_mcnemar() -> None:
    rows = {"a": {1: "11"}, "b": {1: "10"}, "c": {1: "00"}, "d": {1: "10"}}
    found = compare(Contrast("weights", ("a", "b"), ("c", "d")), column("AA", "aa"), rows)
    assert found is not None
    assert found.difference == 50.0
    assert found.pairs == ()
    assert found.seeds_p is None
    assert compare(Contrast("x", ("a",), ("e",)), column("AA", "aa"), rows) is None


@pytest.mark.parametrize(("first", "second"), [(0, 0), (3, 3), (0, 10), (120, 160), (1, 2000)])
def test_mcnemar_is_the_binomial_test(first: int, second: int) -> None:
    total = first + second
    expected = binomtest(first, total, 0.5).pvalue if total else 1.0
    assert mcnemar(first, second) == pytest.approx(expected, rel=1e-9)
