"""How weights and margins are spread over the training images, epoch by epoch; from dynamics.npz."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from probmargin.core.arrays import UNREADABLE
from probmargin.reporting.dynamics import History, Labels, example, last_margin, read_history, summarise, whole_epochs

Array = npt.NDArray[Any]
Entry = dict[str, Any]

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
BINS = 40
MOST_EPOCHS = 60
"""Epochs a page shows; of a longer run evenly chosen ones, the first and the last among them."""
TOP = 8
"""Images shown at each end."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """One quantity over the epochs."""

    epochs: list[int]
    """From 1."""
    quantiles: list[list[float]]
    """A list over epochs for each of LEVELS."""
    edges: tuple[float, float]
    """Of the histograms; what lies beyond counts in the outermost bins."""
    counts: list[list[int]]
    """A histogram an epoch."""


@dataclass(frozen=True, kw_only=True)
class Dynamics:
    """What a run's examples did, ready to be drawn."""

    summary: Entry
    """As `probmargin.reporting.dynamics.summarise` makes it."""
    margin: Spread
    weight: Spread
    recipe_margin: Spread | None
    """Of the margin that the recipe weighs by, where that is another one."""
    largest: list[Entry]
    smallest: list[Entry]

    @property
    def is_uniform(self) -> bool:
        """Did every example count the same? Then the two ends are those of the margin."""
        return bool(self.summary["weight"]["is_uniform"])

    def shown(self) -> list[int]:
        """Places in the data set of all images that a page shows."""
        entries = [*self.largest, *self.smallest, *self.summary["suspects"]["examples"]]
        return list(dict.fromkeys(entry["index"] for entry in entries))


def chosen_epochs(count: int, most: int = MOST_EPOCHS) -> list[int]:
    """Rows that are shown of `count`: evenly chosen, the first and the last among them.

    >>> chosen_epochs(3), chosen_epochs(100, 4)
    ([0, 1, 2], [0, 33, 66, 99])
    """
    if count <= most:
        return list(range(count))
    rows: list[int] = np.unique(np.linspace(0, count - 1, most).round().astype(int)).tolist()
    return rows


def spread(values: Array, epochs: Array, edges: tuple[float, float]) -> Spread:
    """Quantiles and histograms of (E, N) values."""
    rows = chosen_epochs(len(values))
    shown = values[rows].astype(np.float64)
    clipped = np.clip(shown, *edges)
    return Spread(
        epochs=[int(epochs[row]) + 1 for row in rows],
        quantiles=np.quantile(shown, LEVELS, axis=1).round(4).tolist(),
        edges=edges,
        counts=[np.histogram(row, bins=BINS, range=edges)[0].tolist() for row in clipped],
    )


def load_history(path: Path) -> History | None:
    """Read a run's dynamics; None where there are none, or none that can be read."""
    try:
        history = read_history(path)
    except UNREADABLE:
        return None
    return history if history.margin.ndim == 2 and history.margin.size else None


def describe(history: History, known: Labels | None, burn_in: int) -> Dynamics:
    """Everything a page says about a run's examples."""
    summary = summarise(history, known, burn_in=burn_in, top=TOP)
    largest, smallest = summary["weight"]["largest"], summary["weight"]["smallest"]
    if summary["weight"]["is_uniform"]:
        largest, smallest = _ends(history.since(burn_in), known)
    top = float(np.quantile(history.weight, 0.999))
    return Dynamics(
        summary=summary,
        margin=spread(history.margin, history.epochs, (-1.0, 1.0)),
        weight=spread(history.weight, history.epochs, (0.0, max(1.5, round(1.05 * top, 2)))),
        recipe_margin=_recipe_margin(history),
        largest=largest,
        smallest=smallest,
    )


def _recipe_margin(history: History) -> Spread | None:
    """Over the epochs in which all of it is known, within the ends that hold all but a few examples."""
    _, margin = last_margin(history)
    known = whole_epochs(margin)
    if margin is None or not known.any():
        return None
    values = margin[known]
    low, high = (float(end) for end in np.quantile(values, (0.001, 0.999)))
    return spread(values, history.epochs[known], (low, high if high > low else low + 1.0))


def _ends(late: History, known: Labels | None) -> tuple[list[Entry], list[Entry]]:
    """The examples of the largest and of the smallest mean margin."""
    order = np.argsort(late.margin.mean(axis=0), kind="stable").tolist()
    largest, smallest = order[::-1][:TOP], order[:TOP]
    return [example(late, known, place) for place in largest], [example(late, known, place) for place in smallest]
