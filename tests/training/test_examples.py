"""What each example did, epoch by epoch: in dynamics.npz, in TensorBoard, and in label_noise.npz."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobs import blobs
from strategies import images, keyed, tiny_net
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]
from training_runs import SMALL, Fit, StopAfter, fit, recipe, same

from probmargin.core.errors import Interrupted, UsageError
from probmargin.core.losses import is_correct, probabilistic_margin
from probmargin.data.label_noise import label_noise
from probmargin.engine import checkpoints
from probmargin.margins.mm_adv import MMAdv
from probmargin.methods.resolve import named, resolve
from probmargin.reporting.dynamics import ROWS, lps_summary, read_history
from probmargin.runs.run import open_run
from probmargin.training.examples import Dynamics, empty_examples, note_examples, unknown_rows
from probmargin.training.network import Network
from probmargin.training.step import Batch, train_step
from probmargin.weights.uniform import Uniform


def read(path: Path) -> dict[str, Any]:
    with np.load(path / "dynamics.npz", allow_pickle=False) as file:
        return dict(file)


def test_a_batch_is_noted_at_its_places() -> None:
    x, labels = images(0, 5, size=6)
    model = tiny_net()
    method = named("gairat").at(99)
    result = train_step(Network(model), torch.optim.SGD(model.parameters(), lr=0.1), method, Batch(x, labels, keyed(5)))
    table = empty_examples(9, x.device)
    places = torch.tensor([7, 0, 3, 8, 4])
    note_examples(table, places, labels, result)
    rows = dict(zip(ROWS, table, strict=True))
    torch.testing.assert_close(rows["margin"][places], probabilistic_margin(result.logits, labels))
    torch.testing.assert_close(rows["weight"][places], result.weight)
    assert rows["correct"][places].bool().tolist() == is_correct(result.logits, labels).tolist()
    assert result.lps is not None
    assert rows["lps"][places].tolist() == result.margin.tolist() == result.lps.tolist()
    assert (table[:, [1, 2, 5, 6]] == 0).all()


def test_a_run_that_is_resumed_goes_on_following_its_examples(undisturbed: Fit, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", recipe("at"), reporter=StopAfter(6), dynamics=True)
    _, path = fit(tmp_path / "run", recipe("at"), resume=True)
    _, whole = undisturbed(recipe("at"), dynamics=True)
    found, wanted = read(path), read(whole)
    assert found["epochs"].tolist() == list(range(6))
    for name in ("margin", "weight", "correct", "lps"):
        np.testing.assert_array_equal(found[name], wanted[name])


def test_steps_that_nobody_counted_are_not_zeros(undisturbed: Fit, tmp_path: Path) -> None:
    """Asked for in the middle of an epoch, LPS is known of the examples that come after."""
    method = resolve("at", epochs=6, batch_size=16, settings={**SMALL, "attack.num_steps": 4})
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", method, reporter=StopAfter(6))
    _, path = fit(tmp_path / "run", method, resume=True, dynamics=True)
    _, whole = undisturbed(method, dynamics=True)
    found, wanted = read(path), read(whole)
    assert found["epochs"].tolist() == list(range(1, 6))
    for name in ("margin", "weight", "correct"):
        np.testing.assert_array_equal(found[name], wanted[name][1:])
    unknown = np.isnan(found["lps"])
    assert unknown.sum(axis=1).tolist() == [32, 0, 0, 0, 0]
    np.testing.assert_array_equal(found["lps"][~unknown], wanted["lps"][1:][~unknown])
    history = read_history(path / "dynamics.npz")
    summary, counted = (lps_summary(part, None, 3) for part in (history, history.since(2)))
    assert summary is not None
    assert counted is not None
    assert summary["rank_correlation"] is not None, "examples differ in the steps they survive"
    for name in ("rank_correlation", "lps_values"):
        assert summary[name] == counted[name], "an epoch that was counted in part is left out"


def test_the_margin_that_a_recipe_weighs_by_is_kept_where_it_is_another(undisturbed: Fit, tmp_path: Path) -> None:
    method = recipe("mail-at", margin=MMAdv())
    _, whole = undisturbed(method, dynamics=True)
    found, burn_in = read(whole), method.burn_in_epochs
    assert np.isnan(found["recipe_margin"][:burn_in]).all(), "there is none before weights begin"
    logit_margins = found["recipe_margin"][burn_in:]
    np.testing.assert_array_equal(logit_margins > 0, found["correct"][burn_in:])
    assert np.abs(logit_margins).max() > 1, "it is no probability"
    for steps in (6, 18):  # before any weights, when the file has no such row yet, and after
        folder = tmp_path / f"cut{steps}"
        with pytest.raises(Interrupted):
            fit(folder, method, dynamics=True, reporter=StopAfter(steps))
        _, cut = fit(folder, method, dynamics=True, resume=True)
        for name in ("recipe_margin", "recipe_margin_name"):
            np.testing.assert_array_equal(read(cut)[name], found[name])


@pytest.mark.parametrize("name", ["at", "mail-at", "gairat"])
def test_what_other_rows_hold_is_not_kept_twice(undisturbed: Fit, name: str) -> None:
    assert "recipe_margin" not in read(undisturbed(recipe(name), dynamics=True)[1])


def test_a_margin_that_nothing_is_weighed_by_is_not_kept() -> None:
    idle = recipe("mail-at", margin=MMAdv(), weight=Uniform())
    assert unknown_rows(idle.at(5)) == ("recipe_margin",)
    assert unknown_rows(recipe("mail-at", margin=MMAdv()).at(5)) == ()


def test_a_state_within_an_epoch_that_knows_fewer_rows_is_gone_on_from(tmp_path: Path) -> None:
    method = recipe("mail-at", margin=MMAdv())
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", method, dynamics=True, reporter=StopAfter(18))
    (path,) = (tmp_path / "run" / "checkpoints").glob("state-0004-*.safetensors")
    saved = checkpoints.load(path)
    saved.tensors["sums/examples"] = saved.tensors["sums/examples"][: ROWS.index("recipe_margin")]
    checkpoints.save(path, saved)
    _, whole = fit(tmp_path / "run", method, dynamics=True, resume=True)
    found = read(whole)["recipe_margin"]
    assert 0 < np.isnan(found[4]).sum() < found.shape[1]
    assert not np.isnan(found[5]).any()
    assert not np.isnan(read(whole)["margin"]).any()


def test_the_file_agrees_with_the_metrics(tmp_path: Path) -> None:
    _, path = fit(tmp_path / "run", recipe("gairat"), dynamics=True, validation=10)
    found, rows = read(path), open_run(path).metrics
    assert found["epochs"].tolist() == list(range(6))
    assert found["margin"].shape == found["weight"].shape == found["correct"].shape == found["lps"].shape == (6, 54)
    assert len(set(found["index"].tolist())) == 54
    np.testing.assert_allclose(found["correct"].mean(axis=1), [row["robust_accuracy"] for row in rows])
    np.testing.assert_allclose(found["weight"].mean(axis=1), [row["weight_mean"] for row in rows], rtol=1e-5)
    np.testing.assert_array_equal(found["correct"], found["margin"] > 0)
    burn_in = open_run(path).recipe.burn_in_epochs
    assert burn_in > 0
    assert set(np.unique(found["lps"])) <= set(range(11))
    assert (found["weight"][:burn_in] == 1).all()
    assert found["weight"][burn_in:].std() > 0


def test_steps_survived_are_counted_whatever_the_margin_and_change_nothing(tmp_path: Path) -> None:
    method = resolve("mail-at", epochs=6, batch_size=16, settings={**SMALL, "attack.num_steps": 4})
    counted, path = fit(tmp_path / "run", method, dynamics=True)
    assert read(path)["lps"].max() == 4
    plain, other = fit(tmp_path / "plain", method)
    assert not (other / "dynamics.npz").exists()
    assert all((tensor == plain[name]).all() for name, tensor in counted.items())
    _, path = fit(tmp_path / "standard", recipe("standard"), dynamics=True)
    assert "lps" not in read(path)
    assert (read(path)["margin"] != 0).all()


@pytest.mark.parametrize("steps", [9, 12, 18])
def test_a_resume_keeps_every_row(undisturbed: Fit, tmp_path: Path, steps: int) -> None:
    _, whole = undisturbed(recipe("gairat"), dynamics=True)
    with pytest.raises(Interrupted):
        fit(tmp_path / "cut", recipe("gairat"), dynamics=True, reporter=StopAfter(steps))
    _, cut = fit(tmp_path / "cut", recipe("gairat"), dynamics=True, resume=True)
    first, second = read(whole), read(cut)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def test_rows_of_epochs_that_are_trained_again_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "dynamics.npz"
    table = Dynamics(path, torch.arange(3))
    for epoch in range(4):
        unknown = ("recipe_margin",) if epoch > 1 else ("lps", "recipe_margin")
        table.add(epoch, np.full((len(ROWS), 3), epoch, dtype=np.float32), unknown)
    table.write()
    again = Dynamics(path, torch.arange(3))
    again.read(path, before=3)
    assert sorted(again.rows) == [0, 1, 2]
    for epoch, values in again.rows.items():
        expected = table.rows[epoch].copy()
        expected[ROWS.index("correct")] = expected[ROWS.index("correct")] > 0
        np.testing.assert_array_equal(values, expected)


def test_tensorboard_holds_the_curves_and_the_histograms(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", recipe("mail-trades"), reporter=StopAfter(14), validation=10, monitor="nat")
    _, path = fit(tmp_path / "run", recipe("mail-trades"), resume=True, validation=10, monitor="nat")
    events = EventAccumulator(str(path), size_guidance={"histograms": 0})
    events.Reload()
    rows = open_run(path).metrics
    losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert [step for step, _ in losses] == list(range(6))
    assert [value for _, value in losses] == pytest.approx([row["loss"] for row in rows], rel=1e-5)
    assert {"validation/robust_accuracy", "monitors/nat", "train/effective_sample_size"} <= set(
        events.Tags()["scalars"]
    )
    assert {"margin", "weight"} <= set(events.Tags()["histograms"])
    assert len(events.Histograms("weight")) == 6
    assert len(list(path.glob("events.*"))) == 2


def test_label_noise_is_written_down_and_trained_on(undisturbed: Fit, tmp_path: Path) -> None:
    data = blobs()
    noisy, path = fit(tmp_path / "noisy", recipe(), label_noise="symmetric:0.25")
    clean, _ = undisturbed(recipe())
    assert not same(noisy, clean)
    expected, mask = label_noise(data.train, "symmetric:0.25", 2, seed=1)
    by_hand, _ = fit(tmp_path / "by_hand", recipe(), data=replace(data, train=expected))
    assert same(noisy, by_hand)
    with np.load(path / "label_noise.npz", allow_pickle=False) as file:
        assert file["is_wrong"].sum() == 16
        assert file["is_wrong"].tolist() == mask.tolist()
        assert file["labels"].tolist() == expected.labels.tolist()
        assert file["index"].tolist() == list(range(64))
    assert open_run(path).record["label_noise"] == "symmetric:0.25"
    with pytest.raises(UsageError, match=r"label_noise is 'symmetric:0\.25' there and None here"):
        fit(path, recipe(), resume=True)
