"""What a person sees while a run trains."""

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import Progress, ProgressColumn, Task
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from probmargin.core.shell import typed
from probmargin.runs.run import Run
from probmargin.training.validation import score

_BAR = 20
"""Characters of the bar."""
_GAP = "  "


def percent(share: float | None) -> str:
    """A share as a percentage, or a dash.

    >>> percent(0.5), percent(None)
    ('50.0%', '-')
    """
    return "-" if share is None else f"{100 * share:.1f}%"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> duration(3725.4)
    '1:02:05'
    """
    return str(timedelta(seconds=round(seconds)))


def epoch_line(metrics: dict[str, Any], epochs: int, *, with_speed: bool = True) -> str:
    """One epoch in one line; a mean weight of one, which says nothing, is left out."""
    shares = {name: metrics[f"{name}_accuracy"] for name in ("natural", "robust")}
    pieces = [f"epoch {metrics['epoch'] + 1}/{epochs}", f"lr {metrics['lr']:g}"]
    pieces += [f"loss {metrics['loss']:.4f}"]
    pieces += [f"{name} {percent(share)}" for name, share in shares.items() if share is not None]
    if f"{metrics['weight_mean']:.2f}" != "1.00":
        pieces.append(f"weight {metrics['weight_mean']:.2f}")
    pieces.append(f"ess {metrics['effective_sample_size']:.0f}")
    if with_speed:
        pieces.append(f"{metrics['images_per_second']:.0f} img/s")
    if look := metrics.get("validation"):
        kind = "natural" if look["robust_accuracy"] is None else "robust"
        pieces.append(f"held out {kind} {percent(score(look))}")
    if metrics.get("monitors"):
        found = ", ".join(f"{name} {percent(share)}" for name, share in metrics["monitors"].items())
        pieces.append(f"test monitors: {found}")
    if "data_wait_share" in metrics:
        pieces.append(f"waited for images {percent(metrics['data_wait_share'])}")
    return _GAP.join(pieces)


def folded(line: str, width: int) -> str:
    """A line broken between its pieces, what goes over indented, where it is longer than a terminal is wide.

    >>> folded("epoch 1/2  loss 1.25  robust 40.0%", 24)
    'epoch 1/2  loss 1.25\\n  robust 40.0%'
    >>> folded("epoch 1/2  loss 1.25  robust 40.0%", 34)
    'epoch 1/2  loss 1.25  robust 40.0%'
    """
    lines = [""]
    for piece in line.split(_GAP):
        longer = f"{lines[-1]}{_GAP}{piece}" if lines[-1] else piece
        if lines[-1] and len(longer) > width:
            lines.append(_GAP + piece)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def _clock(seconds: float | None) -> str:
    """Hours, minutes and seconds of a bar, where a day is 24 hours.

    >>> _clock(90061.0), _clock(None)
    ('25:01:01', '-:--:--')
    """
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _fitting(pieces: list[str], width: int) -> str:
    """As many pieces from the first on as are no longer than a line.

    >>> _fitting(["epoch 1/2", "ETA 0:01:00", "loss 1.2"], 22)
    'epoch 1/2  ETA 0:01:00'
    """
    while len(pieces) > 1 and len(_GAP.join(pieces)) > width:
        pieces = pieces[:-1]
    return _GAP.join(pieces)


class _Fitted(ProgressColumn):
    """What is most important of a run, as far as the terminal is wide; a bar where there is room for it."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> RenderableType:
        """The line of a run, on the terminal as it is now."""
        metrics, width = task.fields["metrics"], self._console.width
        first = [task.description, f"ETA {_clock(task.time_remaining)}"]
        later = [f"elapsed {_clock(task.elapsed)}"]
        if metrics is not None:
            first += [f"{metrics['images_per_second']:.0f} img/s", f"loss {metrics['loss']:.4f}"]
            shares = {name: metrics[f"{name}_accuracy"] for name in ("robust", "natural")}
            first += [f"{name} {percent(share)}" for name, share in shares.items() if share is not None]
            later += [f"weight {metrics['weight_mean']:.2f}", f"ess {metrics['effective_sample_size']:.0f}"]
        first.append(f"step {task.completed:.0f}/{task.total or 0:.0f}")
        room = width - _BAR - len(_GAP)
        if len(_GAP.join(first)) > room:
            return Text(_fitting(first, width), no_wrap=True, overflow="ellipsis")
        line = Table.grid(padding=(0, len(_GAP), 0, 0))
        line.add_row(
            ProgressBar(total=task.total, completed=task.completed, width=_BAR),
            Text(_fitting([*first, *later], room), no_wrap=True, overflow="ellipsis"),
        )
        return line


class Reporter:
    """Prints a bar on a terminal, plain lines elsewhere, nothing when quiet."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self.quiet = quiet
        self.console = console or Console()
        self._bar: Progress | None = None
        self._task: Any = None
        self._last_line = 0.0
        self._began = 0.0
        self._steps = (0, 0, 0)

    @property
    def is_live(self) -> bool:
        """Is somebody looking at a bar?"""
        return self._bar is not None

    def say(self, text: str) -> None:
        """Print a sentence."""
        if not self.quiet:
            self.console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def start(self, title: str, total_steps: int, done_steps: int) -> None:
        """Begin to show a run."""
        self._began, self._steps = time.monotonic(), (done_steps, done_steps, total_steps)
        if self.quiet or not self.console.is_terminal:
            return
        self._bar = Progress(_Fitted(self.console), console=self.console, transient=True)
        self._task = self._bar.add_task(title, total=total_steps, completed=done_steps, metrics=None)
        self._bar.start()

    def advance(self) -> None:
        """One step is done."""
        first, done, total = self._steps
        self._steps = (first, done + 1, total)
        if self._bar is not None:
            self._bar.advance(self._task)

    def glance(self, metrics: dict[str, Any], epochs: int) -> None:
        """Show the epoch under way in the bar."""
        if self._bar is not None:
            title = f"epoch {metrics['epoch'] + 1}/{epochs}"
            self._bar.update(self._task, description=title, metrics=metrics)

    def epoch(self, metrics: dict[str, Any], epochs: int) -> None:
        """An epoch is done; without a terminal, lines come at most twice a second, and always the last."""
        now = time.monotonic()
        is_last = metrics["epoch"] + 1 == epochs
        if self._bar is not None:
            self.glance(metrics, epochs)
            # The bar has the speed.
            line = folded(epoch_line(metrics, epochs, with_speed=False), self.console.width)
            self._bar.console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)
        elif is_last or now - self._last_line > 0.5:
            self._last_line = now
            self.say(epoch_line(metrics, epochs) + self._remaining(now))

    def _remaining(self, now: float) -> str:
        first, done, total = self._steps
        if done <= first or done >= total:
            return ""
        return f"  ETA {duration((now - self._began) / (done - first) * (total - done))}"

    def stop(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def chosen_line(run: Run, count: int | None, best: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """What choosing the best state would change, and how it is chosen."""
    file = typed(run.best_path.with_suffix(".safetensors"))
    return (
        f"on {count} held-out images: best {percent(score(best))} after epoch {best['epoch']}, last "
        f"{percent(score(last))} after epoch {last['epoch']}; commands take the last, the best with --checkpoint {file}"
    )
