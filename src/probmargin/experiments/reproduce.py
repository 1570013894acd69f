"""Reproduce experiments: plan, run, collect the records, draw the tables."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from probmargin.core.errors import Interrupted, UsageError
from probmargin.core.records import coerce
from probmargin.core.speech import Say, silent
from probmargin.core.words import counted
from probmargin.data.loader import load
from probmargin.engine.devices import pick_device
from probmargin.engine.files import check_folder, write_text
from probmargin.engine.signals import terminate_as_interrupt
from probmargin.experiments.catalogue import STUDIES, find
from probmargin.experiments.cluster import Share, run_on_cluster
from probmargin.experiments.forecast import Forecaster
from probmargin.experiments.grid import ScaleName, make_grid
from probmargin.experiments.local import AGAIN, run_in_turn, run_on_devices
from probmargin.experiments.plan import Place, Planned, plan_runs
from probmargin.experiments.records import (
    Record,
    failures,
    keep_curves,
    keep_done,
    keep_record,
    note_failure,
    read_records,
)
from probmargin.experiments.request import ReproduceRequest
from probmargin.experiments.results_page import write_page
from probmargin.experiments.studies import draw_study, forecast_study, run_study
from probmargin.experiments.study import Bench
from probmargin.experiments.work import Outcome, Task
from probmargin.reporting.render import FORMATS, markdown
from probmargin.reporting.tables import build_table
from probmargin.runs.run import Run
from probmargin.training.progress import duration

RESULTS = Path("results")
"""Records that are kept for good, where the command is run in a checkout."""


def _bench(request: ReproduceRequest, say: Say) -> Bench:
    """Where a study of this request works."""
    if request.only or request.seeds or request.aa_examples is not None:
        raise UsageError(
            f"{request.name} has no rows and no AutoAttack, and runs whole: leave out --only, --seeds and --aa-examples"
        )
    if request.trials is not None and request.trials < 1:
        raise UsageError(f"--trials must be 1 or more, not {request.trials}")
    return Bench(
        scale=coerce(request.scale, ScaleName, "--scale"),
        out=request.out,
        data_dir=request.data_dir,
        device_name=request.device,
        trials=request.trials,
        execute=lambda tasks: _carry_out(tasks, request, say, keep=False),
        say=say,
        kept=request.keep_records,
    )


def _known_records(request: ReproduceRequest, damaged: dict[str, str]) -> list[Record]:
    """The records there are; what cannot be read goes into `damaged`, by run."""
    folders = (request.out, request.records, request.out / "records", RESULTS)
    return read_records(dict.fromkeys(folders), damaged)


def make_plan(request: ReproduceRequest, say: Say = silent) -> list[Planned]:
    """Every run that the request needs, and what there is of it; says which records cannot be read."""
    if request.name is None:
        raise UsageError("without a name there is only --render: name an experiment, such as table2")
    place = Place(out=request.out.resolve(), data_dir=request.data_dir, device=request.device)
    grids, damaged = request.grids(), dict[str, str]()
    records = _known_records(request, damaged)
    for line in damaged.values():
        say(line)
    sharing = [make_grid(one, grids[0].scale, aa_examples=request.aa_examples) for one in find(None)]
    return plan_runs(grids, place, records, sharing, request.seeds)


def dry_run(request: ReproduceRequest, say: Say) -> None:
    """Print claim, rows, runs and a forecast; nothing is trained."""
    if study := STUDIES.get(request.name or ""):
        forecast_study(study, _bench(request, say))
        return
    planned, forecaster = make_plan(request, say), Forecaster()
    for grid in request.grids():
        say(f"{grid.experiment.name}: {grid.experiment.title}\nclaim: {grid.experiment.claim}")
        judged = ", ".join(f"{column.label}: {column.attack}" for column in grid.columns)
        say(
            f"{grid.data}, {grid.model}, {counted(grid.trials, 'trial')}; {judged}; "
            "a run that others share is judged for them too"
        )
    total = 0.0
    for entry in planned:
        task, seconds = entry.task, forecaster.run(entry)
        total += seconds.total
        parent = f", from {task.parent.run} after epoch {task.parent.epochs}" if task.parent else ""
        times = f"; train {duration(seconds.training)}, judge {duration(seconds.judging)}" if seconds.total else ""
        say(f"  {entry.row:<28} {task.id}: {counted(task.recipe.epochs, 'epoch')}{parent}; {entry.state}{times}")
    device = pick_device(request.device).type
    left = sum(not entry.is_done for entry in planned)
    say(f"forecast: about {duration(total)} for {counted(left, 'run')} one after another (steps timed on {device})")


def reproduce(request: ReproduceRequest, say: Say) -> list[Outcome]:
    """Run what is missing, collect the records, draw tables or pictures; returns the outcomes that are failures."""
    _check_places(request)
    if study := STUDIES.get(request.name or ""):
        return run_study(study, _bench(request, say))
    planned = make_plan(request, say)
    for entry in planned:
        if entry.is_done:
            say(f"{entry.task.id}: skipped, {entry.state}")
        if request.keep_records is not None and entry.record is not None:
            keep_done(request.keep_records, entry.record, request.out)
    failed = _carry_out([entry.task for entry in planned if not entry.is_done], request, say, keep=True)
    render(request, say)
    return failed


def _check_places(request: ReproduceRequest) -> None:
    """Refuse places that cannot be written to before hours are spent."""
    check_folder(request.out, "--out")
    if request.keep_records is not None:
        check_folder(request.keep_records, "--keep-records")


def _carry_out(tasks: Sequence[Task], request: ReproduceRequest, say: Say, *, keep: bool) -> list[Outcome]:
    """Carry tasks out, keep their records where asked to, and return the failures."""
    failed: list[Outcome] = []

    def receive(outcome: Outcome) -> None:
        note_failure(request.out, outcome.id, outcome.reason, outcome.details)
        if outcome.record is not None:
            if keep:
                keep_record(request.records, outcome.record)
                if request.keep_records is not None:
                    keep_curves(request.keep_records, Run(request.out / outcome.id))
            say(f"{outcome.id}: done")
        else:
            failed.append(outcome)
            say(f"{outcome.id}: failed: {outcome.reason}")

    missing = _missing_data(tasks, request)
    for data, reason in missing.items():
        lost = [Outcome(task.id, reason=f"no data: {reason}") for task in tasks if task.data == data]
        for outcome in lost:
            note_failure(request.out, outcome.id, outcome.reason)
        failed += lost
        say(f"left out, {counted(len(lost), 'run')} on {data}: {reason}")
    _execute([task for task in tasks if task.data not in missing], request, receive, say)
    return failed


def _execute(tasks: Sequence[Task], request: ReproduceRequest, receive: Callable[[Outcome], None], say: Say) -> None:
    if not tasks:
        return
    try:
        with terminate_as_interrupt():
            _start(tasks, request, receive, say)
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(AGAIN) from None


def _missing_data(tasks: Sequence[Task], request: ReproduceRequest) -> dict[str, str]:
    """Data that is not there and cannot be fetched, found once before the first run; a cluster has its own.

    Where all of it is missing nothing is begun.
    """
    if request.executor == "ray" and request.address is not None:
        return {}
    missing: dict[str, str] = {}
    for data, data_dir in dict.fromkeys((task.data, task.data_dir) for task in tasks):
        try:
            load(data, data_dir, download=request.download)
        except UsageError as error:
            missing[data] = str(error)
    if missing and len(missing) == len({task.data for task in tasks}):
        raise UsageError(next(iter(missing.values())))
    return missing


def _start(tasks: Sequence[Task], request: ReproduceRequest, receive: Callable[[Outcome], None], say: Say) -> None:
    if request.executor == "ray":
        gpus = 0.0 if request.device == "cpu" else request.gpus_per_run
        share = Share(gpus, may_use_cpu=request.scale == "smoke" and request.device is None, say=say)
        run_on_cluster(tasks, receive, address=request.address, share=share)
        return
    devices = _devices(request.device, round(1 / (request.gpus_per_run or 1)))
    if request.scale == "smoke" and devices == ["cpu"]:
        # Its network is so small that a second thread costs more than it brings.
        torch.set_num_threads(1)
    if len(devices) > 1:
        run_on_devices(tasks, devices, receive)
    else:
        run_in_turn(tasks, receive, say)


def _devices(asked: str | None, at_once: int = 1) -> list[str]:
    """One for each run at a time: every GPU, where none is named, as often as it takes runs; a CPU once."""
    device = pick_device(asked)
    if device.type != "cuda":
        return [str(device)]
    indices = range(torch.cuda.device_count()) if device.index is None else [device.index]
    return [f"cuda:{index}" for _ in range(at_once) for index in indices]


def render(request: ReproduceRequest, say: Say) -> None:
    """Draw the tables from the records there are; without a name, fill the README of the kept records from these."""
    _check_places(request)
    if study := STUDIES.get(request.name or ""):
        draw_study(study, _bench(request, say))
        return
    damaged: dict[str, str] = {}
    records = _known_records(request, damaged)
    for line in damaged.values():
        say(line)
    reasons = {**damaged, **failures(request.out)}
    tables = [build_table(grid.table(), records, reasons) for grid in request.grids()]
    for table in tables:
        for suffix, draw in FORMATS.items():
            write_text(request.out / "tables" / f"{table.spec.name}.{suffix}", draw(table))
        if request.name is not None or not table.is_empty:
            say(markdown(table))
    if request.name is None:
        blank = ", ".join(table.spec.name for table in tables if table.is_empty)
        say(f"without any record: {blank or 'none'}")
        _fill_page(request, records, say)


def _fill_page(request: ReproduceRequest, records: Sequence[Record], say: Say) -> None:
    """Write the page of all tables, which is made from kept records alone and has no part that is left out."""
    folder = request.keep_records or RESULTS
    if request.filters:
        options = ", ".join(request.filters)
        say(f"printed only: {folder / 'README.md'} has all tables whole, and is written without {options}")
        return
    if (path := write_page(folder)) is None:
        return
    say(f"tables written into {path}, from the records in {folder} alone")
    kept = {record["id"] for record in read_records([folder])}
    runs = {grid.run_name(row) for grid in request.grids() for row in grid.rows}
    found = {str(record["id"]) for record in records} - kept
    if others := sorted(name for name in found if name.rpartition("-s")[0] in runs):
        say(f"not in that page, since not in {folder}: {', '.join(others)}; --keep-records {folder} copies records")
