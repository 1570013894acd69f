"""The dynamics of a run in words, from arrays small enough to work by hand."""

from typing import Any

import numpy as np

from probmargin.reporting.dynamics import History, Labels, summarise
from probmargin.reporting.inspection import Section, plain, sections


def summary(
    weight: list[float],
    is_wrong: list[bool] | None = None,
    known: bool = True,
    burn_in: int = 0,
    recipe_margin: list[float] | None = None,
) -> dict[str, Any]:
    """One epoch of four examples, two cats and two dogs."""
    margin = np.array([[0.5, 0.1, 0.25, -0.75]])
    own = None if recipe_margin is None else np.array([recipe_margin])
    history = History(
        np.array([7, 3, 11, 5]),
        np.array([0]),
        margin,
        np.array([weight]),
        margin > 0,
        recipe_margin=own,
        margin_names=("mm_adv",),
    )
    wrong = None if is_wrong is None else np.array(is_wrong)
    labels = Labels(np.array([0, 1, 0, 1]), ("cat", "dog"), wrong) if known else None
    facts = {
        "run": "runs/a",
        "method": "mail-at",
        "data": "pets",
        "notes": [],
        "is_attacked": True,
        "counts_steps": True,
    }
    return facts | summarise(history, labels, burn_in=burn_in, top=2)


def words(found: dict[str, Any]) -> str:
    return plain(sections(found))


def test_everything_is_said() -> None:
    text = words(summary([0.5, 1.0, 0.5, 2.0], [False, False, False, True]))
    assert text.startswith(
        "mail-at on pets: runs/a\n  4 training examples, 1 epoch recorded; averages are over epoch 1 ("
    )
    assert "last epoch: 50.0% safe, 25.0% near the boundary, 25.0% wrong" in text
    # 4^2 / (0.25 + 1 + 0.25 + 4) = 2.9
    assert "worth 3 equally weighted examples (72.7%); Gini 0.31" in text
    assert "dog gains most (x1.50), cat loses most (x0.50)" in text
    assert "  example  class  weight  margin  wrong label\n        5    dog   2.000  -0.750          yes" in text
    assert "1 of 4 (25.0%): wrong in every epoch from 1 to 1, with a mean margin of -0.25 or less" in text
    assert "precision 100.0%, recall 100.0%" in text
    assert "1 label known to be wrong (25.0% of the examples), with 50.0% of the weight (x2.00)" in text
    assert "--measure-lps 1000" in text
    assert "against the 1 label known to be wrong" in text


def test_the_margin_that_a_recipe_weighs_by() -> None:
    text = words(summary([0.5, 1.0, 0.5, 2.0], recipe_margin=[4.0, -2.0, 0.0, -12.0]))
    assert "The margin that this recipe weighs by (mm_adv) against the probabilistic one (PM)" in text
    # Ranks 4, 2, 3, 1 on both sides.
    assert "rank correlation 1.000; median -1, middle 50% from -4.5 to 1, middle 90% from -10.5 to 3.4" in text
    assert "  example  class  weight  margin  mm_adv    gap\n        7    cat   0.500  +0.500       4  +0.00" in text
    assert "weighs by" not in words(summary([0.5, 1.0, 0.5, 2.0]))


def test_a_run_without_weights() -> None:
    text = words(summary([1.0, 1.0, 1.0, 1.0]))
    assert "this method does not reweight" in text
    assert "no class gains or loses" in text
    assert "Largest weights" not in text
    assert "Wrong labels" not in text


def test_a_run_still_in_its_burn_in() -> None:
    text = words(summary([1.0, 1.0, 1.0, 1.0], burn_in=5))
    assert "(burn-in, where every weight is one)" in text
    assert "weights begin after the burn-in" in text
    assert "does not reweight" not in text


def test_label_noise_that_changed_no_label() -> None:
    assert "no label was made wrong" in words(summary([0.5, 1.0, 0.5, 2.0], [False] * 4))


def test_a_run_whose_labels_are_not_known() -> None:
    text = words(summary([0.5, 1.0, 0.5, 2.0], known=False))
    assert "Classes" not in text
    assert "        5      -   2.000  -0.750" in text


def test_columns_are_aligned() -> None:
    assert plain([Section("t", ("line",), ("a", "long"), (("1", "2"), ("300", "4")))]) == (
        "t\n  line\n    a  long\n    1     2\n  300     4"
    )


def test_a_run_without_an_attack_says_nothing_of_one() -> None:
    found = summary([1.0, 1.0, 1.0, 1.0], [False, False, False, True])
    assert "right under attack" in words(found)
    assert "says the wrong label under attack in" in words(found)
    text = words(found | {"is_attacked": False, "counts_steps": False})
    assert "under attack" not in text
    assert "--measure-lps" not in text, "there is nothing to measure it by"
    assert "this run was trained without an attack" in text
