"""Run a study, or draw it again from its record."""

import json
from pathlib import Path
from typing import Any

from probmargin.core.errors import UsageError
from probmargin.engine.files import write_json, write_text
from probmargin.experiments.forecast import Forecaster
from probmargin.experiments.plan import Planned
from probmargin.experiments.study import Bench, Study, carry_out
from probmargin.experiments.work import Outcome
from probmargin.reporting.figures import draw
from probmargin.reporting.study_text import text_of
from probmargin.training.progress import duration

RESULTS = {"smoke": Path("results/figures"), "full": Path("results/figures/full")}
"""Records that are kept for good, where the command is run in a checkout."""


def folder_of(bench: Bench) -> Path:
    """Where records and pictures go."""
    return bench.out / "figures"


def run_study(study: Study, bench: Bench) -> list[Outcome]:
    """Train what is missing, measure, write the record, draw it; returns the runs that failed."""
    record, failed = carry_out(study, bench)
    if record is None:
        return failed
    write_json(folder_of(bench) / f"{study.name}.json", record)
    if bench.kept is not None:
        write_json(bench.kept / f"{study.name}.json", record)
    _show(record, bench)
    return []


def draw_study(study: Study, bench: Bench) -> None:
    """Draw a study from the record there is."""
    for folder in (folder_of(bench), bench.kept, RESULTS[bench.scale], RESULTS["smoke"]):
        path = folder / f"{study.name}.json" if folder else None
        if path and path.exists():
            _show(json.loads(path.read_text(encoding="utf-8")), bench)
            return
    raise UsageError(
        f"there is no record of {study.name} in {folder_of(bench)}: make it with "
        f"{study.command(bench)}{bench.out_option}"
    )


def _show(record: dict[str, Any], bench: Bench) -> None:
    """Draw a record and say what it holds."""
    text = text_of(record)
    write_text(folder_of(bench) / f"{record['id']}.md", text)
    paths = draw(record, folder_of(bench))
    bench.say(text)
    bench.say(f"drawn as {', '.join(str(path) for path in paths)}")


def forecast_study(study: Study, bench: Bench) -> None:
    """Print the runs a study needs, what there is of them, and how long the rest will train."""
    bench.say(f"{study.name}: {study.title}\n{bench.data_name}, {bench.model_name}")
    tasks, forecaster, total = study.tasks(bench), Forecaster(), 0.0
    for task in tasks:
        parent = f", from {task.parent.run} after epoch {task.parent.epochs}" if task.parent else ""
        state = "done" if task.is_judged else "to do"
        total += forecaster.run(Planned(task.recipe.method, task, task.is_judged, state)).total
        bench.say(f"  {task.id}: {task.recipe.epochs} epochs{parent}; {state}")
    if not tasks:
        bench.say("  every run it needs is there" if study.rows else "  it needs no run")
    else:
        bench.say(
            f"forecast: about {duration(total)} for the runs, one after another (steps timed on {bench.device.type})"
        )
