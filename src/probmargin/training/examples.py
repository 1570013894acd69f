"""What each example did in an epoch: kept on the device while it runs, and in dynamics.npz where asked for."""

from collections.abc import Collection
from copy import copy
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from probmargin.core.arrays import UNREADABLE, read_arrays
from probmargin.core.errors import UsageError
from probmargin.core.losses import is_correct, probabilistic_margin
from probmargin.core.types import Labels
from probmargin.engine.files import written_aside
from probmargin.margins.lps import LPS
from probmargin.margins.none import NoMargin
from probmargin.margins.pm_adv import PMAdv
from probmargin.methods.method import Method
from probmargin.reporting.dynamics import MARGIN_NAMES, ROWS, SOME_EPOCHS
from probmargin.training.step import StepResult

_IN_OTHER_ROWS = (NoMargin(), PMAdv(), LPS())
"""Margins that need no row of their own."""

Values = npt.NDArray[np.float32]


def empty_examples(count: int, device: torch.device) -> torch.Tensor:
    """Room for one epoch: float32, one row a quantity, one column an example."""
    return torch.zeros(len(ROWS), count, device=device)


def note_examples(examples: torch.Tensor, positions: torch.Tensor, labels: Labels, result: StepResult) -> None:
    """Write a batch's values in place, without waiting for the host."""
    margin = probabilistic_margin(result.logits, labels)
    lps = torch.full_like(margin, torch.nan) if result.lps is None else result.lps
    values = (margin, result.weight, is_correct(result.logits, labels), lps, result.margin)
    examples.index_copy_(1, positions, torch.stack([value.to(examples.dtype) for value in values]))


def unknown_rows(now: Method) -> tuple[str, ...]:
    """Rows without a value of their own in an epoch of this recipe."""
    counts_steps = now.attack is not None and now.attack.records_steps
    is_own = now.is_reweighted and now.margin not in _IN_OTHER_ROWS
    return tuple(name for name, known in zip(SOME_EPOCHS, (counts_steps, is_own), strict=True) if not known)


class Dynamics:
    """dynamics.npz: `index` (N,), `epochs` (E,), and (E, N) arrays margin, weight, correct.

    Also lps where steps were counted, and, where the recipe weighs by another margin than these, recipe_margin and
    recipe_margin_name, an epoch's each.
    """

    def __init__(self, path: Path, index: torch.Tensor) -> None:
        self.path = path
        self.index = index.cpu().numpy()
        self.rows: dict[int, Values] = {}
        self.margins: dict[int, str] = {}
        """What the recipe's own margin is called, by epoch; a phase may bring another."""

    def add(self, epoch: int, values: Values, unknown: Collection[str] = (), margin: str = "") -> None:
        """Take in an epoch's values, one row of `values` for each of ROWS, but for those that are not known."""
        kept = values.copy()
        for name in unknown:
            kept[ROWS.index(name)] = np.nan
        self.rows[epoch], self.margins[epoch] = kept, "" if "recipe_margin" in unknown else margin

    def read(self, path: Path, before: int) -> None:
        """Take over the epochs before one from a file, this run's own or another's."""
        if not path.exists():
            return
        try:
            file = read_arrays(path)
            missing = np.full(file["margin"].shape, np.nan)
            parts = [file.get(name, missing) if name in SOME_EPOCHS else file[name] for name in ROWS]
            epochs = file["epochs"].tolist()
            names = file.get(MARGIN_NAMES, np.full(len(epochs), "")).tolist()
        except UNREADABLE as error:
            raise UsageError(f"{path} cannot be read ({error}); delete it, or leave --dynamics out") from None
        for row, epoch in enumerate(epochs):
            if epoch < before:
                self.margins[epoch] = names[row]
                self.rows[epoch] = np.stack([part[row].astype(np.float32) for part in parts])

    def so_far(self) -> "Dynamics":
        """The same without the epochs that are still to come."""
        kept = copy(self)
        kept.rows, kept.margins = dict(self.rows), dict(self.margins)
        return kept

    def write(self) -> None:
        """Write all epochs so far, whole or not at all."""
        if not self.rows:
            return
        epochs = sorted(self.rows)
        arrays = dict(zip(ROWS, np.stack([self.rows[epoch] for epoch in epochs], axis=1), strict=True))
        for name in SOME_EPOCHS:
            if np.isnan(arrays[name]).all():
                del arrays[name]
        arrays["correct"] = arrays["correct"] > 0
        if "recipe_margin" in arrays:
            arrays[MARGIN_NAMES] = np.array([self.margins[epoch] for epoch in epochs])
        with written_aside(self.path) as aside, aside.open("wb") as file:
            np.savez(file, index=self.index, epochs=np.array(epochs), **arrays)
