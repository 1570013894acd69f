"""Commands that show what there is of runs."""

from pathlib import Path
from typing import Annotated

import typer

from probmargin.cli.app import DataDirOption, DeviceOption, app, show


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="folders of runs, and files of evaluate --out; several are compared with the first"),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="the page")] = Path("report.html"),
    data_dir: DataDirOption = None,
    images: Annotated[int, typer.Option("--images", help="attacked test images of each run; 0: no pictures")] = 8,
    device: DeviceOption = None,
) -> None:
    """Write one self-contained HTML page about one run or several."""
    from probmargin.experiments.report import ReportRequest, write_report

    write_report(ReportRequest(runs=tuple(runs), out=out, data_dir=data_dir, device=device, images=images), show)


@app.command(short_help="Make a table of runs, averaged over seeds.")
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="folders of judged runs, and files of evaluate --out; all are compared with the first's recipe"
        ),
    ],
    form: Annotated[str | None, typer.Option("--format", help="md, tex, csv or comparisons.csv")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="a file, whose suffix is the format")] = None,
) -> None:
    """Make a table of runs: a row a recipe, averaged over seeds, with paired tests."""
    from probmargin.experiments.comparison import CompareRequest, compare_runs

    compare_runs(CompareRequest(runs=tuple(runs), format=form, out=out), show)


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(help="folder of a run")],
    every: Annotated[float, typer.Option("--every", help="seconds between two looks")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="print one frame and end")] = False,
) -> None:
    """Draw a run's curves in the terminal while it trains."""
    from probmargin.reporting.watch import watch as watch_run

    watch_run(run, every=every, once=once)
