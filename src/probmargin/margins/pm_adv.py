"""Probabilistic margin of the adversarial image."""

from dataclasses import dataclass
from typing import ClassVar

from probmargin.core.batch import BatchView, Need
from probmargin.core.losses import probabilistic_margin
from probmargin.core.types import PerExample
from probmargin.margins.margin import MARGINS, Margin


@MARGINS.register("pm_adv")
@dataclass(frozen=True, kw_only=True)
class PMAdv(Margin):
    r"""Probabilistic margin of the adversarial image.

        m_i = p_y(x'_i) - max_{j != y_i} p_j(x'_i),    p = softmax(f(x'_i))

    Symbols:    f(x') = view.logits_adv, y = view.labels.
    Range:      [-1, 1]; m_i > 0 iff x'_i is classified correctly.
    Gradient:   detached.
    Source:     MAIL, arXiv:2106.07904, PM-adv.
    Deviation:  sign; the released code computes -m_i.

    >>> import torch
    >>> logits = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1]]).log()
    >>> PMAdv()(BatchView(labels=torch.tensor([0, 0]), logits_adv=logits)).tolist()
    [0.50, -0.30]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"logits_adv"})

    def __call__(self, view: BatchView) -> PerExample:
        return probabilistic_margin(view.adv().detach(), view.labels)
