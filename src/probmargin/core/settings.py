"""Settings of a recipe that several layers read."""

from dataclasses import dataclass
from typing import Literal

from probmargin.core.errors import UsageError

PIXEL_ROUNDING = 1e-6
"""What arithmetic may leave pixels outside [0, 1] by, as that of a normalisation and back."""
MOST_SEED = 2**31 - 1
"""What every generator takes."""


def check_seed(seed: int) -> None:
    """Refuse a seed that generators would take for another."""
    if not 0 <= seed <= MOST_SEED:
        raise UsageError(f"a seed must be from 0 to {MOST_SEED}, not {seed}")


@dataclass(frozen=True, kw_only=True)
class AWP:
    """Adversarial weight perturbation: ascend in the weights by a relative step before the descent."""

    gamma: float = 0.01
    """Size of the step, relative to each weight tensor's norm."""
    warmup_epochs: int = 0
    """Epochs without perturbation."""

    def __post_init__(self) -> None:
        if not self.gamma > 0:
            raise UsageError(f"awp.gamma must be above 0, not {self.gamma}; use --set awp=none to switch AWP off")
        if self.warmup_epochs < 0:
            raise UsageError(f"awp.warmup_epochs must be 0 or more, not {self.warmup_epochs}")


@dataclass(frozen=True, kw_only=True)
class EMA:
    """Exponential moving average of the parameters, kept beside training and evaluated instead of them."""

    decay: float = 0.995
    """Share of the old average that stays at each step; while few steps are taken, less stays of where they began."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise UsageError(f"ema.decay must be in [0, 1), not {self.decay}")

    def decay_after(self, steps: int) -> float:
        """The share that stays in the step after `steps` others: min(decay, (1 + steps) / (10 + steps)).

        Without it the average of a short run is mostly the random weights it began with.

        >>> [round(EMA(decay=0.9).decay_after(steps), 3) for steps in (0, 1, 80, 81, 1000)]
        [0.1, 0.182, 0.9, 0.9, 0.9]
        """
        return min(self.decay, (1 + steps) / (10 + steps))


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Random crop and flip of the training images."""

    pad: int = 4
    """Pixels added on each side before the crop; 0 is no crop."""
    padding: Literal["zero", "reflect"] = "zero"
    flip: bool = True
    """Mirror half of the images."""

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise UsageError(f"augment.pad must be 0 or more, not {self.pad}")
