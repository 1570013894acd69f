"""The record says what the latest start of a run asked for, and what earlier ones did."""

from pathlib import Path
from typing import Any

import pytest
from training_runs import Listener, StopAfter, fit, let_accuracy_fall, recipe

from probmargin.core.errors import Interrupted
from probmargin.runs.run import open_run

LABEL = {"images": "test set", "used_for_selection": False}


def begun(out: Path, **asked: Any) -> Path:
    """A run that was interrupted in its second epoch."""
    with pytest.raises(Interrupted):
        fit(out, recipe("at"), reporter=StopAfter(6), **asked)
    return out


def test_monitors_that_a_resume_asks_for_first_are_labelled(tmp_path: Path) -> None:
    path = begun(tmp_path / "run")
    fit(path, recipe("at"), resume=True, monitor="pgd-20:20", monitor_every=2, keep_epochs=(3,))
    run = open_run(path)
    assert [sorted(row.get("monitors", {})) for row in run.metrics] == [[], ["pgd-20"]] * 3
    assert run.record["monitors"] == {**LABEL, "counts": {"pgd-20": 20}}
    assert run.record["options"]["monitor_every"] == 2
    assert run.record["options"]["keep_epochs"] == [3]
    (entry,) = run.record["resumes"]
    assert entry["before"]["monitors"] is None
    assert entry["before"]["options"]["keep_epochs"] == []


def test_states_that_an_earlier_start_has_kept_stay(tmp_path: Path) -> None:
    path = begun(tmp_path / "run", keep_epochs=(1,))
    with pytest.raises(Interrupted):
        fit(path, recipe("at"), resume=True, reporter=StopAfter(8), keep_epochs=(3, 1))
    fit(path, recipe("at"), resume=True)
    run = open_run(path)
    assert {"state-0001", "state-0003"} <= {state.name for state in run.states()}
    assert run.record["options"]["keep_epochs"] == [1, 3]
    assert [set(entry) for entry in run.record["resumes"]] == [{"epoch", "batch", "before"}, {"epoch", "batch"}]


def test_a_record_whose_resume_forgot_what_was_kept_is_read_too(tmp_path: Path) -> None:
    path = begun(tmp_path / "run", keep_epochs=(1,))
    run = open_run(path)
    options = run.record["options"]
    before = {"before": {"options": options}}
    run.update_record(options={**options, "keep_epochs": []}, resumes=[{"epoch": 1, "batch": 2, **before}])
    fit(path, recipe("at"), resume=True)
    assert "state-0001" in {state.name for state in run.states()}


def test_monitors_of_an_earlier_start_stay_labelled(tmp_path: Path) -> None:
    first = begun(tmp_path / "first", monitor="pgd-20:20", monitor_every=1)
    fit(first, recipe("at"), resume=True, monitor="cw:10", monitor_every=1, dynamics=True)
    record = open_run(first).record
    assert record["monitors"] == {**LABEL, "counts": {"pgd-20": 20, "cw": 10}}
    assert record["resumes"][0]["before"]["monitors"] == {**LABEL, "counts": {"pgd-20": 20}}
    assert (record["resumes"][0]["before"]["options"]["dynamics"], record["options"]["dynamics"]) == (False, True)
    second = begun(tmp_path / "second", monitor="pgd-20:20", monitor_every=1)
    said = Listener()
    fit(second, recipe("at"), resume=True, reporter=said)
    assert "its curves on test images end here: give --monitor again to go on with them" in said.said
    record = open_run(second).record
    assert record["monitors"] == {**LABEL, "counts": {"pgd-20": 20}}
    assert record["options"]["monitor_every"] == 1
    assert set(record["resumes"][0]) == {"epoch", "batch"}


def test_the_patience_a_run_has_gone_on_with_is_in_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_accuracy_fall(monkeypatch)
    held: dict[str, Any] = {"validation": 20, "validation_every": 1}
    _, path = fit(tmp_path / "run", recipe("at"), early_stopping=2, **held)
    fit(path, recipe("at"), early_stopping=1, resume=True, **held)
    run = open_run(path)
    assert (run.record["options"]["early_stopping"], run.record["resumes"]) == (2, []), "it was finished"
    fit(path, recipe("at"), early_stopping=4, resume=True, **held)
    assert len(run.metrics) == 5
    assert run.record["options"]["early_stopping"] == 4
    assert run.record["resumes"][0]["before"]["options"]["early_stopping"] == 2


def test_a_run_that_goes_on_after_its_patience_is_not_finished_until_it_ends_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_accuracy_fall(monkeypatch)
    held: dict[str, Any] = {"validation": 20, "validation_every": 1}
    _, path = fit(tmp_path / "run", recipe("at"), early_stopping=2, **held)
    run = open_run(path)
    ended = set(run.record)
    with pytest.raises(Interrupted):
        fit(path, recipe("at"), early_stopping=4, resume=True, reporter=StopAfter(2), **held)
    of_the_end = {"train_seconds", "images_per_second", "weights", "held_out_accuracy", "epochs_trained"}
    assert ended - set(run.record) == of_the_end
    assert run.unfinished(run.load_state()[1]) == [
        f"{path} is not finished: its state in epoch 4 of 6 is taken; go on with pm.train(..., resume=True)"
    ]
    fit(path, recipe("at"), early_stopping=4, resume=True, **held)
    assert set(run.record) == ended
    assert not run.unfinished(run.load_state()[1])
