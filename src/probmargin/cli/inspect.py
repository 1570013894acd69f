"""The command that looks at the weights of a run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probmargin.cli.app import DataDirOption, DeviceOption, app, show

if TYPE_CHECKING:
    from probmargin.reporting.inspection import Section


@app.command("inspect", short_help="Look at the weights of a run.")
def inspect_run(
    run: Annotated[Path, typer.Argument(help="folder of a run that has dynamics.npz")],
    top: Annotated[int, typer.Option("--top", help="examples in each list")] = 10,
    json_file: Annotated[Path | None, typer.Option("--json", help="FILE for all numbers as JSON")] = None,
    measure_lps: Annotated[
        int | None, typer.Option("--measure-lps", help="attack N training images to count the steps they survive")
    ] = None,
    data_dir: DataDirOption = None,
    device: DeviceOption = None,
) -> None:
    """Look at the weights of a run: who carries them, who gains and loses, who looks mislabelled."""
    from probmargin.engine.files import check_replaces, holds_json, write_json
    from probmargin.experiments.inspect import InspectRequest, inspect_run as look
    from probmargin.reporting.inspection import plain, sections

    if json_file is not None:
        check_replaces(json_file, "--json", "such file", lambda path: holds_json(path, "weight", "lps", "suspects"))
    request = InspectRequest(run=run, top=top, measure_lps=measure_lps, data_dir=data_dir, device=device)
    summary = look(request)
    parts = sections(summary)
    if sys.stdout.isatty():
        _print_rich(parts)
    else:
        show(plain(parts))
    if json_file is not None:
        write_json(json_file, summary)
        show(f"written to {json_file}")


def _print_rich(parts: "list[Section]") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for part in parts:
        console.print(Text(part.title, style="bold"))
        for line in part.lines:
            console.print(Text(f"  {line}"))
        if part.rows:
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
            for name in part.header:
                # Numbers are never cut; names and files are, where the terminal is narrow.
                table.add_column(name, justify="right", no_wrap=name not in ("class", "file"))
            for row in part.rows:
                table.add_row(*(Text(cell) for cell in row))
            console.print(table)
        console.print()
