"""Claims are judged by paired intervals: each verdict once, worked by hand."""

import pytest
from table_records import column, record, table

from probmargin.reporting.claims import Judged, judge
from probmargin.reporting.spec import Claim
from probmargin.reporting.tables import build_table

COLUMNS = (column("NAT", "nat"), column("AA", "aa"))


def bits(right: int, total: int = 100) -> str:
    return "1" * right + "0" * (total - right)


def judged(by: float = 0.0, **rows: list[str]) -> Judged:
    """The claim that `a` is above all others in AA, from a text a seed."""
    cells = {name: [{}, dict(enumerate(texts, 1))] for name, texts in rows.items()}
    others = tuple(name for name in rows if name != "a")
    return judge(Claim(row="a", column="AA", others=others, by=by), COLUMNS, cells)


def test_a_claim_holds_where_every_interval_lies_above() -> None:
    found = judged(a=[bits(60)], b=[bits(40)], c=[bits(50)])
    assert found.verdict == "holds"
    # the closest: ten images of a hundred; with one more each way 9.80 points, standard error 3.25
    assert found.evidence == "`a - c` +10.00 [+3.43, +16.18], 100 images, 1 seed"


def test_one_interval_below_refutes_even_where_rows_are_missing() -> None:
    found = judged(a=[bits(40)], b=[bits(50)], c=[])
    assert found.verdict == "does not hold"
    assert found.evidence.startswith("`a - b` -10.00 [-16.18, -3.43]")
    assert judged(a=[bits(50)], b=[bits(40)], c=[]).verdict == "not tested"
    assert judged(a=[bits(50)], b=[bits(40)], c=[]).evidence == "rows missing: `c`"
    assert judged(a=[], b=[]).evidence == "rows missing: `a`, `b`"


def test_one_difference_that_is_not_clear_leaves_a_claim_undecided_whatever_is_missing() -> None:
    found = judged(a=[bits(51)], b=[bits(50)], c=[])
    assert found.verdict == "undecided"
    assert found.evidence == "`a - b` +1.00 [-2.34, +4.30], 100 images, 1 seed; rows missing: `c`"


def test_an_interval_around_the_line_decides_nothing() -> None:
    assert judged(a=[bits(51)], b=[bits(50)]).verdict == "undecided"
    assert judged(a=[bits(50)], b=[bits(50)]).verdict == "undecided"


@pytest.mark.parametrize(
    ("by", "verdict"), [(3.0, "holds"), (5.0, "undecided"), (20.0, "does not hold"), (-1.0, "holds")]
)
def test_a_claim_may_ask_for_points(by: float, verdict: str) -> None:
    assert judged(by=by, a=[bits(60)], b=[bits(50)]).verdict == verdict


def test_a_claim_may_leave_room_below() -> None:
    assert judged(by=-20.0, a=[bits(40)], b=[bits(50)]).verdict == "holds"
    claim = Claim(row="a", column="AA", others=("b", "c"), by=-1.0)
    assert claim.text == "`a` at most 1 point below `b` and `c` in AA"
    claim = Claim(row="a", column="AA", others=("b", "c", "d", "e"))
    assert claim.text == "`a` above the paper's 4 other rows in AA"


def test_from_three_seeds_on_seeds_must_agree_too() -> None:
    one = judged(a=[bits(60)], b=[bits(50)])
    assert one.verdict == "holds"
    apart = judged(a=[bits(80), bits(50), bits(50)], b=[bits(50)] * 3)
    # over images the mean of 10 points is clear, over seeds it is 10 ± 43
    assert apart.comparisons[0].is_clear
    assert apart.verdict == "undecided"
    assert "3 seeds" in apart.evidence


def test_rows_without_a_common_seed_are_not_compared() -> None:
    cells: dict[str, list[dict[int, str]]] = {"a": [{}, {1: "1"}], "b": [{}, {2: "1"}]}
    found = judge(Claim(row="a", column="AA", others=("b",)), COLUMNS, cells)
    assert found.verdict == "not tested"
    assert found.evidence == "its rows share no seed among the first of each, which count: `a` has 1, `b` has 2"


def test_a_seed_that_is_there_but_does_not_count_is_no_riddle() -> None:
    claims = (Claim(row="mail-at", column="AA", others=("at",)),)
    records = [record("at", seed=1), record("at", seed=2), record("mail-at", seed=2)]
    (found,) = build_table(table(claims=claims, trials=1), records).claims
    assert found.evidence.endswith("among the first of each, which count: `mail-at` has 2, `at` has 1")
    (found,) = build_table(table(claims=claims, trials=2), records).claims
    assert found.comparisons[0].seeds == (2,)


def test_a_table_judges_its_claims() -> None:
    claims = (Claim(row="mail-at", column="AA", others=("at",)), Claim(row="at", column="NAT", others=("mail-at",)))
    made = build_table(table(claims=claims), [record("at", aa="0000"), record("mail-at", aa="1111")])
    assert [found.verdict for found in made.claims] == ["holds", "undecided"]


def test_few_images_that_differ_settle_nothing() -> None:
    assert judged(a=["1" * 100], b=["1" * 97 + "000"]).verdict == "undecided"
    assert judged(a=["1" * 100], b=["1" * 92 + "0" * 8]).verdict == "holds"
    same = judged(a=["1" * 100], b=["1" * 100])
    assert same.verdict == "undecided"
    assert same.comparisons[0].interval == pytest.approx((-2.717, 2.717), abs=1e-3)


def test_a_row_that_was_run_and_has_no_number_yet_is_not_called_missing() -> None:
    cells: dict[str, list[dict[int, str]]] = {"a": [{1: "1"}, {1: "1"}], "b": [{1: "1"}, {}], "c": [{}, {}]}
    found = judge(Claim(row="a", column="AA", others=("b", "c")), COLUMNS, cells)
    assert found.evidence == "rows missing: `c`; rows without a number for AA: `b`"
