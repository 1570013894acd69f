"""One run of an experiment, from its first step to its record; started again, it goes on where it was."""

import functools
import re
import shutil
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probmargin.core.errors import Interrupted, UsageError
from probmargin.core.records import canonical_hash
from probmargin.data.dataset import DataSet
from probmargin.data.loader import load
from probmargin.engine import checkpoints
from probmargin.engine.lock import LOCK, held
from probmargin.evaluation.subject import EvaluationRequest, evaluate_subject
from probmargin.methods.method import Method
from probmargin.methods.plain import completed
from probmargin.reporting.cells import deviation, is_finished, verdicts
from probmargin.reporting.spec import ColumnSpec
from probmargin.runs.run import Run
from probmargin.training.agreement import recipe_differences
from probmargin.training.fork import monitored
from probmargin.training.guards import TrainingStopped
from probmargin.training.progress import Reporter
from probmargin.training.request import TrainRequest
from probmargin.training.train import train

MONITOR, MONITOR_EVERY = "pgd-20:1000,cw:1000", 5
"""Curves that figures need: of test images, never used for selection."""


@dataclass(frozen=True, kw_only=True)
class Parent:
    """The run whose state a task starts from, so that a burn-in is trained once."""

    run: str
    epochs: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """A run that is to be trained and judged."""

    id: str
    recipe: Method
    seed: int
    data: str
    data_dir: Path | None = None
    model: str
    out: Path
    """Folder of all runs."""
    device: str | None = None
    columns: tuple[ColumnSpec, ...]
    """What it is judged by."""
    parent: Parent | None = None
    keep_epochs: tuple[int, ...] = ()
    monitor: str | None = None
    """Monitors on test images that watch it."""
    monitor_every: int = MONITOR_EVERY
    dynamics: bool = False
    """Are its examples followed?"""
    label_noise: str | None = None

    @property
    def run(self) -> Run:
        """Its folder."""
        return Run(self.out / self.id)

    @property
    def fork(self) -> str | None:
        """Where it starts from; without the parent's state, on another machine for one, it is trained whole."""
        if self.parent is None or self.run.states():
            return None
        parent, epochs = Run(self.out / self.parent.run), self.parent.epochs
        return f"{parent.path}@{epochs}" if can_start_from(parent, epochs, self) else None

    @property
    def is_begun(self) -> bool:
        """Is there something of its own to go on from? Then it needs no parent."""
        return bool(self.run.states()) or self.is_trained

    @property
    def is_own(self) -> bool:
        """Is the run in its folder, however far it has come, this one?"""
        if not self.run.record_path.exists():
            return False
        try:
            record = self.run.record
        except UsageError:
            # Carried out, it fails with the reason; the others of a plan are none the worse for it.
            return False
        return _recipe_hash(record) == self.recipe.hash() and is_akin(record, self)

    @property
    def is_trained(self) -> bool:
        """Has the run in its folder, if it is this one, ended?"""
        return self.is_own and is_finished(self.run.record)

    @property
    def epochs_done(self) -> int:
        """Epochs of this run that are trained and saved, by its latest state that is whole."""
        states = self.run.states() if self.is_own else []
        latest = next((path for path in reversed(states) if checkpoints.is_whole(path)), None)
        match = re.match(r"state-(\d+)", latest.name) if latest else None
        return int(match[1]) if match else 0

    @property
    def columns_left(self) -> list[ColumnSpec]:
        """What it is still to be judged by."""
        if not self.is_trained:
            return list(self.columns)
        record = self.run.record
        return [column for column in self.columns if not verdicts(record, column)[0]]

    @property
    def is_judged(self) -> bool:
        """Does its record have every number that is asked for?"""
        return self.is_trained and not self.columns_left


def _recipe_hash(record: dict[str, Any]) -> Any:
    """As today's code hashes the recipe: a setting that came later has its default in an older record."""
    if record.get("recipe_hash") == canonical_hash(record["recipe"]):
        return canonical_hash(completed(record["recipe"]))
    return record.get("recipe_hash")


def is_akin(record: dict[str, Any], task: Task) -> bool:
    """Was a run trained as a task's would be, but for the recipe?"""
    found = tuple(record.get(key) for key in ("seed", "data", "model", "label_noise", "validation"))
    return found == (task.seed, task.data, task.model, task.label_noise, None) and deviation(record) is None


def has_state(run: Run, epochs: int) -> bool:
    """Has a run kept its state after so many epochs, and is it whole?"""
    return checkpoints.is_whole(run.state_path(epochs))


