"""Commands that list what there is and run whole studies."""

from pathlib import Path
from typing import Annotated

import typer

from probmargin.cli.app import DataDirOption, DeviceOption, DownloadOption, app, fail, show, show_row
from probmargin.core.errors import UsageError
from probmargin.core.settings import MOST_SEED
from probmargin.core.words import counted


@app.command("list")
def list_names(
    kind: Annotated[
        str | None, typer.Argument(help="methods, margins, weights, attacks, models, data, ...; all if left out")
    ] = None,
) -> None:
    """Print the names that other commands take."""
    from probmargin.api import catalogue

    for line in catalogue(kind):
        show_row(line)


@app.command(short_help="Reproduce a table or figure of the paper.")
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="table1 ... table7, two-by-two; figure1a ... figure4, weight-functions; reliability, label-noise"
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option("--trials", help="seeds 1 to N; the paper's 5, smoke 1")] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", help="N,N: of the trials, only these; another machine can run the others")
    ] = "",
    only: Annotated[str, typer.Option("--only", help="ROW,ROW: only these rows; --dry-run prints them")] = "",
    data_dir: DataDirOption = None,
    download: DownloadOption = False,
    scale: Annotated[str, typer.Option("--scale", help="full, or smoke: the same grid on digits, on a CPU")] = "full",
    executor: Annotated[str, typer.Option("--executor", help="local (this machine's GPUs) or ray")] = "local",
    address: Annotated[str | None, typer.Option("--address", help="of a Ray cluster, such as auto")] = None,
    gpus_per_run: Annotated[float | None, typer.Option("--gpus-per-run", help="0.5 puts two runs on one GPU")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print rows, runs and a time forecast")] = False,
    render: Annotated[bool, typer.Option("--render", help="make table or figure from the records there are")] = False,
    out: Annotated[Path, typer.Option("--out", help="folder for the runs")] = Path("runs/reproduce"),
    keep_records: Annotated[
        Path | None, typer.Option("--keep-records", help="folder for copies of the records; OUT/records")
    ] = None,
    aa_examples: Annotated[
        int | None, typer.Option("--aa-examples", help="AutoAttack on the first N test images, labelled so")
    ] = None,
    device: DeviceOption = None,
) -> None:
    """Reproduce a table or figure of the paper: run what is missing, then print or draw; started again, it goes on."""
    from probmargin.experiments import reproduce as experiments
    from probmargin.experiments.request import ReproduceRequest

    if dry_run and render:
        raise UsageError("--dry-run prints what would be run and --render what there is: give one of the two")
    if render and seeds:
        raise UsageError("--seeds says which trials are run, and --render runs none: leave one of the two out")
    request = ReproduceRequest(
        name=name,
        scale=scale,
        trials=trials,
        seeds=_seeds(seeds),
        only=tuple(row.strip() for row in only.split(",") if row.strip()),
        aa_examples=aa_examples,
        data_dir=data_dir,
        download=download,
        device=device,
        out=out,
        keep_records=keep_records,
        executor=executor,
        address=address,
        gpus_per_run=gpus_per_run,
    )
    if dry_run:
        experiments.dry_run(request, show_row)
    elif render:
        experiments.render(request, show)
    elif failed := experiments.reproduce(request, show):
        fail(f"{counted(len(failed), 'run')} failed: {', '.join(outcome.id for outcome in failed)}", 1)


def _seeds(text: str) -> tuple[int, ...]:
    """
    >>> _seeds("2, 3"), _seeds("")
    ((2, 3), ())
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if text and not names:
        raise UsageError("--seeds names none: give numbers with commas between them, such as 2,3, or leave it out")
    if wrong := [name for name in names if not name.isdecimal()]:
        raise UsageError(f"--seeds takes numbers with commas between them, such as 2,3, not {wrong[0]!r}")
    return tuple(dict.fromkeys(int(name) for name in names))


@app.command(short_help="Train, judge and compare two methods on embedded data.")
def demo(
    out: Annotated[Path, typer.Option("--out", help="folder for the two runs")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option("--seed", min=0, max=MOST_SEED, help="of both runs")] = 1,
) -> None:
    """Train AT and MAIL-TRADES on embedded data, judge both, print a table, write a report."""
    from probmargin.experiments.demo import run_demo

    run_demo(out, seed, show)
