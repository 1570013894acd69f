"""Normalisers: what a batch of raw weights is scaled to."""

from dataclasses import dataclass
from typing import Literal

import torch

from probmargin.core.errors import UsageError
from probmargin.core.types import PerExample, Reduce
from probmargin.weights.weight import NORMALIZERS, Normalizer

Scope = Literal["global", "local"]


def _scaled(weight: PerExample, reduce: Reduce, scope: Scope, mean: bool) -> PerExample:
    """Divide by the batch's sum, or mean, of weights; ones where the sum is zero."""
    total = torch.stack([weight.sum(), torch.full_like(weight[0], float(len(weight)))])
    if scope == "global":
        total = reduce(total)
    weight_sum, count = total[0], total[1]
    is_empty = weight_sum <= 0
    scaled = torch.where(is_empty, 1.0, weight / weight_sum.masked_fill(is_empty, 1.0) * count)
    return scaled if mean else scaled / count


@NORMALIZERS.register("mean_one", examples=[{}, {"scope": "local"}])
@dataclass(frozen=True, kw_only=True)
class MeanOne(Normalizer):
    r"""Mean one over the batch.

        omega_i = B * w_i / sum_j w_j

    Symbols:    w = raw weights, B = size of the global batch.
    Range:      [0, B]; a batch of zeros becomes ones.
    Gradient:   passes through.
    Source:     MAIL, arXiv:2106.07904 (its M read as the batch size); GAIRAT's released code.
    Deviation:  MAIL's released code multiplies by 3 instead, see `fixed`.

    >>> MeanOne()(torch.tensor([3.0, 1.0]), reduce=lambda total: total).tolist()
    [1.5, 0.5]
    """

    scope: Scope = "global"

    def __call__(self, weight: PerExample, *, reduce: Reduce) -> PerExample:
        return _scaled(weight, reduce, self.scope, mean=True)


@NORMALIZERS.register("sum_one", examples=[{}, {"scope": "local"}])
@dataclass(frozen=True, kw_only=True)
class SumOne(Normalizer):
    r"""Sum one over the batch.

        omega_i = w_i / sum_j w_j

    Symbols:    w = raw weights of the global batch.
    Range:      [0, 1]; a batch of zeros becomes 1/B each.
    Gradient:   passes through.
    Source:     MAIL and GAIRAT state the constraint so, beside a loss summed over the batch.
    Deviation:  none; with the mean reduction it divides the loss by B once more.

    >>> SumOne()(torch.tensor([3.0, 1.0]), reduce=lambda total: total).tolist()
    [0.75, 0.25]
    """

    scope: Scope = "global"

    def __call__(self, weight: PerExample, *, reduce: Reduce) -> PerExample:
        return _scaled(weight, reduce, self.scope, mean=False)


@NORMALIZERS.register("fixed", examples=[{}, {"factor": 3.0}])
@dataclass(frozen=True, kw_only=True)
class Fixed(Normalizer):
    r"""A fixed factor, whatever the batch.

        omega_i = factor * w_i

    Symbols:    w = raw weights.
    Range:      [0, inf).
    Gradient:   passes through.
    Source:     MAIL's released code, factor 3.
    Deviation:  a batch of zeros becomes ones there only under the other normalisers; here it stays zero.

    >>> Fixed(factor=3.0)(torch.tensor([0.5, 1.0]), reduce=lambda total: total).tolist()
    [1.5, 3.0]
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise UsageError(f"normalizer.factor must be above 0, not {self.factor}")

    def __call__(self, weight: PerExample, *, reduce: Reduce) -> PerExample:
        return self.factor * weight
