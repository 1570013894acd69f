"""GAIRAT's weights: functions of the attack steps an example survives."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from probmargin.core.errors import UsageError
from probmargin.core.records import Unbounded
from probmargin.core.types import PerExample
from probmargin.weights.weight import WEIGHTS, Weight

Schedule = Literal["fixed", "linear", "piecewise"]
Half = Literal["real", "int"]

# Epochs (counted from 1) and how much lower lambda is from there on, for the two lengths GAIRAT's script knows.
_LONG_RUN = (120, ((90, 1.0), (110, 1.5)))
_SHORT_RUN = (100, ((60, 2.0),))


def scheduled_lambda(schedule: Schedule, lam: float, lam_max: float, *, epoch: int, epochs: int) -> float:
    """Lambda in one epoch (from 0) of a run. Before the burn-in ends weights are one, so the schedule starts there.

    fixed: lam. linear: from lam_max down to lam at the end. piecewise, as GAIRAT's script means it (its branches
    cannot be reached): lower by 1.0 and 1.5 late in a run of 110 epochs or more, by 2.0 in a shorter one; other
    lengths are scaled.

    >>> [scheduled_lambda("piecewise", -1.0, 4.0, epoch=e, epochs=120) for e in (59, 89, 109)]
    [-1.0, -2.0, -2.5]
    >>> scheduled_lambda("linear", -1.0, 4.0, epoch=49, epochs=100)
    1.5
    """
    if schedule == "fixed":
        return lam
    if schedule == "linear":
        return lam_max - (epoch + 1) / epochs * (lam_max - lam)
    length, drops = _LONG_RUN if epochs >= 110 else _SHORT_RUN
    reached = [drop for start, drop in drops if (epoch + 1) * length >= start * epochs]
    return lam - max(reached, default=0.0)


def centred_steps(steps: PerExample, num_steps: int, half: Half) -> PerExample:
    """5 (h - kappa) / h with h = K/2: 5 for an example that falls at once, -5 for one that survives all K steps."""
    middle = num_steps / 2 if half == "real" else num_steps // 2
    return 5.0 * (middle - steps) / middle


@dataclass(frozen=True, kw_only=True)
class _Lambda:
    """What the two functions with a lambda have in common; a component never subclasses another."""

    lam: Unbounded = -1.0
    """Shift; +inf gives uniform weights."""
    schedule: Schedule = "fixed"
    lam_max: Unbounded = math.inf
    """Where the linear schedule starts; must then be finite."""
    half: Half = "real"
    """K/2, or int(K/2) as in GAIRAT's code; they differ for odd K."""
    num_steps: int | None = None
    """K; the attack's own unless given."""
    reads: ClassVar[Literal["margin", "steps"]] = "steps"

    def __post_init__(self) -> None:
        if self.schedule == "linear" and not math.isfinite(self.lam_max):
            raise UsageError("the linear lambda schedule needs a finite start: --set weight.lam_max=4")
        if self.num_steps is not None and self.num_steps < 2:
            raise UsageError(f"GAIRAT's weights need an attack of 2 steps or more, not {self.num_steps}")

    def resolve(self, *, epoch: int, epochs: int, num_steps: int) -> Self:
        """Fix lambda for the epoch, and K."""
        lam = scheduled_lambda(self.schedule, self.lam, self.lam_max, epoch=epoch, epochs=epochs)
        return replace(self, lam=lam, schedule="fixed", num_steps=self.num_steps or num_steps)

    def _argument(self, margin: PerExample) -> PerExample:
        if self.num_steps is None:
            raise ValueError("num_steps is not known yet: resolve the weight for an epoch, or give it")
        return self.lam + centred_steps(margin, self.num_steps, self.half)


@WEIGHTS.register(
    "gairat_tanh",
    examples=[
        {"num_steps": 10},
        {"lam": 0.0, "num_steps": 7, "half": "int"},
        {"lam": "inf", "num_steps": 10},
    ],
)
@dataclass(frozen=True, kw_only=True)
class GairatTanh(_Lambda, Weight):
    r"""GAIRAT's hyperbolic tangent of the steps survived.

        w_i = (1 + tanh(u_i)) / 2 = sigmoid(2 u_i),    u_i = lam + 5 (h - m_i) / h,  h = K/2

    Symbols:    m = LPS, K = num_steps, lam = Lambda.
    Range:      [0, 1].
    Gradient:   none.
    Source:     GAIRAT, arXiv:2010.01736. Lambda -1 for GAIRAT, 0 for GAIR-FAT, 3 for GAIR-RST.
    Deviation:  evaluated as sigmoid(2u): float32 tanh loses 1e-3 relative at m = K. h is real; the code takes int(K/2).

    >>> import torch
    >>> GairatTanh(num_steps=10)(torch.tensor([4.0, 0.0])).tolist()          # u = 0 and 4
    [0.5, 0.999665]
    """

    def __call__(self, margin: PerExample) -> PerExample:
        return (2.0 * self._argument(margin)).sigmoid()


@WEIGHTS.register("gairat_sigmoid", examples=[{"num_steps": 10}, {"lam": 0.0, "num_steps": 7, "half": "int"}])
@dataclass(frozen=True, kw_only=True)
class GairatSigmoid(_Lambda, Weight):
    r"""GAIRAT's logistic function of the steps survived.

        w_i = sigmoid(u_i),    u_i = lam + 5 (h - m_i) / h,  h = K/2

    Symbols:    m = LPS, K = num_steps, lam = Lambda.
    Range:      [0, 1].
    Gradient:   none.
    Source:     GAIRAT, arXiv:2010.01736.
    Deviation:  h is real; the code takes int(K/2).

    >>> import torch
    >>> GairatSigmoid(num_steps=10)(torch.tensor([4.0, 0.0])).tolist()
    [0.5, 0.982014]
    """

    def __call__(self, margin: PerExample) -> PerExample:
        return self._argument(margin).sigmoid()


@WEIGHTS.register("gairat_discrete", examples=[{"num_steps": 10}])
@dataclass(frozen=True, kw_only=True)
class GairatDiscrete(Weight):
    r"""GAIRAT's straight line over the steps survived.

        w_i = (K + 1 - m_i) / (K + 1)

    Symbols:    m = LPS, K = num_steps.
    Range:      [1 / (K + 1), 1].
    Gradient:   none.
    Source:     GAIRAT, arXiv:2010.01736.
    Deviation:  none.

    >>> import torch
    >>> GairatDiscrete(num_steps=3)(torch.tensor([0.0, 3.0])).tolist()
    [1.0, 0.25]
    """

    num_steps: int | None = None
    """K; the attack's own unless given."""
    reads: ClassVar[Literal["margin", "steps"]] = "steps"

    def resolve(self, *, epoch: int, epochs: int, num_steps: int) -> Self:
        """Fix K."""
        return replace(self, num_steps=self.num_steps or num_steps)

    def __call__(self, margin: PerExample) -> PerExample:
        if self.num_steps is None:
            raise ValueError("num_steps is not known yet: resolve the weight for an epoch, or give it")
        return (self.num_steps + 1 - margin) / (self.num_steps + 1)
