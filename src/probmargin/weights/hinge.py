"""Linear weight that ends at the bias, falling or as printed."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from probmargin.core.errors import UsageError
from probmargin.core.types import PerExample
from probmargin.weights.weight import WEIGHTS, Weight


def _check_slope(slope: float) -> None:
    if slope <= 0:
        raise UsageError(f"weight.slope must be above 0, not {slope}")


@WEIGHTS.register("hinge", examples=[{"slope": 2.0}, {"slope": 10.0, "bias": -0.5}])
@dataclass(frozen=True, kw_only=True)
class Hinge(Weight):
    r"""Linear weight that falls to zero at the bias.

        w_i = max(0, slope * (bias - m_i))

    Symbols:    m = margin.
    Range:      [0, inf); 0 for every example safer than the bias.
    Gradient:   passes through; margins are detached.
    Source:     MAIL, arXiv:2106.07904, appendix.
    Deviation:  sign; the paper prints max(0, slope * (m_i - bias)), see `hinge_as_printed`.

    >>> import torch
    >>> Hinge(slope=2.0)(torch.tensor([-0.5, 0.5])).tolist()
    [1.0, 0.0]
    """

    slope: float = 2.0
    bias: float = 0.0

    def __post_init__(self) -> None:
        _check_slope(self.slope)

    def __call__(self, margin: PerExample) -> PerExample:
        return (self.slope * (self.bias - margin)).clamp(min=0.0)


@WEIGHTS.register("hinge_as_printed", examples=[{"slope": 2.0}, {"slope": 10.0, "bias": -0.5}])
@dataclass(frozen=True, kw_only=True)
class HingeAsPrinted(Weight):
    r"""Linear weight that rises from zero at the bias: the appendix as printed.

        w_i = max(0, slope * (m_i - bias))

    Symbols:    m = margin.
    Range:      [0, inf); safer examples weigh more.
    Gradient:   passes through; margins are detached.
    Source:     MAIL, arXiv:2106.07904, appendix.
    Deviation:  none.

    >>> import torch
    >>> HingeAsPrinted(slope=2.0)(torch.tensor([-0.5, 0.5])).tolist()
    [0.0, 1.0]
    """

    slope: float = 2.0
    bias: float = 0.0
    direction: ClassVar[Literal["falls", "rises", "constant"]] = "rises"

    def __post_init__(self) -> None:
        _check_slope(self.slope)

    def __call__(self, margin: PerExample) -> PerExample:
        return (self.slope * (margin - self.bias)).clamp(min=0.0)
