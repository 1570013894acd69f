"""A study: a figure of the paper or a bench of ours, from its runs to one record and its pictures."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probmargin.core.errors import UsageError
from probmargin.core.shell import typed
from probmargin.core.speech import Say
from probmargin.data.dataset import DataSet
from probmargin.data.loader import load
from probmargin.engine.devices import pick_device
from probmargin.engine.environment import commit, hardware, versions
from probmargin.experiments.grid import SMOKE_DATA, SMOKE_MODEL, ScaleName, full_recipe, make_grid
from probmargin.experiments.plan import Place, plan_runs, shared_epochs
from probmargin.experiments.table2 import TABLE2
from probmargin.experiments.work import Outcome, Parent, Task
from probmargin.methods.method import Method
from probmargin.methods.resolve import resolve
from probmargin.reporting.cells import differing
from probmargin.runs.kept import KeptRun, kept_run
from probmargin.runs.run import Run

KEPT = Path("results")
"""Records and curves that are kept for good, where the command is run in a checkout."""
FULL_DATA, FULL_MODEL = "cifar10", "resnet18"
SMOKE_MONITOR, SMOKE_MONITOR_EVERY = "pgd-20,cw", 2
SMOKE_SETTINGS = {"attack.eps": 0.25, "attack.step_size": 0.0625}
"""At the usual 0.15 nearly every digit ends up safe; at this radius about as many fall as of CIFAR-10 at 8/255."""
SMOKE_EPOCHS = 20
PARENTS = {"gairat": "at", "mail-at": "at"}
"""Methods whose burn-in is another's."""
_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where a study works: the scale it runs at, its runs, its data and its device."""

    scale: ScaleName
    out: Path
    """Folder of the runs; pictures and records go into its folder `figures`."""
    data_dir: Path | None = None
    device_name: str | None = None
    trials: int | None = None
    execute: Callable[[Sequence[Task]], list[Outcome]]
    """Carries tasks out and returns those that failed."""
    say: Say
    seed: int = 1
    kept: Path | None = None
    """Where a copy of the record goes."""

    @property
    def is_smoke(self) -> bool:
        """Is it the small scale, on digits?"""
        return self.scale == "smoke"

    @property
    def data_name(self) -> str:
        """Name of the data set."""
        return SMOKE_DATA if self.is_smoke else FULL_DATA

    @property
    def model_name(self) -> str:
        """Name of the network."""
        return SMOKE_MODEL if self.is_smoke else FULL_MODEL

    @property
    def device(self) -> torch.device:
        """What it computes on."""
        return pick_device(self.device_name)

    @cached_property
    def data(self) -> DataSet:
        """The data set."""
        return load(self.data_name, self.data_dir)

    @property
    def out_option(self) -> str:
        """What a command that is shown adds to work in the same folder."""
        return "" if self.out == Path("runs/reproduce") else f" --out {typed(self.out)}"

    def run(self, row: str) -> Run:
        """The run of a method; what is kept of it where its folder is not there."""
        prefix = "figures-" if self.is_smoke else ""
        run = Run(self.out / f"{prefix}{self.data_name}-{self.model_name}-{row}-s{self.seed}")
        kept = None if run.path.exists() else kept_run((self.kept, KEPT), run.path.name)
        return kept or run

    def tasks(self, rows: Sequence[str], *, from_curves: bool) -> list[Task]:
        """What is left to train: short runs at the small scale; at the full one, runs of a table."""
        if self.is_smoke:
            return [self._task(row) for row in dict.fromkeys(self._with_parents(rows))]
        missing = [row for row in rows if not _serves(self.run(row), from_curves)]
        for row in rows:
            if row not in missing:
                self._check(row)
        return self._of_table(missing) if missing else []

    def _of_table(self, rows: Sequence[str]) -> list[Task]:
        """Runs as the table trains them; of one that is kept without its weights, the weights are what is missing."""
        place = Place(out=self.out.resolve(), data_dir=self.data_dir, device=self.device_name)
        grid = make_grid(TABLE2, only=rows, trials=self.seed)
        planned = plan_runs([grid], place, [], seeds=(self.seed,))
        return [replace(entry.task, columns=()) for entry in planned]

    def _check(self, row: str) -> None:
        """Refuse a run that lies at a table's place but is not the table's."""
        run = self.run(row)
        wanted = next(entry for entry in TABLE2.rows if entry.id == row)
        apart = list(differing(run.recipe.plain(), full_recipe(TABLE2, wanted).plain()))
        for name, value in (("data", self.data_name), ("model", self.model_name)):
            if run.record.get(name) != value:
                apart.insert(0, f"{name} is {run.record.get(name)}, not {value}")
        if apart:
            raise UsageError(f"{run.path} is not the run of table2's row {row}: {apart[0]}; give another --out")

    def _with_parents(self, rows: Sequence[str]) -> list[str]:
        return [name for row in rows for name in ((PARENTS[row], row) if row in PARENTS else (row,))]

    def _recipe(self, row: str) -> Method:
        return resolve(row, data=self.data_name, model=self.model_name, epochs=SMOKE_EPOCHS, settings=SMOKE_SETTINGS)

    def _task(self, row: str) -> Task:
        recipe, parent = self._recipe(row), None
        if row in PARENTS:
            epochs = shared_epochs(self._recipe(PARENTS[row]), recipe)
            parent = Parent(run=self.run(PARENTS[row]).path.name, epochs=epochs)
        return Task(
            id=self.run(row).path.name,
            recipe=recipe,
            seed=self.seed,
            data=self.data_name,
            model=self.model_name,
            out=self.out.resolve(),
            device=self.device_name,
            columns=(),
            parent=parent,
            monitor=SMOKE_MONITOR,
            monitor_every=SMOKE_MONITOR_EVERY,
            dynamics=True,
        )


def _serves(run: Run, from_curves: bool) -> bool:
    """Is it trained to its end, and are its weights there where they are needed?"""
    if isinstance(run, KeptRun) and not from_curves:
        return False
    return run.recipe_path.exists() and run.record_path.exists() and "train_seconds" in run.record


@dataclass(frozen=True, kw_only=True)
class Study:
    """One figure or bench: what it needs, and how its numbers are made."""

    name: str
    title: str
    rows: tuple[str, ...] = ()
    """Methods whose runs it looks at."""
    from_curves: bool = False
    """Are their curves enough, without their weights?"""
    measure: Callable[[Bench], dict[str, Any]]
    """The numbers, as plain data; `summary` holds them in sentences."""
    make_tasks: Callable[[Bench], list[Task]] | None = None
    """Runs of its own; those of `rows` unless given."""

    def tasks(self, bench: Bench) -> list[Task]:
        """Everything it needs trained."""
        if self.make_tasks:
            return self.make_tasks(bench)
        return bench.tasks(self.rows, from_curves=self.from_curves)

    def runs(self, bench: Bench) -> list[Run]:
        """The runs its numbers come from."""
        if self.make_tasks:
            return [task.run for task in self.make_tasks(bench)]
        return [bench.run(row) for row in self.rows]

    def command(self, bench: Bench) -> str:
        """What makes it."""
        return f"probmargin reproduce {self.name}" + (" --scale smoke" if bench.is_smoke else "")


def carry_out(study: Study, bench: Bench) -> tuple[dict[str, Any] | None, list[Outcome]]:
    """Train what is missing, measure, and return the record; or the runs that failed."""
    began = time.perf_counter()
    waiting = [task for task in study.tasks(bench) if not task.is_judged]
    failed = bench.execute(waiting) if waiting else []
    if failed:
        return None, failed
    if bench.is_smoke and bench.device.type == "cpu":
        # The network is so small that a second thread costs more than it brings.
        torch.set_num_threads(1)
    numbers = study.measure(bench)
    return _record(study, bench, numbers, time.perf_counter() - began), []


def _record(study: Study, bench: Bench, numbers: dict[str, Any], seconds: float) -> dict[str, Any]:
    keys = ("id", "seed", "data", "model", "recipe_hash", "data_fingerprint", "label_noise", "commit", "hardware")
    runs = [{key: run.record.get(key) for key in keys} for run in study.runs(bench)]
    return {
        "id": study.name,
        "title": study.title,
        "command": study.command(bench),
        "scale": bench.scale,
        "data_set": bench.data_name,
        "model": bench.model_name,
        "seed": bench.seed,
        "commit": commit(),
        "hardware": hardware(bench.device),
        "versions": versions(),
        "seconds": round(seconds, 1),
        "runs": runs,
        "data": rounded(numbers),
    }


def rounded(value: Any) -> Any:
    """Plain data with numbers of six digits, so that a record can be read and stored.

    >>> rounded({"a": np.float32(1 / 3), "b": (1, float("nan"))})
    {'a': 0.333333, 'b': [1, None]}
    """
    if isinstance(value, dict):
        return {str(key): rounded(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [rounded(item) for item in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(f"{float(value):.{_DIGITS}g}") if math.isfinite(value) else None
    return value
