"""What is to be run, in which order, and which runs share a burn-in."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from probmargin.core.errors import UsageError
from probmargin.experiments.grid import Grid
from probmargin.experiments.records import Record
from probmargin.experiments.work import MONITOR, Parent, Task, can_start_from, has_state, leads_to
from probmargin.methods.method import Method
from probmargin.reporting.cells import RowRecords, belongs, sort_records, verdicts
from probmargin.reporting.spec import ColumnSpec
from probmargin.runs.run import Run
from probmargin.training.agreement import recipe_differences


@dataclass(frozen=True)
class Planned:
    """A run, and what there is of it."""

    row: str
    task: Task
    is_done: bool
    state: str
    """In words."""
    record: Record | None = None
    """Of a run that is done."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where runs lie and what they run on."""

    out: Path
    data_dir: Path | None = None
    device: str | None = None


def plan_runs(
    grids: Sequence[Grid],
    place: Place,
    records: Sequence[Record],
    sharing: Sequence[Grid] = (),
    seeds: Collection[int] = (),
) -> list[Planned]:
    """All runs of these grids, each once, those others can start from first; of some seeds alone where these are given.

    A run that is judged is judged for the grids that share it too, so that it need not be there a second time.
    """
    planned: dict[str, Planned] = {}
    for grid in grids:
        for seed in (seed for seed in range(1, grid.trials + 1) if not seeds or seed in seeds):
            for row in _parents_first(grid):
                found = _plan_run(grid, row, seed, place, records)
                if found.task.id not in planned:
                    columns = _shared_columns(found.task, (grid, *grids, *sharing))
                    planned[found.task.id] = replace(found, task=replace(found.task, columns=columns))
    return _with_parents(list(planned.values()), place)


def _shared_columns(task: Task, grids: Iterable[Grid]) -> tuple[ColumnSpec, ...]:
    """What a run is judged by in all grids that have it; the first grid's columns come first."""
    found: dict[object, ColumnSpec] = {}
    for grid in grids:
        rows = {f"{grid.run_name(row)}-s{task.seed}": row.id for row in grid.rows}
        if task.id in rows and grid.recipes[rows[task.id]] == task.recipe:
            for column in grid.columns:
                found.setdefault((column.attack, column.protocol, column.norm, column.eps, column.first), column)
    return tuple(found.values())


def _parents_first(grid: Grid) -> list[str]:
    """Rows without weights and without phases come first: the others are variations of them."""

    def weight(name: str) -> tuple[bool, bool]:
        recipe = grid.recipes[name]
        return recipe.is_reweighted, bool(recipe.phases)

    return sorted(grid.recipes, key=weight)


def _plan_run(grid: Grid, name: str, seed: int, place: Place, records: Sequence[Record]) -> Planned:
    row = next(row for row in grid.rows if row.id == name)
    task = Task(
        id=f"{grid.run_name(row)}-s{seed}",
        recipe=grid.recipes[name],
        seed=seed,
        data=grid.data,
        data_dir=place.data_dir,
        model=grid.model,
        out=place.out,
        device=place.device,
        columns=grid.columns,
        monitor=MONITOR if grid.has_curves(row) else None,
        dynamics=grid.has_curves(row),
    )
    record, lacking = _record_of(grid, name, seed, records)
    if record is not None and not lacking:
        return Planned(name, task, True, f"done: record {record['id']}{_clash(grid, name, record, records)}", record)
    if task.is_trained:
        return Planned(name, task, False, "trained, to be judged")
    if epochs := task.epochs_done:
        return Planned(name, task, False, f"half done: {epochs} of {task.recipe.epochs} epochs")
    known = f": record {record['id']} lacks {', '.join(lacking)}, and its run is not here" if record else ""
    return Planned(name, task, False, f"to do{known}")


def _record_of(grid: Grid, name: str, seed: int, records: Sequence[Record]) -> tuple[Record | None, list[str]]:
    """The record of a run that has most numbers of the grid, if there is one, and the columns it lacks."""
    table = grid.table()
    row = next(row for row in table.rows if row.id == name)
    accepted = RowRecords(row)
    for record in records:
        if record.get("seed") == seed and belongs(record, row, table):
            accepted.offer(record, table)
    if seed not in accepted.by_seed:
        return None, []
    found = dict(accepted.by_seed[seed])
    return found, [column.label for column in grid.columns if not verdicts(found, column)[0]]


