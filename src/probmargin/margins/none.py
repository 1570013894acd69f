"""No margin, for methods that weigh all examples alike."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from probmargin.core.batch import BatchView, Need
from probmargin.core.types import PerExample
from probmargin.margins.margin import MARGINS, Margin


@MARGINS.register("none")
@dataclass(frozen=True, kw_only=True)
class NoMargin(Margin):
    r"""No margin: every example measures zero.

        m_i = 0

    Symbols:    none.
    Range:      {0}.
    Gradient:   none.
    Source:     AT, TRADES, MART and the other methods that weigh all examples alike.
    Deviation:  none.

    >>> NoMargin()(BatchView(labels=torch.tensor([0, 1]))).tolist()
    [0.0, 0.0]
    """

    needs: ClassVar[frozenset[Need]] = frozenset()
    direction: ClassVar[Literal["safer", "none"]] = "none"

    def __call__(self, view: BatchView) -> PerExample:
        return torch.zeros(len(view.labels), device=view.labels.device)
