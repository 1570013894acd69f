"""Multi-class margin of the adversarial image's logits."""

from dataclasses import dataclass
from typing import ClassVar

from probmargin.core.batch import BatchView, Need
from probmargin.core.losses import logit_margin
from probmargin.core.types import PerExample
from probmargin.margins.margin import MARGINS, Margin


@MARGINS.register("mm_adv")
@dataclass(frozen=True, kw_only=True)
class MMAdv(Margin):
    r"""Multi-class margin of the adversarial image's logits.

        m_i = z_y(x'_i) - max_{j != y_i} z_j(x'_i)

    Symbols:    z = view.logits_adv, y = view.labels.
    Range:      the reals; its scale differs from class to class and grows during training.
    Gradient:   detached.
    Source:     MAIL, arXiv:2106.07904, appendix (MM), after Koltchinskii and Panchenko.
    Deviation:  the appendix prints it on x_i; its table compares it with PM-adv, so this one is the row.

    >>> import torch
    >>> logits = torch.tensor([[3.0, 1.0, 0.0], [1.0, 0.0, 4.0]])
    >>> MMAdv()(BatchView(labels=torch.tensor([0, 0]), logits_adv=logits)).tolist()
    [2.0, -3.0]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"logits_adv"})

    def __call__(self, view: BatchView) -> PerExample:
        return logit_margin(view.adv().detach(), view.labels)
