"""Two weights, one on each side of the bias."""

from dataclasses import dataclass

import torch

from probmargin.core.errors import UsageError
from probmargin.core.types import PerExample
from probmargin.weights.weight import WEIGHTS, Weight


@WEIGHTS.register("step", examples=[{"alpha": 0.2}, {"alpha": 0.5, "bias": -0.5}])
@dataclass(frozen=True, kw_only=True)
class Step(Weight):
    r"""Two weights: a small one above the bias, a large one elsewhere.

        w_i = alpha if m_i > bias else 1 - alpha

    Symbols:    m = margin.
    Range:      {alpha, 1 - alpha}, alpha in [0, 1/2].
    Gradient:   none.
    Source:     MAIL, arXiv:2106.07904, appendix (0.2 and 0.8).
    Deviation:  none.

    >>> Step()(torch.tensor([-0.5, 0.0, 0.5])).tolist()
    [0.8, 0.8, 0.2]
    """

    alpha: float = 0.2
    bias: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 0.5:
            raise UsageError(
                f"weight.alpha must be in [0, 0.5], not {self.alpha} (safer examples must not weigh more): give another"
            )

    def __call__(self, margin: PerExample) -> PerExample:
        low = torch.full_like(margin, self.alpha)
        return torch.where(margin > self.bias, low, 1.0 - low)
