"""Training on clean images."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from probmargin.core.batch import BatchView, LossTerms, Need
from probmargin.core.losses import cross_entropy
from probmargin.objectives.objective import OBJECTIVES, Objective, Pass


@OBJECTIVES.register("standard")
@dataclass(frozen=True, kw_only=True)
class Standard(Objective):
    r"""Cross-entropy of the clean images.

        loss_i = w_i * CE(z(x_i), y_i)

    Symbols:    z(x) = view.logits_nat.
    Gradient:   through the logits.
    Source:     ordinary training, the baseline without robustness.
    Deviation:  none.

    >>> view = BatchView(labels=torch.tensor([0, 1]), logits_nat=torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
    >>> Standard()(view).weighted.tolist()      # log 2; 3 + log(1 + e^-3)
    [0.6931, 3.0486]
    """

    passes: ClassVar[tuple[Pass, ...]] = ("nat",)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"logits_nat"})

    def __call__(self, view: BatchView) -> LossTerms:
        loss = cross_entropy(view.nat(), view.labels)
        return LossTerms(weighted=loss, plain=torch.zeros_like(loss))
