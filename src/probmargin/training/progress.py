"""What a person sees while a run trains."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def percent(share: float | None) -> str:
    """A share as a percentage, or a dash.

    >>> percent(0.5), percent(None)
    ('50.0%', '-')
    """
    return "-" if share is None else f"{100 * share:.1f}%"


def epoch_line(metrics: dict[str, Any], epochs: int) -> str:
    """One epoch in one line."""
    return (
        f"epoch {metrics['epoch'] + 1}/{epochs}  lr {metrics['lr']:g}  loss {metrics['loss']:.4f}  "
        f"natural {percent(metrics['natural_accuracy'])}  robust {percent(metrics['robust_accuracy'])}  "
        f"weight {metrics['weight_mean']:.2f}  ess {metrics['effective_sample_size']:.0f}  "
        f"{metrics['images_per_second']:.0f} img/s"
    )


class Reporter:
    """Prints a bar on a terminal, plain lines elsewhere, nothing when quiet."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self.quiet = quiet
        self.console = console or Console()
        self._bar: Progress | None = None
        self._task: Any = None
        self._last_line = 0.0

    def say(self, text: str) -> None:
        """Print a sentence."""
        if not self.quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def start(self, title: str, total_steps: int, done_steps: int) -> None:
        """Begin to show a run."""
        if self.quiet or not self.console.is_terminal:
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=self.console, transient=True)
        self._task = self._bar.add_task(title, total=total_steps, completed=done_steps)
        self._bar.start()

    def advance(self) -> None:
        """One step is done."""
        if self._bar is not None:
            self._bar.advance(self._task)

    def epoch(self, metrics: dict[str, Any], epochs: int) -> None:
        """An epoch is done; without a terminal, lines come at most twice a second, and always the last."""
        now = time.monotonic()
        is_last = metrics["epoch"] + 1 == epochs
        if self._bar is not None:
            self._bar.update(self._task, description=epoch_line(metrics, epochs))
        elif is_last or now - self._last_line > 0.5:
            self._last_line = now
            self.say(epoch_line(metrics, epochs))

    def stop(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
