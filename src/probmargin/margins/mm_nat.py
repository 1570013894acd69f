"""Multi-class margin of the clean image's logits."""

from dataclasses import dataclass
from typing import ClassVar

from probmargin.core.batch import BatchView, Need
from probmargin.core.losses import logit_margin
from probmargin.core.types import PerExample
from probmargin.margins.margin import MARGINS, Margin


@MARGINS.register("mm_nat")
@dataclass(frozen=True, kw_only=True)
class MMNat(Margin):
    r"""Multi-class margin of the clean image's logits.

        m_i = z_y(x_i) - max_{j != y_i} z_j(x_i)

    Symbols:    z = view.logits_nat, y = view.labels.
    Range:      the reals; its scale differs from class to class and grows during training.
    Gradient:   detached.
    Source:     MAIL, arXiv:2106.07904, appendix (MM), after Koltchinskii and Panchenko.
    Deviation:  none.

    >>> import torch
    >>> logits = torch.tensor([[3.0, 1.0, 0.0], [1.0, 0.0, 4.0]])
    >>> MMNat()(BatchView(labels=torch.tensor([0, 0]), logits_nat=logits)).tolist()
    [2.0, -3.0]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"logits_nat"})

    def __call__(self, view: BatchView) -> PerExample:
        return logit_margin(view.nat().detach(), view.labels)
