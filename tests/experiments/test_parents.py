"""Which state a run may start from, and what becomes of runs that lie in the folder already."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from experiment_helpers import TINY

from probmargin.core.records import canonical_hash
from probmargin.engine import checkpoints
from probmargin.experiments import catalogue, work
from probmargin.experiments.catalogue import find
from probmargin.experiments.grid import make_grid
from probmargin.experiments.local import Waiting
from probmargin.experiments.plan import Place, plan_runs
from probmargin.experiments.reproduce import make_plan
from probmargin.experiments.request import ReproduceRequest
from probmargin.experiments.work import Parent, Task, attempt
from probmargin.training.progress import Reporter

AT, MAIL = "digits-small-cnn-at-s1", "digits-small-cnn-mail-at-s1"
SHARED = 9
"""Epochs that both train alike."""


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "EXPERIMENTS", {**catalogue.EXPERIMENTS, "tiny": (TINY,)})
    monkeypatch.setattr(work, "Reporter", lambda quiet=False: Reporter(quiet=True))


def tasks() -> dict[str, Task]:
    request = ReproduceRequest(name="tiny", scale="smoke", device="cpu", only=("at", "mail-at"))
    return {entry.task.id: entry.task for entry in make_plan(request)}


def all_right() -> dict[str, Any]:
    """An evaluation of one image that every attack leaves right."""
    entries = {one.attack: {"correct": "1", "attack": one.meaning} for one in make_grid(TINY, "smoke").columns}
    return {"protocol": "custom", "norm": "Linf", "eps": 0.15, "test_images": 1, **entries}


def lay(task: Task, *states: int, **record: Any) -> None:
    """Leave the folder of a run that has come to its last state; with `train_seconds` it has ended."""
    run, recipe = task.run, record.pop("recipe", task.recipe.plain())
    own = {"id": task.id, "recipe": recipe, "recipe_hash": canonical_hash(recipe), "seed": task.seed}
    own |= {"data": task.data, "model": task.model}
    run.checkpoints_path.mkdir(parents=True)
    run.record_path.write_text(json.dumps(own | record), encoding="utf-8")
    run.recipe_path.write_text(json.dumps(recipe), encoding="utf-8")
    for epochs in states:
        checkpoints.save(run.checkpoints_path / f"state-{epochs:04d}", checkpoints.Checkpoint({"a": torch.zeros(1)}))


def test_half_done_runs_go_on_from_their_own_states_and_wait_for_nobody() -> None:
    found = tasks()
    assert found[MAIL].parent == Parent(run=AT, epochs=SHARED)
    lay(found[AT], 2)
    lay(found[MAIL], 5)
    assert [task.parent for task in tasks().values()] == [None, None]
    # A study names parents without looking.
    waiting = Waiting(list(found.values()))
    assert [task.id for task in (waiting.take(), waiting.take()) if task] == [AT, MAIL]


def test_a_run_may_start_from_a_half_done_one() -> None:
    lay(tasks()[AT], 1, 2)
    assert tasks()[MAIL].parent == Parent(run=AT, epochs=SHARED), "it will come to that state"
    lay(tasks()[MAIL])
    assert tasks()[MAIL].parent == Parent(run=AT, epochs=SHARED), "a start without a state is begun anew"


def test_a_trained_run_has_the_states_that_are_there() -> None:
    lay(tasks()[AT], train_seconds=1.0)
    assert tasks()[MAIL].parent is None


def test_what_is_done_elsewhere_comes_to_no_further_state() -> None:
    at = tasks()[AT]
    done = {"id": AT, "recipe": at.recipe.plain(), "recipe_hash": at.recipe.hash(), "seed": 1, "train_seconds": 1.0}
    Path("results").mkdir()
    record = {**done, "data": "digits", "model": "small-cnn", "evaluation": all_right()}
    Path(f"results/{AT}.json").write_text(json.dumps(record), encoding="utf-8")
    lay(at, 2, 3)
    assert tasks()[MAIL].parent == Parent(run=AT, epochs=3)


@pytest.mark.parametrize(
    "record",
    [
        {"checkpoint": {"sha256": "0"}},
        {"model_settings": {"in_channels": 1, "num_classes": 10, "mean_std": [[0.1], [0.2]]}},
        {"processes": 2},
        {"validation": 100},
        {"seed": 2},
    ],
)
def test_a_run_that_departs_from_its_recipe_is_no_parent(record: dict[str, Any]) -> None:
    found = tasks()
    lay(found[AT], 2, SHARED, 12, train_seconds=1.0, **record)
    assert tasks()[MAIL].parent is None
    assert found[MAIL].fork is None, "planned before that run was there"


@pytest.mark.parametrize("states", [(2,), (SHARED, 12)])
def test_a_folder_with_another_recipe_is_no_parent(states: tuple[int, ...]) -> None:
    found = tasks()
    lay(found[AT], *states, recipe={**found[AT].recipe.plain(), "lr": 0.05})
    assert tasks()[MAIL].parent is None
    assert found[MAIL].fork is None


def test_a_run_with_curves_starts_from_one_with_curves(tmp_path: Path) -> None:
    def plan(table: str, *only: str) -> dict[str, Task]:
        grid = make_grid(find(table)[0], trials=1, only=only)
        return {entry.row: entry.task for entry in plan_runs([grid], Place(out=tmp_path), [])}

    other = plan("table1", "mail-at-pm-nat")["mail-at-pm-nat"]
    lay(other, 74, 100, train_seconds=1.0)
    assert plan("table2", "at")["at"].parent is None
    assert plan("table1", "mail-at-pm-dif")["mail-at-pm-dif"].parent == Parent(run=other.id, epochs=74)

    def watch(**counts: int) -> None:
        record = {**other.run.record, "monitors": {"counts": {"pgd-20": 1000, **counts}}}
        other.run.record_path.write_text(json.dumps(record), encoding="utf-8")

    watch(cw=1000)
    assert plan("table2", "at")["at"].parent is None, "its examples were not followed"
    other.run.dynamics_path.touch()
    for wrong in ({}, {"cw": 500}):
        watch(**wrong)
        assert plan("table2", "at")["at"].parent is None, "its curves are others"
    watch(cw=1000)
    assert plan("table2", "at")["at"].parent == Parent(run=other.id, epochs=74)


def test_a_finished_run_is_never_removed() -> None:
    task = tasks()[AT]
    lay(task, recipe={**task.recipe.plain(), "lr": 0.05}, train_seconds=1.0)
    outcome = attempt(task)
    assert outcome.reason == f"{task.run.path} holds another run, finished and without its states; give another --out"
    assert task.run.record["train_seconds"] == 1.0


def test_a_damaged_run_fails_alone() -> None:
    at = tasks()[AT]
    lay(at, 2)
    at.run.record_path.write_text("{", encoding="utf-8")
    assert tasks()[MAIL].parent is None
    assert "is damaged" in attempt(at).reason


def test_an_older_run_without_a_later_setting_is_trained() -> None:
    task = tasks()[AT]
    older = {key: value for key, value in task.recipe.plain().items() if key != "nesterov"}
    lay(task, recipe=older, train_seconds=1.0)
    assert task.is_trained
    record = {**task.run.record, "recipe_hash": "0"}
    task.run.record_path.write_text(json.dumps(record), encoding="utf-8")
    assert not task.is_trained, "a recipe that was changed by hand"


def test_the_plan_names_a_record_that_the_table_leaves_out() -> None:
    grid = make_grid(TINY, "smoke", only=("at",), trials=2)
    recipe = grid.recipes["at"]
    shared = {"recipe": recipe.plain(), "recipe_hash": recipe.hash(), "data": "digits", "model": "small-cnn"}
    records = [
        {"id": f"digits-small-cnn-at-s{seed}", "seed": seed, "precision": precision, "train_seconds": 1.0, **shared}
        | {"evaluation": all_right()}
        for seed, precision in ((1, "fp32"), (2, "bf16"))
    ]
    first, second = plan_runs([grid], Place(out=Path("runs")), records)
    assert first.state == f"done: record {AT}"
    assert second.is_done
    assert second.state == (
        "done: record digits-small-cnn-at-s2, which the table leaves out "
        f"(beside {AT} it differs in more than the seed: precision is 'bf16', not 'fp32')"
    )
