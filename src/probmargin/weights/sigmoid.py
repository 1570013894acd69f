"""Logistic down-weighting of safe examples."""

from dataclasses import dataclass

from probmargin.core.errors import UsageError
from probmargin.core.types import PerExample
from probmargin.weights.weight import WEIGHTS, Weight


@WEIGHTS.register("sigmoid", examples=[{"slope": 10.0, "bias": -0.5}, {"slope": 2.0, "bias": 0.0}, {"slope": 0.0}])
@dataclass(frozen=True, kw_only=True)
class Sigmoid(Weight):
    r"""Logistic down-weighting of safe examples.

        w_i = 1 / (1 + exp(slope * (m_i - bias)))

    Symbols:    m = margin; slope is the paper's gamma, bias its beta.
    Range:      (0, 1); 1/2 at m_i = bias.
    Gradient:   passes through; margins are detached.
    Source:     MAIL, arXiv:2106.07904. MAIL-AT uses (10, -0.5), MAIL-TRADES and MAIL-MART (2, 0).
    Deviation:  none; the released code writes the same function of the negated margin.

    >>> import torch
    >>> Sigmoid(slope=10.0, bias=-0.5)(torch.tensor([-0.5, 1.0])).tolist()      # 1/2; 1 / (1 + e^15)
    [0.5, 0.00000030590]
    """

    slope: float = 10.0
    bias: float = -0.5

    def __post_init__(self) -> None:
        if self.slope < 0:
            raise UsageError(
                f"weight.slope must be 0 or more, not {self.slope} (a safer example must not weigh more): give another"
            )

    def __call__(self, margin: PerExample) -> PerExample:
        return (-self.slope * (margin - self.bias)).sigmoid()
