"""A table's arithmetic, worked by hand, and the records it refuses."""

import math
from typing import Any

import pytest
from scipy.stats import binomtest
from table_records import EPS, RECIPES, column, record, row, table

from probmargin.core.stats import mcnemar
from probmargin.reporting.compare import Comparison, compare
from probmargin.reporting.spec import Claim, Contrast
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
        ({"seed": 1}, "seed of the evaluation is 1, not 0"),
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
    # t test and interval over seeds need three of them
    assert found.seeds_p is None
    assert found.seeds_interval is None
    # with one image more each way 0, 0, 1, 1, 1, -1: mean 1/3, variance 4/6 - 1/9
    half = 100 * 1.959964 * math.sqrt(5 / 9 / 6)
    assert found.interval == pytest.approx((100 / 3 - half, 100 / 3 + half))
    assert not found.is_clear


def pair(plus: str, minus: str, factor: float = 1.0) -> Comparison:
    contrast = Contrast("a - b", ("a",), ("b",), factor)
    found = compare(contrast, column("AA", "aa"), {"a": {1: plus}, "b": {1: minus}})
    assert found is not None
    return found


def test_the_interval_of_two_models_is_bonett_and_prices() -> None:
    # 12 images right in both, 26 in the first alone, 4 in the second alone, 6 in neither
    found = pair("1" * 38 + "0" * 10, "1" * 12 + "0" * 26 + "1" * 4 + "0" * 6)
    assert found.difference == pytest.approx(100 * 22 / 48), "the difference itself is that of the images"
    # p12 = 27/50, p21 = 5/50: centre 0.44, variance (0.64 - 0.44^2) / 50, half-width 1.96 * 0.0944881
    assert found.interval == pytest.approx((25.48067, 62.51933), abs=1e-4)
    assert found.images_p == pytest.approx(3.2e-6, rel=0.02), "z = 0.44 / 0.0944881 = 4.6567"
    assert found.is_clear


def test_an_interval_ends_where_differences_do() -> None:
    # one image: p12 = 2/3, p21 = 1/3, centre 1/3, variance (1 - 1/9) / 3, half-width 1.067
    assert pair("1", "0").interval == pytest.approx((-73.3536, 100.0), abs=1e-3)
    assert pair("0", "1").interval == pytest.approx((-100.0, 73.3536), abs=1e-3)
    assert pair("1", "0", factor=2.0).interval == pytest.approx((-146.7072, 200.0), abs=1e-3)


def seeds(*texts: str) -> dict[int, str]:
    return dict(enumerate(texts, 1))


def test_three_seeds_have_a_t_test_and_an_interval() -> None:
    rows = {"a": seeds("1100", "1110", "1111"), "b": seeds("1000", "1000", "1000")}
    found = compare(Contrast("a - b", ("a",), ("b",)), column("AA", "aa"), rows)
    assert found is not None
    assert found.seed_differences == (25.0, 50.0, 75.0)
    # t = 50 / (25 / sqrt 3) with 2 degrees of freedom; the quantile of 97.5% is 4.3027
    assert found.seeds_p == pytest.approx(1 - math.sqrt(12 / 14), rel=1e-6)
    half = 4.3026527 * 25 / math.sqrt(3)
    assert found.seeds_interval == pytest.approx((50 - half, 50 + half))
    assert found.deciding_interval == found.seeds_interval != found.interval


def test_equal_differences_have_no_p_over_seeds() -> None:
    for other in ("1100", "1" + "1000000" * 2, "1000010" * 7):
        rows = {"a": seeds(other, other, other), "b": seeds(*["1" + "0" * (len(other) - 1)] * 3)}
        found = compare(Contrast("a - b", ("a",), ("b",)), column("AA", "aa"), rows)
        assert found is not None
        assert found.seeds_std == pytest.approx(0.0, abs=1e-12), "13 of 49 points three times leave a rounding error"
        assert (found.seeds_p, found.seeds_interval) == (None, None)
        assert found.deciding_interval == found.interval


def test_the_first_seeds_count_as_many_as_are_asked_for() -> None:
    records = [record("at", seed, nat=text) for seed, text in ((3, "0000"), (1, "1111"), (2, "1100"))]
    assert [cell(records, trials=count).mean for count in (1, 2, 3)] == [100.0, 75.0, 50.0]
    assert cell(records, trials=1).reasons == ()


def test_a_single_seed_has_an_interval_over_images() -> None:
    found = cell([record("at", nat="1110")])
    # Wilson's: (0.75 + z^2/8 ± z sqrt(0.75 * 0.25 / 4 + z^2/64)) / (1 + z^2/4)
    assert found.interval == pytest.approx((30.0642, 95.4413), abs=1e-3)
    assert cell([record("at", 1), record("at", 2)]).interval is None
    assert cell([]).interval is None


