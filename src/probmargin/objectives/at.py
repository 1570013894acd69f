"""Adversarial training: cross-entropy of the attacked images."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from probmargin.core.batch import BatchView, LossTerms, Need
from probmargin.core.losses import cross_entropy
from probmargin.objectives.objective import OBJECTIVES, Objective, Pass


@OBJECTIVES.register("at")
@dataclass(frozen=True, kw_only=True)
class AT(Objective):
    r"""Cross-entropy of the adversarial images.

        loss_i = w_i * CE(z(x'_i), y_i)

    Symbols:    z(x') = view.logits_adv.
    Gradient:   through the logits.
    Source:     Madry et al., arXiv:1706.06083; weighted in GAIRAT and MAIL-AT.
    Deviation:  none.

    >>> view = BatchView(labels=torch.tensor([0, 1]), logits_adv=torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
    >>> AT()(view).weighted.tolist()      # log 2; 3 + log(1 + e^-3)
    [0.6931, 3.0486]
    """

    passes: ClassVar[tuple[Pass, ...]] = ("adv",)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"logits_adv"})

    def __call__(self, view: BatchView) -> LossTerms:
        loss = cross_entropy(view.adv(), view.labels)
        return LossTerms(weighted=loss, plain=torch.zeros_like(loss))
