"""Probabilistic margin of the clean image."""

from dataclasses import dataclass
from typing import ClassVar

from probmargin.core.batch import BatchView, Need
from probmargin.core.losses import probabilistic_margin
from probmargin.core.types import PerExample
from probmargin.margins.margin import MARGINS, Margin


@MARGINS.register("pm_nat")
@dataclass(frozen=True, kw_only=True)
class PMNat(Margin):
    r"""Probabilistic margin of the clean image.

        m_i = p_y(x_i) - max_{j != y_i} p_j(x_i),    p = softmax(f(x_i))

    Symbols:    f(x) = view.logits_nat, y = view.labels.
    Range:      [-1, 1]; m_i > 0 iff x_i is classified correctly.
    Gradient:   detached.
    Source:     MAIL, arXiv:2106.07904, PM-nat.
    Deviation:  none; where the objective has no natural pass, the step adds one in eval mode, without gradient.

    >>> import torch
    >>> logits = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1]]).log()
    >>> PMNat()(BatchView(labels=torch.tensor([0, 0]), logits_nat=logits)).tolist()
    [0.50, -0.30]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"logits_nat"})

    def __call__(self, view: BatchView) -> PerExample:
        return probabilistic_margin(view.nat().detach(), view.labels)
