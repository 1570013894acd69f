"""TensorBoard: scalars and histograms of an epoch."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from probmargin.reporting.dynamics import areas

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

BINS = 64


class Board:
    """Writes events.* into a run's folder; readers drop what an earlier start wrote from this epoch on."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self._folder, self._epoch = folder, epoch

    @cached_property
    def _writer(self) -> "SummaryWriter":
        """Made for the first epoch: a run that has none left to train gets no empty file."""
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._folder), purge_step=self._epoch)

    def epoch(self, metrics: dict[str, Any], **histograms: npt.NDArray[Any]) -> None:
        """Write an epoch's metrics, nested ones under their group's name, and its histograms.

        A histogram named `margin` also gives the shares of safe, boundary and wrong images.
        """
        step = metrics["epoch"]
        for name, value in metrics.items():
            entries = value.items() if isinstance(value, dict) else [(None, value)]
            for part, number in entries:
                if number is not None and name != "epoch":
                    self._writer.add_scalar(f"{name}/{part}" if part else f"train/{name}", number, step)
        for name, values in histograms.items():
            self._writer.add_histogram(name, values, step, bins=BINS)
        if "margin" in histograms:
            for name, share in areas(histograms["margin"]).items():
                self._writer.add_scalar(f"areas/{name}", share, step)
        self._writer.flush()

    def close(self) -> None:
        """Finish the file."""
        if "_writer" in vars(self):
            self._writer.close()
