"""Experiments from plan to table, on digits with two epochs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from experiment_helpers import task, use_tiny

from probmargin.core.errors import Interrupted, UsageError
from probmargin.core.records import canonical_hash
from probmargin.evaluation.protocol import PROTOCOLS
from probmargin.evaluation.subject import evaluate_subject
from probmargin.experiments import grid, reproduce as module, work
from probmargin.experiments.forecast import Forecaster, judging_passes
from probmargin.experiments.plan import Planned
from probmargin.experiments.reproduce import _devices, dry_run, make_plan, reproduce
from probmargin.experiments.request import ReproduceRequest
from probmargin.reporting.cells import verdicts
from probmargin.reporting.spec import ColumnSpec
from probmargin.runs.run import Run
from probmargin.training.request import TrainRequest
from probmargin.training.train import train


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_tiny(monkeypatch, tmp_path)


def request(**changes: object) -> ReproduceRequest:
    settings: dict[str, object] = {"name": "tiny", "scale": "smoke", "device": "cpu", "only": ("at", "mail-at")}
    return ReproduceRequest(**{**settings, **changes})  # type: ignore[arg-type]


def run(name: str) -> Run:
    return Run(Path(f"runs/reproduce/digits-small-cnn-{name}-s1"))


def go(**changes: object) -> tuple[list[str], list[str]]:
    """Reproduce; what was said, and what failed."""
    said: list[str] = []
    failed = reproduce(request(**changes), said.append)
    return said, [outcome.id for outcome in failed]


def test_a_grid_is_run_forked_recorded_and_skipped_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    said, failed = go()
    assert failed == []
    assert run("mail-at").record["forked_from"] == {
        "run": "digits-small-cnn-at-s1",
        "epoch": 1,
        "recipe_hash": run("at").record["recipe_hash"],
    }
    copy = json.loads(Path("runs/reproduce/records/digits-small-cnn-mail-at-s1.json").read_text())
    assert copy == run("mail-at").record
    assert set(copy["evaluation"]) >= {"nat", "pgd-2"}
    assert copy["evaluation"]["eps"] == 0.15
    table = said[-1]
    assert "| `mail-at` | 1 | " in table
    assert "| mail-at - at | PGD |" in table
    assert "Missing" not in table
    for suffix in ("md", "tex", "csv"):
        assert Path(f"runs/reproduce/tables/tiny.{suffix}").exists()

    monkeypatch.setattr(work, "train", None)
    monkeypatch.setattr(work, "evaluate_subject", None)
    again, failed = go()
    assert failed == []
    assert again[0].startswith("digits-small-cnn-at-s1: skipped, done")
    assert again[-1] == table


def test_a_kept_record_is_enough_to_skip_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    go(only=("at",), keep_records=Path("results"))
    assert Path("results/digits-small-cnn-at-s1.json").exists()
    found = make_plan(request(out=Path("elsewhere")))
    assert {entry.row: entry.is_done for entry in found} == {"at": True, "mail-at": False}
    # The record is here, but the state is not: the burn-in must be trained again.
    assert all(entry.task.parent is None for entry in found)


def test_a_run_forks_from_one_that_lies_in_the_folder() -> None:
    go(only=("at",))
    (entry,) = make_plan(request(only=("mail-at",)))
    assert entry.task.parent == work.Parent(run="digits-small-cnn-at-s1", epochs=1)


def test_a_half_trained_run_is_resumed_and_an_unjudged_one_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bool] = []

    def stop_before_judging(*_: object, **__: object) -> None:
        raise Interrupted("interrupted")

    monkeypatch.setattr(work, "evaluate_subject", stop_before_judging)
    with pytest.raises(Interrupted):
        go(only=("at",))
    assert [entry.state for entry in make_plan(request(only=("at",)))] == ["trained, to be judged"]

    record = run("at").record
    for path in run("at").states():
        if path.name == "state-0002":
            path.with_suffix(".json").unlink()
    del record["train_seconds"]
    run("at").record_path.write_text(json.dumps(record), encoding="utf-8")
    assert [entry.state for entry in make_plan(request(only=("at",)))] == ["half done: 1 of 2 epochs"]

    def watched(method: object, data: object, asked: TrainRequest, reporter: object) -> object:
        begun.append(asked.resume)
        return train(method, data, asked, reporter)  # type: ignore[arg-type]

    monkeypatch.setattr(work, "train", watched)
    monkeypatch.setattr(work, "evaluate_subject", evaluate_subject)
    assert go(only=("at",))[1] == []
    assert begun == [True]
    assert [row["epoch"] for row in run("at").metrics] == [0, 1]


def test_a_start_that_left_no_state_is_begun_anew() -> None:
    go(only=("at",))
    for path in run("at").states():
        path.with_suffix(".json").unlink()
    record = {key: value for key, value in run("at").record.items() if key not in ("train_seconds", "evaluation")}
    run("at").record_path.write_text(json.dumps(record), encoding="utf-8")
    Path("runs/reproduce/records/digits-small-cnn-at-s1.json").unlink()
    assert go(only=("at",))[1] == []


def test_a_failed_run_does_not_stop_the_others_and_the_table_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def sometimes(method: object, data: object, asked: TrainRequest, reporter: object) -> object:
        if "trades" in asked.out.name:
            raise RuntimeError("CUDA out of memory")
        if asked.out.name == "digits-small-cnn-at-s1":
            raise UsageError("at will not do")
        return train(method, data, asked, reporter)  # type: ignore[arg-type]

    monkeypatch.setattr(work, "train", sometimes)
    said, failed = go(only=())
    assert failed == ["digits-small-cnn-at-s1", "digits-small-cnn-trades-s1"]
    assert "- `at`: digits-small-cnn-at-s1 failed: at will not do" in said[-1]
    assert "- `trades`: digits-small-cnn-trades-s1 failed: RuntimeError: CUDA out of memory" in said[-1]
    note = Path("runs/reproduce/failures/digits-small-cnn-trades-s1.txt").read_text(encoding="utf-8")
    assert "Traceback" in note
    # Without its parent's state the child trained its burn-in itself.
    assert "forked_from" not in run("mail-at").record
    assert "| `mail-at` | 1 | " in said[-1]

    monkeypatch.setattr(work, "train", train)
    said, failed = go(only=("at",))
    assert failed == []
    assert not Path("runs/reproduce/failures/digits-small-cnn-at-s1.txt").exists()


def test_a_folder_with_another_run_is_a_failure_with_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    go(only=("at",))
    monkeypatch.setattr(grid, "SMOKE_EPOCHS", 3)
    said, failed = go(only=("at",))
    assert failed == ["digits-small-cnn-at-s1"]
    assert "epochs is 2 there and 3 here" in said[-2]
    assert "its recipe is not the row's: epochs is 2, not 3" in said[-1]


def test_machines_share_a_table_by_its_seeds(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    said, failed = go(trials=2, seeds=(2,), only=("at",), keep_records=kept)
    assert not failed
    assert [path.name for path in Path("runs/reproduce").glob("digits-*")] == ["digits-small-cnn-at-s2"]
    assert "- `at`: 1 of 2 trials" in said[-1]
    said, _ = go(trials=2, seeds=(1,), only=("at",), keep_records=kept, out=Path("elsewhere"))
    assert [path.name for path in Path("elsewhere").glob("digits-*")] == ["digits-small-cnn-at-s1"]
    assert "| `at` | 2 | " in said[-1]


def test_seeds_that_are_no_trials_are_refused() -> None:
    for seeds in ((3,), (0,), (1, 5)):
        with pytest.raises(UsageError, match="the trials here are seeds 1 to 2; name one of these, or raise --trials"):
            make_plan(request(trials=2, seeds=seeds))
    with pytest.raises(UsageError, match="leave out --only, --seeds and --aa-examples"):
        reproduce(request(name="label-noise", only=(), seeds=(1,)), lambda _: None)


def test_dry_run_prints_rows_runs_and_a_forecast() -> None:
    said: list[str] = []
    dry_run(request(trials=2), said.append)
    text = "\n".join(said)
    assert "claim: It runs." in text
    assert "digits, small-cnn, 2 trials; NAT: nat, PGD: pgd-2" in text
    assert (
        "  mail-at                      digits-small-cnn-mail-at-s2: 2 epochs, from digits-small-cnn-at-s2 after"
        in text
    )
    assert "forecast: about 0:00:" in said[-1]
    assert "for 4 runs one after another (steps timed on cpu)" in said[-1]
    assert not Path("runs").exists()


def test_a_forecast_is_of_the_runs_that_are_left() -> None:
    go(only=("at",))
    said: list[str] = []
    dry_run(request(), said.append)
    assert "for 1 run one after another" in said[-1]


def test_a_forecast_leaves_out_the_epochs_that_a_run_takes_over() -> None:
    """AT costs eleven passes an image; here there are seven images, a pass a second, and 360 images to judge."""
    forecaster = Forecaster()
    forecaster.known["digits", "small-cnn"] = (7, 1, 8, 8, 10), 1.0
    whole, child = task("whole", Path("runs")), task("child", Path("runs"), parent="whole")
    found = [forecaster.run(Planned("at", one, is_done=False, state="")) for one in (whole, child)]
    epochs = whole.recipe.epochs
    assert [one.training for one in found] == [11 * 7 * epochs, 11 * 7 * (epochs - 1)]
    assert [one.judging for one in found] == [360.0, 360.0]


def test_a_forecast_of_an_attack_on_the_first_images_counts_these() -> None:
    column = ColumnSpec(title="PGD", attack="pgd-20", protocol="standard", norm="Linf", eps=0.1)
    counts = {first: judging_passes([replace(column, first=first)], 360) for first in (None, 100, 1000)}
    assert counts == {None: 7200, 100: 2000, 1000: 7200}


def test_wrong_requests_are_one_line() -> None:
    with pytest.raises(UsageError, match="did you mean mail-at"):
        make_plan(request(only=("mail-a",)))
    with pytest.raises(UsageError, match="name an experiment"):
        make_plan(request(name=None, only=()))
    with pytest.raises(UsageError, match="--scale"):
        make_plan(request(scale="small"))
    with pytest.raises(UsageError, match="unknown executor"):
        request(executor="slurm")
    with pytest.raises(UsageError, match="--executor ray"):
        request(address="auto")
    with pytest.raises(UsageError, match="--gpus-per-run"):
        request(executor="ray", gpus_per_run=-1.0)
    for share in (0.0, 2.0):
        with pytest.raises(UsageError, match=r"give a share from 0\.01 to 1"):
            request(gpus_per_run=share)


def test_a_gpu_is_listed_as_often_as_it_takes_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "pick_device", lambda name: torch.device(name or "cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert _devices(None) == ["cuda:0", "cuda:1"]
    assert _devices(None, 2) == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert _devices("cuda:1", 3) == ["cuda:1"] * 3
    assert _devices("cpu", 2) == ["cpu"]


def test_an_older_record_without_a_later_setting_still_counts() -> None:
    go(only=("at",))
    path = Path("runs/reproduce/records/digits-small-cnn-at-s1.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    del record["recipe"]["nesterov"]
    record["recipe_hash"] = canonical_hash(record["recipe"])
    (found,) = make_plan(request(only=("at",), out=Path("elsewhere")))
    assert not found.is_done
    Path("results").mkdir()
    Path("results", path.name).write_text(json.dumps(record), encoding="utf-8")
    Path("results/broken.json").write_text("{", encoding="utf-8")
    (found,) = make_plan(request(only=("at",), out=Path("elsewhere")))
    assert found.is_done
    record["recipe"]["nesterov"] = True
    Path("results", path.name).write_text(json.dumps(record), encoding="utf-8")
    (found,) = make_plan(request(only=("at",), out=Path("elsewhere")))
    assert not found.is_done


def test_a_run_is_judged_by_every_protocol_and_the_main_one_is_its_own(tmp_path: Path) -> None:
    found = make_plan(request(only=("at",)))[0].task
    columns = [
        ColumnSpec(title=name, attack=attack, protocol=name, norm="Linf", eps=PROTOCOLS[name].eps)
        for name, attack in (("standard", "nat"), ("official-1000", "pgd-2"), ("standard", "pgd-3"))
    ]
    outcome = work.attempt(replace(found, columns=tuple(columns)))
    assert outcome.record is not None, outcome.reason
    own, other = outcome.record["evaluation"], outcome.record["evaluations"]["official-1000"]
    assert (own["protocol"], own["eps"]) == ("standard", 8 / 255)
    assert (other["protocol"], other["eps"]) == ("official-1000", 0.031)
    assert {"nat", "pgd-3"} <= own.keys()
    assert "pgd-2" in other
    assert json.loads(run("at").evaluation_path.read_text(encoding="utf-8"))["protocol"] == "standard"
    assert all(verdicts(outcome.record, column)[0] for column in columns)
