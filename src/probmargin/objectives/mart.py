"""MART: boosted cross-entropy, and a divergence that counts misclassified examples more."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from probmargin.core.batch import BatchView, LossTerms, Need
from probmargin.core.errors import UsageError
from probmargin.core.losses import KLDirection, cross_entropy, label_mask
from probmargin.core.types import Labels, Logits, PerExample
from probmargin.objectives.objective import OBJECTIVES, Objective, Pass

_MARGIN_FLOOR, _LOG_FLOOR, _FACTOR_FLOOR = 1e-4, 1e-12, 1e-7


def boosted_cross_entropy(logits: Logits, labels: Labels) -> PerExample:
    """CE - log(1.0001 - p_k* + 1e-12), k* the most probable wrong class.

    1 - p_k* is formed as the mass of the other classes: the subtraction would cancel in float32.
    """
    wrong = logits.detach().masked_fill(label_mask(logits, labels), -torch.inf).argmax(dim=1)
    others = logits.masked_fill(label_mask(logits, wrong), -torch.inf)
    remaining = (others.logsumexp(dim=1) - logits.logsumexp(dim=1)).exp()
    return cross_entropy(logits, labels) - (_MARGIN_FLOOR + remaining + _LOG_FLOOR).log()


def weighted_divergence(logits_nat: Logits, logits_adv: Logits, labels: Labels, direction: KLDirection) -> PerExample:
    """[sum_k p_k (log p_k - log(q_k + 1e-12))] * (1.0000001 - p_nat[y]), p and q as the direction says."""
    log_nat, log_adv = F.log_softmax(logits_nat, dim=1), F.log_softmax(logits_adv, dim=1)
    log_p, log_q = (log_nat, log_adv) if direction == "nat_adv" else (log_adv, log_nat)
    divergence = (log_p.exp() * (log_p - (log_q.exp() + _LOG_FLOOR).log())).sum(dim=1)
    # 1 - p_y as the mass of the other classes, for the same reason as above.
    missing = log_nat.exp().masked_fill(label_mask(log_nat, labels), 0.0).sum(dim=1)
    return divergence * (_FACTOR_FLOOR + missing)


@OBJECTIVES.register("mart", examples=[{}, {"beta": 6.0, "kl_direction": "adv_nat"}])
@dataclass(frozen=True, kw_only=True)
class Mart(Objective):
    r"""Boosted cross-entropy plus beta times a divergence that counts misclassified examples more.

        loss_i = w_i * BCE_i + beta * MKL_i
        BCE_i = CE(z(x'_i), y_i) - log(1.0001 - p_k*(x'_i) + 1e-12),    k* = most probable wrong class
        MKL_i = [sum_k p_k(x_i) (log p_k(x_i) - log(p_k(x'_i) + 1e-12))] * (1.0000001 - p_y(x_i))

    Symbols:    z(x) = view.logits_nat, z(x') = view.logits_adv.
    Gradient:   through everything, the factor 1 - p_y too.
    Source:     MART (ICLR 2020); weighted in MAIL-MART, arXiv:2106.07904.
    Deviation:  MAIL's algorithm prints a minus before the boosted CE, and KL(p(x')||p(x)); the code's signs and
                direction are taken. Differences from one are formed without cancellation.

    >>> logits = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    >>> terms = Mart(beta=5.0)(BatchView(labels=torch.tensor([0, 1]), logits_nat=logits, logits_adv=logits))
    >>> terms.weighted.tolist()     # log 2 + log 2; log(1 + e^2) twice, each but for 1e-4
    [1.3861, 4.2530]
    >>> terms.plain.abs().max() < 1e-5      # no divergence between equal predictions
    tensor(True)
    """

    beta: float = 5.0
    kl_direction: KLDirection = "nat_adv"
    passes: ClassVar[tuple[Pass, ...]] = ("nat", "adv")

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise UsageError(f"objective.beta must be 0 or more, not {self.beta}")

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"logits_nat", "logits_adv"})

    def __call__(self, view: BatchView) -> LossTerms:
        divergence = weighted_divergence(view.nat(), view.adv(), view.labels, self.kl_direction)
        return LossTerms(weighted=boosted_cross_entropy(view.adv(), view.labels), plain=self.beta * divergence)
