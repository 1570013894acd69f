"""An experiment so small that tests can run it whole, and work that processes of their own can do."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from few_digits import use_few_digits

from probmargin.core.errors import UsageError
from probmargin.engine import checkpoints
from probmargin.engine.files import write_json
from probmargin.experiments import catalogue, grid, work
from probmargin.experiments.experiment import Column, Experiment, Row, against
from probmargin.experiments.work import Outcome, Parent, Task
from probmargin.methods.resolve import resolve
from probmargin.reporting.spec import ColumnSpec
from probmargin.training.progress import Reporter

QUICK = {"attack.num_steps": 1}

TINY = Experiment(
    name="tiny",
    title="Tiny",
    claim="It runs.",
    rows=(
        Row(id="mail-at", method="mail-at", settings=QUICK, published="table2/mail-at"),
        Row(id="at", method="at", settings=QUICK, published="table2/at"),
        Row(id="trades", method="trades", settings=QUICK),
    ),
    columns=(Column("NAT", "nat"), Column("PGD", "pgd-2")),
    contrasts=(against("mail-at", "at"),),
)


def use_tiny(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the catalogue hold the tiny experiment alone, two epochs a run on few images, in a folder of its own."""
    use_few_digits(monkeypatch)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(catalogue, "EXPERIMENTS", {"tiny": (TINY,)})
    monkeypatch.setattr(catalogue, "_SINGLE", (TINY,))
    monkeypatch.setattr(grid, "SMOKE_EPOCHS", 2)
    monkeypatch.setattr(work, "Reporter", lambda quiet=False: Reporter(quiet=True))


def task(name: str, out: Path, parent: str | None = None) -> Task:
    """A task for work that only looks at its name."""
    column = ColumnSpec(title="NAT", attack="nat", protocol="custom", norm="Linf", eps=0.15)
    made = Task(id=name, recipe=resolve("at"), seed=1, data="digits", model="small-cnn", out=out, columns=(column,))
    return replace(made, parent=Parent(run=parent, epochs=1)) if parent else made


def note(given: Task) -> Outcome:
    """Leave a file with times and device; a task whose name begins with `bad` fails, with `crash` dies."""
    began = time.time()
    if given.id.startswith("crash"):
        os._exit(3)
    if given.id.startswith("bad"):
        return Outcome(given.id, reason="it is bad")
    time.sleep(0.3)
    given.out.mkdir(parents=True, exist_ok=True)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    (given.out / given.id).write_text(f"{began} {time.time()} {given.device} {visible}", encoding="utf-8")
    return Outcome(given.id, {"id": given.id})


def save_state(given: Task) -> None:
    """Leave the folder of a run after its first epoch."""
    run, recipe = given.run, given.recipe.plain()
    run.checkpoints_path.mkdir(parents=True)
    known = {"id": given.id, "recipe": recipe, "seed": given.seed, "data": given.data, "model": given.model}
    write_json(run.record_path, known)
    write_json(run.recipe_path, recipe)
    checkpoints.save(run.checkpoints_path / "state-0001", checkpoints.Checkpoint({"model/a": torch.zeros(1)}))


def save_then_wait_for_child(given: Task) -> Outcome:
    """The parent saves a state and waits for its child to end; the child ends at once."""
    mark = given.out / "child.done"
    if given.parent is not None:
        mark.touch()
        return Outcome(given.id, {"id": given.id})
    save_state(given)
    end = time.time() + 40
    while not mark.exists() and time.time() < end:
        time.sleep(0.02)
    return Outcome(given.id, {"saw_its_child_end": mark.exists()})


def crash_once(given: Task) -> Outcome:
    """Die the first time, as a worker that is killed for its memory does."""
    mark = given.out / f"{given.id}.mark"
    if not mark.exists():
        mark.touch()
        os._exit(3)
    return Outcome(given.id, {"id": given.id})


def wait_to_be_stopped(given: Task) -> Outcome:
    """Save on Ctrl-C, as training does."""
    stopped: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: stopped.append(number))
    (given.out / f"{given.id}.begun").touch()
    end = time.time() + 150
    while not stopped and time.time() < end:
        time.sleep(0.02)
    if not stopped:
        raise UsageError("nobody asked to stop")
    (given.out / f"{given.id}.saved").touch()
    raise KeyboardInterrupt


def end_or_wait(given: Task) -> Outcome:
    """The quick one ends once the slow one has begun, which waits to be stopped."""
    if given.id == "slow":
        return wait_to_be_stopped(given)
    end = time.time() + 50
    while not (given.out / "slow.begun").exists() and time.time() < end:
        time.sleep(0.02)
    return Outcome(given.id, {"id": given.id})