def _clash(grid: Grid, name: str, record: Record, records: Sequence[Record]) -> str:
    """Why a table leaves a record out that is good by itself: it does not go with another seed's; "" where it does."""
    table = grid.table()
    accepted = sort_records(table, records)[name]
    if record["seed"] in accepted.by_seed:
        return ""
    reason = next(line for line in accepted.refused if line.startswith(f"record {record['id']} refused: "))
    return f", which the table leaves out ({reason.partition(' refused: ')[2]})"


def shared_epochs(parent: Method, child: Method) -> int:
    """How many epochs two recipes train the same way; 0 where a state of one is of no use to the other.

    >>> from probmargin.methods.resolve import named
    >>> shared_epochs(named("at"), named("mail-at")), shared_epochs(named("at"), named("trades"))
    (74, 0)
    """
    if "iteration" in (parent.lr_per, child.lr_per) or recipe_differences(parent, child, 1, 1):
        return 0
    low, high = 1, min(parent.epochs, child.epochs - 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (low, middle - 1) if recipe_differences(parent, child, middle, 1) else (middle, high)
    # Of epochs that both skip there is no state.
    return max((epoch + 1 for epoch in parent.epoch_plan() if epoch < low), default=0)


def _with_parents(planned: list[Planned], place: Place) -> list[Planned]:
    """Let each run start from the state that saves most: of a run before it, or of one that lies in the folder."""
    tasks: dict[str, Task] = {}
    kept: dict[str, set[int]] = {}
    on_disk = _runs_on_disk(place.out)
    for entry in planned:
        task = entry.task
        if not entry.is_done and not task.is_begun:
            offers = [_state_there(run, task) for run in on_disk if run.path.name != task.id]
            offers += [_state_to_come(other, task) for other in tasks.values()]
            best = max(offers, key=lambda parent: parent.epochs, default=None)
            if best is not None and best.epochs > 0:
                task = replace(task, parent=best)
                kept.setdefault(best.run, set()).add(best.epochs)
        # What is done leaves no further state for others to start from.
        if not entry.is_done:
            tasks[task.id] = task
    final = {entry.task.id: tasks.get(entry.task.id, entry.task) for entry in planned}
    return [
        replace(entry, task=replace(final[entry.task.id], keep_epochs=tuple(sorted(kept.get(entry.task.id, ())))))
        for entry in planned
    ]


def _state_to_come(parent: Task, child: Task) -> Parent:
    """The state that a run of the plan will have for another."""
    nothing = Parent(run=parent.id, epochs=0)
    if (parent.seed, parent.data, parent.model) != (child.seed, child.data, child.model):
        return nothing
    epochs = shared_epochs(parent.recipe, child.recipe)
    if parent.epochs_done >= epochs or parent.is_trained or (child.monitor and not parent.monitor):
        return nothing
    # A folder that holds another run, or one that departs from its recipe, comes to no state that is of use.
    is_new = not parent.run.record_path.exists()
    is_good = is_new or (parent.is_own and (not parent.run.states() or leads_to(parent.run, epochs, child)))
    return Parent(run=parent.id, epochs=epochs) if is_good else nothing


def _runs_on_disk(out: Path) -> list[Run]:
    runs = [Run(path.parent) for path in sorted(out.glob("*/record.json"))]
    return [run for run in runs if run.recipe_path.exists() and run.states()]


def _state_there(run: Run, child: Task) -> Parent:
    """The latest state of a run in the folder from which a task can start."""
    try:
        shared = shared_epochs(run.recipe, child.recipe)
    except UsageError:
        shared = 0
    epochs = next((epochs for epochs in range(shared, 0, -1) if has_state(run, epochs)), 0)
    return Parent(run=run.path.name, epochs=epochs if epochs and can_start_from(run, epochs, child) else 0)