def test_the_drop_is_counted_on_the_images_that_both_looked_at() -> None:
    attack = {"name": "aa", "eps": EPS}
    columns = (column("PGD", "nat"), column("AA", "aa", first=2), column("AA", "aa", first=1, is_part=True))
    short = record("at", nat="1111", evaluation={"aa": {"correct": "10", "attack": attack}})
    line = build_table(table(columns=columns), [short]).lines[0]
    assert line.drop == 50.0
    assert [entry.mean for entry in line.cells] == [100.0, 50.0, 100.0]
    assert build_table(table(columns=columns), []).lines[0].drop is None
    rows = (row("at", published={"PGD": (50.0, 1.0), "AA": (44.0, 1.0)}),)
    line = build_table(table(columns=columns, rows=rows, contrasts=()), [short]).lines[0]
    assert line.published_drop == 6.0
    assert [entry.published for entry in line.cells] == [(50.0, 1.0), (44.0, 1.0), None]


PARTS = (column("AA", "aa"), column("AA", "aa", first=1, is_part=True), column("AA", "aa", first=2, is_part=True))


def shorter(row: str, aa: str) -> dict[str, Any]:
    """A record that AutoAttack looked at fewer images of than the data has."""
    return record(row, evaluation={"aa": {"correct": aa, "attack": {"name": "aa", "eps": EPS}}})


def test_a_column_cut_from_another_is_silent_where_that_speaks() -> None:
    rows = (row("at", published={"AA": (44.0, 1.0)}), row("mail-at"))
    made = build_table(table(columns=PARTS, rows=rows), [record("at"), record("mail-at")])
    assert [found.column.is_part for found in made.comparisons] == [False]
    assert [entry.published for entry in made.lines[0].cells] == [(44.0, 1.0), None, None]
    assert made.lines[0].cell("AA") is made.lines[0].cells[0]


def test_the_largest_part_that_has_a_number_speaks_where_the_whole_has_none() -> None:
    rows = (row("at", published={"AA": (44.0, 1.0)}), row("mail-at", published={"AA": (44.0, 1.0)}))
    claims = (Claim(row="mail-at", column="AA", others=("at",)),)
    made = build_table(
        table(columns=PARTS, rows=rows, claims=claims), [shorter("at", "10"), record("mail-at", aa="1110")]
    )
    (found,) = made.comparisons
    assert (found.column.first, found.difference) == (2, 50.0)
    (judged,) = made.claims
    assert judged.comparisons[0].column.first == 2
    assert "2 images" in judged.evidence
    at, mail = made.lines
    assert at.cell("AA") is at.cells[2]
    assert mail.cell("AA") is mail.cells[0], "its own whole column"
    assert [entry.published for entry in at.cells] == [(44.0, 1.0), None, (44.0, 1.0)], "of both"
    assert at.cells[2].difference == 6.0
    assert [entry.published for entry in mail.cells] == [(44.0, 1.0), None, None]
    # one image was looked at: only the smallest part has a number
    made = build_table(table(columns=PARTS, rows=rows), [shorter("at", "1"), record("mail-at")])
    assert [found.column.first for found in made.comparisons] == [1]


def test_rows_without_any_number_have_no_cell_that_speaks() -> None:
    made = build_table(table(columns=PARTS), [])
    assert made.comparisons == ()
    assert made.lines[0].cell("AA") is made.lines[0].cells[0]
    assert made.lines[0].cell("CW") is None


def test_a_contrast_of_two_rows_with_two_others_has_no_mcnemar() -> None:
    rows = {"a": {1: "11"}, "b": {1: "10"}, "c": {1: "00"}, "d": {1: "10"}}
    found = compare(Contrast("weights", ("a", "b"), ("c", "d")), column("AA", "aa"), rows)
    assert found is not None
    assert found.difference == 50.0
    assert found.pairs == ()
    assert found.seeds_p is None
    # 1/2, 1/2, 1, -1: mean 1/4, variance 10/16 - 1/16, standard error 3/8, z = 2/3
    assert found.images_p == pytest.approx(0.5049851, rel=1e-5)
    twice = compare(Contrast("x", ("a", "b"), ("c", "d"), 2.0), column("AA", "aa"), rows)
    assert twice is not None
    assert twice.difference == 100.0
    uneven = compare(Contrast("y", ("a", "d"), ("c", "c")), column("AA", "aa"), rows)
    assert uneven is not None
    # 1, 1/2, 1, -1: mean 3/8, variance 13/16 - 9/64, z = 0.375 / 0.409840
    assert uneven.images_p == pytest.approx(0.3602, rel=1e-3)
    assert compare(Contrast("x", ("a",), ("e",)), column("AA", "aa"), rows) is None


@pytest.mark.parametrize(("first", "second"), [(0, 0), (3, 3), (0, 10), (120, 160), (1, 2000)])
def test_mcnemar_is_the_binomial_test(first: int, second: int) -> None:
    total = first + second
    expected = binomtest(first, total, 0.5).pvalue if total else 1.0
    assert mcnemar(first, second) == pytest.approx(expected, rel=1e-9)
