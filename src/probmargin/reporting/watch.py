"""A run's curves in the terminal, drawn again while it trains."""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from probmargin.core.errors import UsageError
from probmargin.engine.files import read_json_lines
from probmargin.engine.shapes import misfit_epoch
from probmargin.reporting.folder import Folder, parts, read_folder, series

BLOCKS = " ▁▂▃▄▅▆▇█"
ROWS = 5
_TWO_COLUMNS = 72
"""Characters a terminal must be wide for two charts side by side."""


@dataclass(frozen=True)
class Curve:
    """One quantity: what it is called, its values, how they are written, and the scale where it is fixed."""

    title: str
    values: Sequence[float]
    is_share: bool = False
    style: str = "cyan"

    def shown(self, value: float) -> str:
        """A value in words."""
        return f"{100 * value:.1f}%" if self.is_share else f"{value:,.4g}"


def stretched(values: Sequence[float], width: int) -> list[float]:
    """A value for each column: means where there are more values than columns, repeats where there are fewer.

    >>> stretched([1.0, 3.0], 4), stretched([1.0, 3.0, 5.0, 7.0], 2)
    ([1.0, 1.0, 3.0, 3.0], [2.0, 6.0])
    """
    count = len(values)
    if count > width:
        edges = [place * count // width for place in range(width + 1)]
        return [sum(values[low:high]) / (high - low) for low, high in itertools.pairwise(edges)]
    return [values[column * count // width] for column in range(width)]


def blocks(values: Sequence[float], width: int, rows: int = ROWS) -> list[str]:
    """A chart of block characters, the top row first; the least value still shows.

    >>> blocks([0.0, 1.0], 2, 1), blocks([1.0, 1.0], 2, 1)
    (['▁█'], ['▄▄'])
    """
    columns = stretched(values, width)
    low, high = min(values), max(values)
    steps = 8 * rows
    # Rounding is no change.
    if high - low > 1e-5 * abs(high):
        heights = [1 + round((value - low) / (high - low) * (steps - 1)) for value in columns]
    else:
        heights = [steps // 2] * len(columns)
    return ["".join(BLOCKS[max(0, min(8, height - 8 * row))] for height in heights) for row in reversed(range(rows))]


def curves(folder: Folder) -> Iterator[Curve]:
    """Everything that has a value so far."""
    metrics = folder.metrics
    wanted: list[tuple[str, str, str | None, bool, str]] = [
        ("loss", "loss", None, False, "yellow"),
        ("accuracy, clean", "natural_accuracy", None, True, "cyan"),
        ("accuracy, attacked", "robust_accuracy", None, True, "magenta"),
        ("held out, clean", "validation", "natural_accuracy", True, "cyan"),
        ("held out, attacked", "validation", "robust_accuracy", True, "magenta"),
        *((f"test monitor {name}", "monitors", name, True, "magenta") for name in parts(metrics, "monitors")),
        ("mean weight", "weight_mean", None, False, "green"),
        ("effective sample size", "effective_sample_size", None, False, "green"),
        ("learning rate", "lr", None, False, "blue"),
    ]
    for title, name, part, is_share, style in wanted:
        _, values = series(metrics, name, part)
        if values:
            yield Curve(title, values, is_share, style)


def seconds_left(folder: Folder, an_epoch: float | None = None) -> float | None:
    """Time to the end at the pace that was watched, else at the pace of the last epoch's images; None if unknown.

    Weights that differ make the effective sample size smaller than the training set, so its largest value counts.
    """
    if not folder.metrics or folder.is_finished:
        return None
    if an_epoch is None:
        rate = float(folder.metrics[-1].get("images_per_second") or 0.0)
        size = max((float(row.get("effective_sample_size") or 0.0) for row in folder.metrics), default=0.0)
        an_epoch = size / rate if rate > 0 and size > 0 else None
    return None if an_epoch is None else an_epoch * (folder.epochs - folder.trained)


def header(folder: Folder, left: float | None, idle: float | None = None) -> Text:
    """Where a run stands, in one line."""
    record = folder.record
    words = [f"{folder.name}: {folder.recipe.get('method')}, {record.get('model')} on {record.get('data')}"]
    words.append(f"epoch {folder.trained}/{folder.epochs}")
    if folder.is_finished:
        words.append("finished")
    elif left is not None:
        words.append(f"ETA {timedelta(seconds=round(left))}")
    if idle is not None and not folder.is_finished:
        words.append(f"last epoch {timedelta(seconds=round(idle))} ago")
    return Text("  ".join(words), style="bold", overflow="fold")


def frame(folder: Folder, width: int, title: Text, height: int | None = None) -> RenderableType:
    """One picture of a run; charts become flatter where a terminal is too low for all of them."""
    shown = list(curves(folder))
    if not shown:
        return Group(title, Text("no epoch is finished yet"))
    count = 2 if width >= _TWO_COLUMNS else 1
    inner = max(10, width // count - 6)
    table = Table.grid(expand=False, padding=(0, 1))
    lines = math.ceil(len(shown) / count)
    rows = ROWS if height is None else max(1, min(ROWS, (height - 2) // lines - 2))
    panels = [_panel(curve, inner, rows) for curve in shown]
    for start in range(0, len(panels), count):
        table.add_row(*panels[start : start + count])
    return Group(title, table)


def _panel(curve: Curve, width: int, rows: int) -> Panel:
    values = curve.values
    told = f"{curve.title}  {curve.shown(values[-1])}"
    ends = f"{curve.shown(min(values))} to {curve.shown(max(values))}"
    drawn = Text("\n".join(blocks(values, width, rows)), style=curve.style, no_wrap=True)
    return Panel(
        drawn, title=Text(told), title_align="left", subtitle=Text(ends), subtitle_align="right", width=width + 4
    )


def watch(path: Path, *, every: float = 2.0, once: bool = False, console: Console | None = None) -> None:
    """Draw until the run has finished or the user stops looking; `once` draws a single frame."""
    if every <= 0:
        raise UsageError(f"--every must be more than 0 seconds, not {every:g}")
    screen = console or Console()
    folder = read_folder(path)
    # There is nothing else to draw: here a damaged file is an error.
    read_json_lines(folder.metrics_path, misfit_epoch)
    if once or folder.is_finished:
        screen.print(frame(folder, screen.width, header(folder, seconds_left(folder))))
        return
    try:
        with Live(console=screen, auto_refresh=False) as live:
            _follow(path, folder, every, live)
    except KeyboardInterrupt:
        return


def _follow(path: Path, folder: Folder, every: float, live: Live) -> None:
    """Draw again after each look, at the pace of the epochs that went by meanwhile."""
    began, first, seen = time.monotonic(), folder.trained, folder.trained
    at = began
    while True:
        now = time.monotonic()
        if folder.trained != seen:
            seen, at = folder.trained, now
        pace = (at - began) / (seen - first) if seen > first else None
        idle = time.time() - folder.metrics_path.stat().st_mtime if folder.metrics else None
        title = header(folder, seconds_left(folder, pace), idle)
        live.update(frame(folder, live.console.width, title, live.console.height), refresh=True)
        if folder.is_finished:
            return
        time.sleep(every)
        folder = read_folder(path)
