"""The same weight for every example."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from probmargin.core.types import PerExample
from probmargin.weights.weight import WEIGHTS, Weight


@WEIGHTS.register("uniform")
@dataclass(frozen=True, kw_only=True)
class Uniform(Weight):
    r"""The same weight for every example.

        w_i = 1

    Symbols:    none.
    Range:      {1}.
    Gradient:   none.
    Source:     AT, TRADES, MART; every method during burn-in.
    Deviation:  none.

    >>> Uniform()(torch.tensor([-0.5, 0.5])).tolist()
    [1.0, 1.0]
    """

    direction: ClassVar[Literal["falls", "rises", "constant"]] = "constant"

    def __call__(self, margin: PerExample) -> PerExample:
        return torch.ones_like(margin)