def can_start_from(run: Run, epochs: int, task: Task) -> bool:
    """Is the state of a run there, and what training the task up to there would give?"""
    return has_state(run, epochs) and leads_to(run, epochs, task)


def _is_monitored(record: dict[str, Any], asked: str) -> bool:
    """Has a run numbers of these monitors, which one that branches off from it takes over?"""
    counts = monitored(record)
    items = [item.partition(":") for item in asked.split(",")]
    return all(name in counts and number in ("", str(counts[name])) for name, _, number in items)


def leads_to(run: Run, epochs: int, task: Task) -> bool:
    """Is a run, as its folder describes it, the same as a task up to an epoch? One that cannot be read is not."""
    try:
        record, recipe = run.record, run.recipe
    except UsageError:
        return False
    # Curves of before the fork come from the parent.
    lacks_monitors = task.monitor is not None and not _is_monitored(record, task.monitor)
    lacks_dynamics = task.dynamics and not run.dynamics_path.exists()
    if lacks_monitors or lacks_dynamics or not is_akin(record, task):
        return False
    return not recipe_differences(recipe, task.recipe, epochs, 1)


@dataclass(frozen=True)
class Outcome:
    """How a task ended: with a record, or with a reason."""

    id: str
    record: dict[str, Any] | None = None
    reason: str = ""
    details: str = ""
    """A traceback, where the reason alone will not do."""


def attempt(task: Task, reporter: Reporter | None = None) -> Outcome:
    """Carry a task out; a failure is an outcome, an interruption is not."""
    try:
        return Outcome(task.id, carry_out(task, reporter or Reporter(quiet=True)))
    except (Interrupted, KeyboardInterrupt):
        raise
    except (UsageError, TrainingStopped) as error:
        return Outcome(task.id, reason=str(error))
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return Outcome(task.id, reason=reason, details=traceback.format_exc())


def carry_out(task: Task, reporter: Reporter) -> dict[str, Any]:
    """Train what is not trained, judge what is not judged, and return the record; alone in the run's folder."""
    with held(task.run.path):
        if task.run.record_path.exists() and (reason := deviation(_readable(task.run))):
            raise UsageError(f"{task.run.path} is not the run that is wanted: {reason}; give another --out")
        if not task.is_trained:
            _train(task, reporter)
        if not task.is_judged:
            _judge(task, reporter)
        return task.run.record


def _readable(run: Run) -> dict[str, Any]:
    """A run's record; where it is damaged, what to do so that the same command makes it again."""
    try:
        return run.record
    except UsageError as error:
        reason = str(error).rpartition("; ")[0]
        raise UsageError(f"{reason}; delete {run.path} and start the same command again") from None


@functools.lru_cache(maxsize=1)
def _load(data: str, data_dir: Path | None) -> DataSet:
    return load(data, data_dir)


def _train(task: Task, reporter: Reporter) -> None:
    run = task.run
    if run.record_path.exists() and not run.states():
        if is_finished(run.record):
            raise UsageError(f"{run.path} holds another run, finished and without its states; give another --out")
        # A start that was killed before its first state: nothing is lost, and a fork can be chosen anew.
        _empty(run.path)
    is_there = run.record_path.exists()
    request = TrainRequest(
        out=run.path,
        model=task.model,
        seed=task.seed,
        device=task.device,
        resume=is_there,
        fork=None if is_there else task.fork,
        keep_epochs=task.keep_epochs,
        monitor=task.monitor,
        monitor_every=task.monitor_every,
        dynamics=task.dynamics,
        label_noise=task.label_noise,
    )
    train(task.recipe, _load(task.data, task.data_dir), request, reporter)


def _empty(folder: Path) -> None:
    """Delete what is in a folder that this process holds."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _judge(task: Task, reporter: Reporter) -> None:
    """Judge by one protocol after the other, the main one last: its results are the run's own, the others stand apart.

    Attacks that were carried out before are read back from the run's folder.
    """
    main = task.columns[0].protocol
    names = dict.fromkeys(column.protocol for column in task.columns)
    for name in [*(name for name in names if name != main), main]:
        columns = [column for column in task.columns if column.protocol == name]
        firsts = [column.first for column in columns if column.attack == "aa"]
        request = EvaluationRequest(
            run=task.run.path,
            data=task.data,
            data_dir=task.data_dir,
            attacks=tuple(dict.fromkeys(column.attack for column in columns)),
            aa_examples=None if None in firsts else max((first for first in firsts if first), default=None),
            protocol=None if name == "custom" else name,
            eps=repr(columns[0].eps) if name == "custom" else None,
            norm=columns[0].norm if name == "custom" else None,
            device=task.device,
        )
        evaluate_subject(request, log=reporter.say)
