"""Fall of the label's probability along the attack."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from probmargin.core.batch import BatchView, Need
from probmargin.core.types import PerExample
from probmargin.margins.margin import MARGINS, Margin


@MARGINS.register("pm_dif")
@dataclass(frozen=True, kw_only=True)
class PMDif(Margin):
    r"""Fall of the label's probability from the clean image to the first wrong iterate.

        m_i = p_y(x_i) - p_y(x_i^(t_i)),    t_i = LPS (first crossing; K where none is wrong)

    Symbols:    both probabilities from the attack's own passes, recorded in view.trace (level `path`).
    Range:      [-1, 1]; near 0 both for hopeless and for very safe examples, negative where the attack helped.
    Gradient:   detached.
    Source:     MAIL, arXiv:2106.07904, PM-dif.
    Deviation:  none in the value. The paper calls it negatively correlated with risk and in [0, 1]; it is neither,
                so it declares no direction.

    >>> import torch
    >>> from probmargin.core.batch import AttackTrace
    >>> p_y = torch.tensor([[0.8, 0.4], [0.3, 0.35], [0.2, 0.3]])      # iterates 0, 1, 2 of two examples
    >>> trace = AttackTrace(2, p_y, p_y > 0.5, p_y, prob_label_nat=torch.tensor([0.9, 0.45]))
    >>> PMDif()(BatchView(labels=torch.tensor([0, 0]), trace=trace)).tolist()    # 0.9 - 0.3, 0.45 - 0.4
    [0.60, 0.05]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"path"})
    direction: ClassVar[Literal["safer", "none"]] = "none"

    def __call__(self, view: BatchView) -> PerExample:
        trace = view.path()
        if trace.prob_label_nat is None:
            raise ValueError("PM-dif needs a trace of level 'path'")
        return trace.prob_label_nat - trace.prob_at_first_cross()
