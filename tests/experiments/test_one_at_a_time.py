"""What another process works on, what cannot be written, what is damaged: said before time is spent, or passed over."""

import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from another_process import another_in
from experiment_helpers import use_tiny

from probmargin.core.errors import Interrupted, UsageError
from probmargin.engine.lock import LOCK, held
from probmargin.engine.signals import stop_signals
from probmargin.experiments import reproduce as module, work
from probmargin.experiments.forecast import Forecaster
from probmargin.experiments.reproduce import make_plan, render, reproduce
from probmargin.experiments.request import ReproduceRequest
from probmargin.runs.run import Run

AT, MAIL = "digits-small-cnn-at-s1", "digits-small-cnn-mail-at-s1"


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_tiny(monkeypatch, tmp_path)


def request(only: tuple[str, ...] = ("at", "mail-at"), **changes: object) -> ReproduceRequest:
    settings: dict[str, object] = {"name": "tiny", "scale": "smoke", "device": "cpu", "only": only}
    return ReproduceRequest(**{**settings, **changes})  # type: ignore[arg-type]


def go(only: tuple[str, ...] = ("at", "mail-at"), **changes: object) -> tuple[list[str], list[str]]:
    said: list[str] = []
    failed = reproduce(request(only, **changes), said.append)
    return said, [outcome.id for outcome in failed]


def run(name: str) -> Run:
    return Run(Path("runs/reproduce") / name)


def test_a_run_that_another_process_works_on_is_left_to_it() -> None:
    """It has a record and no state yet, as in the first epoch: it must not be taken for a start that died."""
    go(("at",))
    for path in run(AT).states():
        path.with_suffix(".json").unlink()
    kept = {key: value for key, value in run(AT).record.items() if key not in ("train_seconds", "evaluation")}
    run(AT).record_path.write_text(json.dumps(kept), encoding="utf-8")
    Path(f"runs/reproduce/records/{AT}.json").unlink()
    with another_in(run(AT).path) as other:
        said, failed = go(("at", "trades"))
    assert failed == [AT]
    assert any(f"is in use by process {other.pid} on " in line for line in said)
    assert "digits-small-cnn-trades-s1: done" in said
    assert run(AT).record == kept
    assert go(("at",))[1] == []


def test_what_a_dead_start_left_is_deleted_and_the_lock_stays(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    folder = tmp_path / "run"
    with held(folder):
        (folder / "record.json").touch()
        (folder / "parts").mkdir()
        (folder / "checkpoints").symlink_to(tmp_path / "other")
        work._empty(folder)
        assert [path.name for path in folder.iterdir()] == [LOCK]
    assert (tmp_path / "other" / "file").exists()


def test_sigterm_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    def be_terminated(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)

    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("nobody took SIGTERM for Ctrl-C"))
    try:
        monkeypatch.setattr(module, "run_in_turn", be_terminated)
        with pytest.raises(Interrupted, match="go on with the same command"):
            go(("at",))
    finally:
        signal.signal(signal.SIGTERM, before)


def test_two_kinds_of_signal_are_one_wish_and_the_same_twice_breaks_off() -> None:
    with stop_signals() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.is_set()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("name", ["weight-functions", "figure1c"])
def test_a_study_too_is_refused_before_it_begins(name: str) -> None:
    Path("afile").touch()
    for option in ("out", "keep_records"):
        asked = ReproduceRequest(name=name, scale="smoke", device="cpu")
        for do in (reproduce, render):
            with pytest.raises(UsageError, match="afile is a file, not a folder; choose another --"):
                do(replace(asked, **{option: Path("afile")}), print)  # type: ignore[arg-type]
    assert not Path("runs").exists()


def test_another_run_in_the_folder_and_a_damaged_state_are_not_half_done() -> None:
    assert go(("at", "trades"))[1] == []
    for name in (AT, "digits-small-cnn-trades-s1"):
        Path(f"runs/reproduce/records/{name}.json").unlink()
    record = run(AT).record
    del record["train_seconds"]
    run(AT).record_path.write_text(json.dumps(record), encoding="utf-8")
    newest = run(AT).checkpoints_path / "state-0002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-8])
    (entry,) = make_plan(request(("at",)))
    assert entry.state == "half done: 1 of 2 epochs"
    shutil.rmtree(run(AT).path)
    run("digits-small-cnn-trades-s1").path.rename(run(AT).path)
    (entry,) = make_plan(request(("at",)))
    assert entry.state == "to do"


@pytest.mark.parametrize("option", ["out", "keep_records"])
def test_a_place_that_cannot_be_written_is_refused_before_the_first_run(option: str) -> None:
    Path("afile").touch()
    with pytest.raises(UsageError, match=f"afile is a file, not a folder; choose another --{option.replace('_', '-')}"):
        reproduce(replace(request(), **{option: Path("afile")}), print)  # type: ignore[arg-type]
    assert not Path("runs").exists()


def test_a_damaged_state_is_not_started_from() -> None:
    assert go()[1] == []
    whole = run(MAIL).record["weights"]
    run(MAIL).path.rename("aside")
    Path(f"runs/reproduce/records/{MAIL}.json").unlink()
    tensors = run(AT).checkpoints_path / "state-0001.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-8])
    (entry,) = make_plan(request(("mail-at",)))
    assert entry.task.parent is None
    assert go(("mail-at",))[1] == []
    assert run(MAIL).record["weights"] == whole
    assert "forked_from" not in run(MAIL).record


def test_a_damaged_record_says_what_lets_the_same_command_make_it_again() -> None:
    assert go(("at",))[1] == []
    path = run(AT).record_path
    path.write_text(path.read_text(encoding="utf-8")[:200], encoding="utf-8")
    Path(f"runs/reproduce/records/{AT}.json").unlink()
    said, failed = go(("at",))
    assert failed == [AT]
    line = next(line for line in said if line.startswith(f"{AT}: failed: "))
    assert line.endswith(f"; delete {run(AT).path.absolute()} and start the same command again")


def test_a_forecast_counts_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two epochs one is trained; of two columns one is judged."""
    forecaster = Forecaster()
    forecaster.known["digits", "small-cnn"] = (100, 1, 8, 8, 10), 1.0
    (entry,) = make_plan(request(("at",)))
    passes = 2
    whole = forecaster.run(entry)
    assert (whole.training, whole.judging) == (2 * 100 * passes, 360 * (1 + 2))

    assert go(("at",))[1] == []
    record = run(AT).record
    Path(f"runs/reproduce/records/{AT}.json").unlink()
    del record["evaluation"]["pgd-2"]
    run(AT).record_path.write_text(json.dumps(record), encoding="utf-8")
    (entry,) = make_plan(request(("at",)))
    assert entry.state == "trained, to be judged"
    assert (forecaster.run(entry).training, forecaster.run(entry).judging) == (0.0, 360 * 2)

    del record["train_seconds"]
    run(AT).record_path.write_text(json.dumps(record), encoding="utf-8")
    (run(AT).checkpoints_path / "state-0002.json").unlink()
    (entry,) = make_plan(request(("at",)))
    assert entry.state == "half done: 1 of 2 epochs"
    assert forecaster.run(entry).training == 100 * passes
