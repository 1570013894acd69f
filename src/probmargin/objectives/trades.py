"""TRADES: clean cross-entropy, and a divergence between clean and attacked predictions."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from probmargin.core.batch import BatchView, LossTerms, Need
from probmargin.core.errors import UsageError
from probmargin.core.losses import KLDirection, cross_entropy, directed_kl
from probmargin.objectives.objective import OBJECTIVES, Objective, Pass

Part = Literal["kl", "nat_ce", "both", "rst_mixture"]


@OBJECTIVES.register(
    "trades",
    examples=[
        {},
        {"beta": 5.0, "kl_direction": "adv_nat"},
        {"weighted_part": "nat_ce"},
        {"weighted_part": "both"},
        {"weighted_part": "rst_mixture"},
    ],
)
@dataclass(frozen=True, kw_only=True)
class Trades(Objective):
    r"""Clean cross-entropy plus beta times a divergence of predictions.

        loss_i = CE(z(x_i), y_i) + beta * w_i * KL(p(x_i) || p(x'_i))

    Symbols:    z(x) = view.logits_nat, z(x') = view.logits_adv; the weight falls on `weighted_part`.
    Gradient:   through both arguments of the KL; no NaN where a probability underflows.
    Source:     TRADES, arXiv:1901.08573; weighted in MAIL-TRADES, arXiv:2106.07904.
    Deviation:  MAIL's text prints KL(p(x') || p(x)); all released code computes KL(p(x) || p(x')), our default.
                `rst_mixture` is GAIR-RST: beta * [w KL(p||p') + (1 - w) KL(p||p_second)], w not normalised.

    >>> nat, adv = torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    >>> terms = Trades(beta=6.0)(BatchView(labels=torch.tensor([0, 1]), logits_nat=nat, logits_adv=adv))
    >>> terms.plain.tolist(), terms.weighted.tolist()     # log 2 twice; 0 and 6 * (log((e^2 + 1) / 2) - 1)
    ([0.6931, 0.6931], [0.0, 2.6027])
    >>> mixture = Trades(beta=1.0, kl_direction="adv_nat", weighted_part="rst_mixture")
    >>> view = BatchView(labels=torch.tensor([0, 1]), logits_nat=nat, logits_adv=nat, logits_second=adv)
    >>> mixture(view).weighted.tolist()     # 0; -(p log p + q log q + log 2), p = 0.8808 and q = 1 - p
    [0.0, -0.3278]
    """

    beta: float = 6.0
    kl_direction: KLDirection = "nat_adv"
    weighted_part: Part = "kl"
    passes: ClassVar[tuple[Pass, ...]] = ("nat", "adv")

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise UsageError(f"objective.beta must be 0 or more, not {self.beta}")

    @property
    def needs(self) -> frozenset[Need]:
        if self.weighted_part == "rst_mixture":
            return frozenset({"logits_nat", "logits_adv", "logits_second"})
        return frozenset({"logits_nat", "logits_adv"})

    def __call__(self, view: BatchView) -> LossTerms:
        natural = cross_entropy(view.nat(), view.labels)
        divergence = self.beta * directed_kl(view.nat(), view.adv(), self.kl_direction)
        if self.weighted_part == "kl":
            return LossTerms(weighted=divergence, plain=natural)
        if self.weighted_part == "nat_ce":
            return LossTerms(weighted=natural, plain=divergence)
        if self.weighted_part == "both":
            return LossTerms(weighted=natural + divergence, plain=torch.zeros_like(natural))
        other = self.beta * directed_kl(view.nat(), view.second(), self.kl_direction)
        return LossTerms(weighted=divergence - other, plain=natural + other)
