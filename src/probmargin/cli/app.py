"""What every command shares: the application, its options, how it speaks and fails."""

import os
import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from probmargin._version import __version__
from probmargin.core.errors import UsageError

JOURNEY = "demo list train watch evaluate merge audit report compare inspect export import reproduce".split()


class InOrder(TyperGroup):
    """Lists commands as a user meets them, and not by the file they are in."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names; one that the journey does not know comes last."""
        return sorted(self.commands, key=lambda name: JOURNEY.index(name) if name in JOURNEY else len(JOURNEY))


app = typer.Typer(
    name="probmargin",
    cls=InOrder,
    help="Train and judge adversarially robust image classifiers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
DataOption = Annotated[str, typer.Option("--data", help="digits, cifar10, cifar100, svhn, folder:PATH or npz:FILE")]
DataDirOption = Annotated[Path | None, typer.Option("--data-dir", help="folder with the data set's own files")]
DownloadOption = Annotated[bool, typer.Option("--download", help="fetch the data set where it is not there")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu or cuda; the best there is")]
ImageSizeOption = Annotated[int | None, typer.Option("--image-size", help="resize images of a folder")]


def show(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")


def show_row(text: str) -> None:
    """Print a row of columns; on a terminal what does not fit goes on below the column it is in."""
    show(hanging(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text)


def hanging(row: str, width: int) -> str:
    """A row whose end is wrapped below the last column that begins in the left half.

    >>> hanging("pgd-20  twenty steps from a random start", 24).splitlines()
    ['pgd-20  twenty steps', '        from a random', '        start']
    >>> hanging("pass  gradients  0.25  a share of images", 24).splitlines()
    ['pass  gradients  0.25  a', '      share of images']
    """
    if len(row) <= width:
        return row
    begins = [gap.end() for gap in re.finditer(r"  +(?=\S)", row) if gap.end() <= width // 2]
    indent = begins[-1] if begins else 0
    rest = textwrap.wrap(row[indent:], width - indent, break_long_words=False, break_on_hyphens=False)
    return row[:indent] + f"\n{' ' * indent}".join(rest)


def is_first_process() -> bool:
    """Whether this process speaks: under torchrun only one does."""
    return os.environ.get("RANK", "0") == "0"


def fail(message: str, code: int) -> NoReturn:
    """End with one line and an exit code."""
    # What the user can fix, or asked for, is the same in every process; anything else may be one process's own.
    if code == 1 or is_first_process():
        sys.stderr.write(f"probmargin: {message}\n")
    sys.exit(code)


def _version(asked: bool) -> None:
    if asked:
        show(__version__)
        raise typer.Exit


def _load_plugins(context: typer.Context, names: list[str] | None) -> list[str]:
    command = context.invoked_subcommand
    if names and command in ("demo", "reproduce"):
        raise UsageError(f"{command} trains recipes of the package alone: leave out --plugin")
    for name in names or ():
        from probmargin.methods.plugins import load_plugin

        load_plugin(name)
    return names or []


@app.callback()
def _common(
    context: typer.Context,
    plugins: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin", metavar="FILE", help="a .py file or module with margins, weights, ... of your own; repeatable"
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train and judge adversarially robust image classifiers."""
    context.obj = _load_plugins(context, plugins)
