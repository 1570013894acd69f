"""Summaries of what examples did, against values worked by hand."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from probmargin.reporting.dynamics import History, Labels, read_history, summarise

NOTHING = [float("nan")] * 4


def history(
    lps: list[list[float]] | None = None,
    recipe_margin: list[list[float]] | None = None,
    margin_names: tuple[str, ...] = ("none", "own", "own", "own"),
) -> History:
    """Four examples over four epochs, the first two of them burn-in."""
    margin = np.array([[0.1, -0.1, 0.5, -0.7], [0.1, 0.3, 0.5, -0.9], [0.2, 0.1, 0.6, -0.6], [0.4, -0.1, 0.8, -0.8]])
    weight = np.array([[1.0, 1, 1, 1], [1, 1, 1, 1], [0.4, 1.0, 0.2, 2.4], [0.6, 0.6, 0.2, 2.6]])
    return History(
        index=np.array([7, 3, 11, 5]),
        epochs=np.arange(4),
        margin=margin,
        weight=weight,
        correct=margin > 0,
        lps=None if lps is None else np.array(lps),
        recipe_margin=None if recipe_margin is None else np.array(recipe_margin),
        margin_names=() if recipe_margin is None else margin_names,
    )


KNOWN = Labels(np.array([0, 1, 0, 1]), ("cat", "dog"), np.array([False, False, False, True]))


def test_each_epoch() -> None:
    epochs = summarise(history(), burn_in=2)["epochs"]
    assert epochs["epoch"] == [0, 1, 2, 3]
    assert epochs["effective_sample_size"][0] == pytest.approx(4.0)
    # (0.4 + 1 + 0.2 + 2.4)^2 / (0.16 + 1 + 0.04 + 5.76)
    assert epochs["effective_sample_size"][2] == pytest.approx(16 / 6.96)
    assert epochs["safe"] == [0.25, 0.5, 0.25, 0.5]  # 0.2 itself is still near the boundary
    assert epochs["boundary"] == [0.25, 0.25, 0.5, 0.0]
    assert epochs["wrong"] == [0.5, 0.25, 0.25, 0.5]
    assert epochs["margin_quantiles"][0][2] == pytest.approx(0.0)
    assert [sum(row) for row in epochs["margin_counts"]] == [4] * 4


def test_who_carries_the_weight() -> None:
    found = summarise(history(), KNOWN, burn_in=2, top=2)
    assert found["averaged_epochs"] == [2, 3]
    assert found["past_burn_in"]
    weight = found["weight"]
    assert not weight["is_uniform"]
    # The mean of both epochs' own, not that of their mean weights, 0.5, 0.8, 0.2, 2.5, which is larger.
    assert weight["effective_sample_size"] == pytest.approx(np.mean(found["epochs"]["effective_sample_size"][2:]))
    assert weight["effective_sample_size"] < 16 / 7.18
    # Rising 0.2, 0.5, 0.8, 2.5 with factors -3, -1, 1, 3: 7.2 / (4 * 4)
    assert weight["gini"] == pytest.approx(0.45)
    assert weight["top_10%"] == pytest.approx(2.5 / 4)
    assert [row["index"] for row in weight["largest"]] == [5, 3]
    assert [row["index"] for row in weight["smallest"]] == [11, 7]
    first = weight["largest"][0]
    assert (first["class"], first["is_wrong"], first["correct"]) == ("dog", True, 0.0)
    assert (first["weight"], first["margin"]) == (pytest.approx(2.5), pytest.approx(-0.7))


def test_which_classes_gain_and_lose() -> None:
    classes = summarise(history(), KNOWN, burn_in=2)["classes"]
    assert [row["class"] for row in classes["rows"]] == ["dog", "cat"]
    dog, cat = classes["rows"]
    assert (dog["weight_share"], dog["uniform_share"], dog["ratio"]) == (
        pytest.approx(3.3 / 4),
        0.5,
        pytest.approx(1.65),
    )
    assert cat["ratio"] == pytest.approx(0.35)
    assert dog["margin"] == pytest.approx((0.0 - 0.7) / 2)
    assert (dog["correct"], cat["correct"]) == (0.25, 1.0)
    assert classes["gini"] == pytest.approx((1.65 - 0.35) / (2 * 2))


def test_where_steps_and_margins_disagree() -> None:
    found = summarise(history([NOTHING, NOTHING, [10, 9, 4, 0], [10, 9, 4, 0]]), KNOWN, burn_in=2, top=1)["lps"]
    # Ranks of LPS 4, 3, 2, 1; of the margins 0.3, 0.0, 0.7, -0.7: 3, 2, 4, 1. Spearman 1 - 6 (1 + 1 + 4) / (4 * 15).
    assert found["rank_correlation"] == pytest.approx(0.4)
    assert found["lps_values"] == 4
    (most,) = found["examples"]
    assert (most["index"], most["lps"], most["gap"]) == (11, 4.0, -0.5)
    assert summarise(history(), KNOWN, burn_in=2)["lps"] is None
    assert summarise(history([NOTHING] * 4), KNOWN, burn_in=2)["lps"] is None


def test_where_the_recipes_own_margin_and_the_probabilistic_one_disagree() -> None:
    own = [NOTHING, [0.0, 0, 0, float("nan")], [-8.0, 1, -3, -5], [-4.0, 5, -1, -3]]
    found = summarise(history(recipe_margin=own), KNOWN, burn_in=1, top=1)["recipe_margin"]
    # The mean of epochs 3 and 4, of which all is known: -6, 3, -2, -4 against 0.3, 0.0, 0.7, -0.7.
    # Ranks 1, 4, 3, 2 and 3, 2, 4, 1: Spearman 1 - 6 (4 + 4 + 1 + 1) / (4 * 15).
    assert found["rank_correlation"] == pytest.approx(0.0)
    assert found["quantiles"][2] == pytest.approx(-3.0)
    (most,) = found["examples"]
    assert (most["index"], most["recipe_margin"], most["gap"]) == (7, -6.0, -0.5)
    assert most["margin"] == pytest.approx(0.3)
    assert found["name"] == "own"
    names = ("none", "other", "other", "own")
    last = summarise(history(recipe_margin=own, margin_names=names), KNOWN, burn_in=1, top=1)["recipe_margin"]
    # A phase has brought another measure: the mean of both would be neither. The last epoch alone: -4, 5, -1, -3.
    assert (last["name"], last["quantiles"][2]) == ("own", -2.0)
    ended = (*names[:3], "pm_adv")
    own[3] = NOTHING
    found = summarise(history(recipe_margin=own, margin_names=ended), KNOWN, burn_in=1)
    assert found["recipe_margin"] is None, "it ends with the probabilistic margin, which has a row of its own"
    assert summarise(history(), KNOWN)["recipe_margin"] is None
    assert summarise(history(recipe_margin=[NOTHING] * 4), KNOWN)["recipe_margin"] is None


def test_who_looks_mislabelled() -> None:
    found = summarise(history(), KNOWN, burn_in=2)["suspects"]
    assert "from 2 to 4" in found["criterion"]
    assert [row["index"] for row in found["examples"]] == [5]
    # The weight is that of every other list, the margin what the criterion speaks of: epochs 2 to 4, not 3 and 4.
    past = history()
    place = past.index.tolist().index(5)
    assert found["examples"][0]["margin"] == pytest.approx(past.margin[1:, place].mean())
    assert found["examples"][0]["margin"] != pytest.approx(past.margin[2:, place].mean())
    assert found["examples"][0]["weight"] == pytest.approx(2.5)
    assert found["judged"] == {"wrong": 1, "precision": 1.0, "recall": 1.0, "precision_at_wrong": 1.0, "auc": 1.0}
    unknown = summarise(history(), Labels(KNOWN.labels), burn_in=2)
    assert unknown["suspects"]["judged"] is None
    assert unknown["noise"] is None
    assert "is_wrong" not in unknown["suspects"]["examples"][0]


def test_weight_on_wrong_labels() -> None:
    noise = summarise(history(), KNOWN, burn_in=2)["noise"]
    assert noise["examples"] == 1
    assert noise["share_of_weight"] == pytest.approx(0.625)
    assert noise["ratio"] == pytest.approx(2.5)
    assert noise["learnt"] == 0.0


def test_a_run_that_ended_in_its_burn_in() -> None:
    found = summarise(history(), None, burn_in=9)
    assert found["averaged_epochs"] == [0, 3]
    assert not found["past_burn_in"]
    assert found["classes"] is None
    assert found["weight"]["largest"][0]["class"] is None


def test_the_file_is_read_without_torch(tmp_path: Path) -> None:
    made = history()
    arrays = {name: getattr(made, name) for name in ("index", "epochs", "margin", "weight", "correct")}
    np.savez(tmp_path / "dynamics.npz", **arrays)
    assert read_history(tmp_path / "dynamics.npz").lps is None
    code = (
        "import sys; from pathlib import Path; from probmargin.reporting.dynamics import read_history, summarise; "
        f"summarise(read_history(Path({str(tmp_path / 'dynamics.npz')!r}))); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_suspect_is_wrong_in_every_epoch_after_the_first_quarter() -> None:
    """Of eight epochs the first two may be right; the third may not, and one lucky epoch later clears an example."""
    margin = np.full((8, 4), -0.5)
    margin[:2, 0] = 0.5
    margin[:3, 1] = 0.5
    margin[6, 2] = 0.1
    margin[:, 3] = -0.2
    history = History(np.arange(4), np.arange(8), margin, np.ones((8, 4)), margin > 0)
    found = summarise(history, Labels(np.zeros(4, dtype=int)), top=4)["suspects"]
    assert [entry["index"] for entry in found["examples"]] == [0]
    assert found["criterion"].startswith("wrong in every epoch from 3 to 8")
