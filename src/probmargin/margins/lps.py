"""Attack steps an example survives."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from probmargin.core.batch import BatchView, Need
from probmargin.core.types import PerExample
from probmargin.margins.margin import MARGINS, Margin


@MARGINS.register("lps", examples=[{"mode": "count_correct"}, {"mode": "first_cross"}])
@dataclass(frozen=True, kw_only=True)
class LPS(Margin):
    r"""Attack steps an example survives (least PGD steps).

        count_correct:  m_i = #{k in 0..K-1 : iterate k of x_i is classified correctly}
        first_cross:    m_i = min{k in 0..K-1 : iterate k is wrong}, K where none is

    Symbols:    iterate 0 is the noisy start, iterate K (returned, never checked) the adversarial image.
    Range:      0..K, whole numbers.
    Gradient:   none.
    Source:     GAIRAT, arXiv:2010.01736 (kappa).
    Deviation:  count_correct is GAIRAT's released code; first_cross the definition in MAIL's text, there from a
                natural start.

    >>> import torch
    >>> from probmargin.core.batch import AttackTrace
    >>> right = torch.tensor([[1, 0], [0, 0], [1, 0]]).bool()          # three steps of two examples
    >>> view = BatchView(labels=torch.tensor([0, 0]), trace=AttackTrace(3, right.float(), right, right.float()))
    >>> LPS()(view).tolist(), LPS(mode="first_cross")(view).tolist()
    ([2.0, 0.0], [1.0, 0.0])
    """

    mode: Literal["count_correct", "first_cross"] = "count_correct"
    needs: ClassVar[frozenset[Need]] = frozenset({"steps"})

    def __call__(self, view: BatchView) -> PerExample:
        trace = view.path()
        return trace.count_correct() if self.mode == "count_correct" else trace.first_cross()
