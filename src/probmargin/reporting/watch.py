"""A run's curves in the terminal, drawn again while it trains."""

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
    """One quantity: what it is called, the epochs that have a value, their values, and how these are written."""

    title: str
    epochs: Sequence[int]
    values: Sequence[float]
    is_share: bool = False
    style: str = "cyan"

    def shown(self, value: float) -> str:
        """A value in words."""
        return f"{100 * value:.1f}%" if self.is_share else f"{value:,.4g}"


def placed(epochs: Sequence[int], values: Sequence[float], span: range, width: int) -> list[float | None]:
    """A value for each column, which stands for the same epochs of the span in every curve; None where it has none.

    Where there are more epochs than columns it is a mean, where there are fewer it is repeated.

    >>> placed([2, 4], [1.0, 3.0], range(1, 5), 8)
    [None, None, 1.0, 1.0, None, None, 3.0, 3.0]
    >>> placed([1, 2, 3, 4], [1.0, 3.0, 5.0, 7.0], range(1, 5), 2)
    [2.0, 6.0]
    """
    count, known = len(span), dict(zip(epochs, values, strict=True))
    columns: list[float | None] = []
    for column in range(width):
        low = column * count // width
        high = max(low + 1, (column + 1) * count // width)
        found = [known[epoch] for epoch in span[low:high] if epoch in known]
        columns.append(sum(found) / len(found) if found else None)
    return columns


def blocks(columns: Sequence[float | None], low: float, high: float, rows: int = ROWS) -> list[str]:
    """A chart of block characters from `low` to `high`, the top row first; the least value still shows.

    >>> blocks([0.0, None, 1.0], 0.0, 1.0, 1), blocks([1.0, 1.0], 1.0, 1.0, 1)
    (['▁ █'], ['▄▄'])
    """
    steps = 8 * rows
    # Rounding is no change.
    scale = (steps - 1) / (high - low) if high - low > 1e-5 * abs(high) else None
    heights = [
        0 if value is None else steps // 2 if scale is None else 1 + round((value - low) * scale) for value in columns
    ]
    return ["".join(BLOCKS[max(0, min(8, height - 8 * row))] for height in heights) for row in reversed(range(rows))]


def axis(span: range, width: int) -> str:
    """The first and the last epoch below their columns.

    >>> axis(range(1, 101), 16), axis(range(1, 2), 16)
    ('epoch 1      100', 'epoch 1')
    """
    first = f"epoch {span[0]}"
    return first if len(span) == 1 else f"{first}{span[-1]:>{width - len(first)}}"


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
        epochs, values = series(metrics, name, part)
        if values:
            yield Curve(title, epochs, values, is_share, style)


def seconds_left(folder: Folder, an_epoch: float | None = None) -> float | None:
    """Time to the end at the pace that was watched, else at the pace of the last epoch's images; None if unknown."""
    if not folder.metrics or folder.is_finished:
        return None
    if an_epoch is None:
        rate = float(folder.metrics[-1].get("images_per_second") or 0.0)
        size = _trained_on(folder)
        an_epoch = size / rate if rate > 0 and size > 0 else None
    return None if an_epoch is None else an_epoch * (folder.epochs - folder.trained)


def _trained_on(folder: Folder) -> float:
    """Images of an epoch. Where the record does not say, the largest effective sample size: weights only lower it."""
    counts = folder.record.get("class_counts")
    if counts:
        return float(sum(counts.values())) - float(folder.record.get("validation") or 0)
    return max((float(row.get("effective_sample_size") or 0.0) for row in folder.metrics), default=0.0)


def header(folder: Folder, left: float | None, idle: float | None = None) -> Text:
    """Where a run stands, in one line."""
    record = folder.record
    words = [f"{folder.name}: {folder.method}, {record.get('model')} on {record.get('data')}"]
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
    inner = max(16, width // count - 6)
    table = Table.grid(expand=False, padding=(0, 1))
    lines = math.ceil(len(shown) / count)
    room = ROWS + 1 if height is None else max(1, min(ROWS + 1, (height - 2) // lines - 2))
    trained = [int(row["epoch"]) + 1 for row in folder.metrics]
    span = range(min(trained), max(trained) + 1)
    panels = [_panel(curve, span, inner, room) for curve in shown]
    for start in range(0, len(panels), count):
        table.add_row(*panels[start : start + count])
    return Group(title, table)


def _panel(curve: Curve, span: range, width: int, room: int) -> Panel:
    """A curve in so many lines; its axis is the first to go."""
    low, high = min(curve.values), max(curve.values)
    told = f"{curve.title}  {curve.shown(curve.values[-1])}"
    ends = f"{curve.shown(low)} to {curve.shown(high)}"
    columns = placed(curve.epochs, curve.values, span, width)
    drawn = Text("\n".join(blocks(columns, low, high, max(1, room - 1))), style=curve.style, no_wrap=True)
    if room > 1:
        drawn.append(f"\n{axis(span, width)}", style="dim")
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
        height = screen.height if screen.is_terminal else None
        screen.print(frame(folder, screen.width, header(folder, seconds_left(folder)), height))
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
