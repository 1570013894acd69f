"""A run that has just been trained."""

from dataclasses import dataclass

from torch import nn

from probmargin.runs.run import Run as StoredRun


@dataclass(frozen=True)
class Run(StoredRun):
    """A run that has just been trained: its folder, and the model in memory."""

    trained: nn.Module

    @property
    def model(self) -> nn.Module:
        """The trained network in eval mode."""
        return self.trained
