"""What the training step hands to margins and objectives, and what they hand back."""

from dataclasses import dataclass
from typing import Literal

from probmargin.core.types import Images, Labels, Logits, PerExample, PerStep

TraceLevel = Literal["none", "steps", "path"]
"""How much an attack records: nothing; iterates 0..K-1 (free, they are evaluated anyway); those, iterate K and x."""

Need = Literal["logits_nat", "logits_adv", "logits_second", "steps", "path"]
"""What a margin or an objective asks of the step: logits of a pass, or a level of the attack's trace."""


@dataclass(frozen=True)
class AttackTrace:
    """The path of an attack, one row an iterate; iterate 0 is the noisy start, iterate K the returned image."""

    num_steps: int
    """K, the updates the attack may apply."""
    loss: PerStep
    """The attack's own loss at each recorded iterate."""
    correct: PerStep
    """Boolean: was the iterate still classified as its label?"""
    prob_label: PerStep
    """p_y at each recorded iterate, in the attack's own model mode."""
    prob_label_nat: PerExample | None = None
    """p_y at the clean image; recorded at level `path`."""

    def count_correct(self) -> PerExample:
        """GAIRAT's kappa: at how many of the iterates 0..K-1 the prediction was right.

        >>> import torch
        >>> right = torch.tensor([[1, 1, 1, 0, 1, 1, 1, 1, 1, 1]]).T.bool()
        >>> AttackTrace(10, right.float(), right, right.float()).count_correct().tolist()
        [9.0]
        """
        return self.correct[: self.num_steps].sum(dim=0).to(self.prob_label.dtype)

    def first_cross(self) -> PerExample:
        """The paper's LPS: updates applied before the first wrong prediction; K where none of 0..K-1 is wrong.

        >>> import torch
        >>> right = torch.tensor([[1, 1, 1, 0, 1, 1, 1, 1, 1, 1]]).T.bool()
        >>> AttackTrace(10, right.float(), right, right.float()).first_cross().tolist()
        [3.0]
        """
        still_right = self.correct[: self.num_steps].long().cumprod(dim=0)
        return still_right.sum(dim=0).to(self.prob_label.dtype)

    def prob_at_first_cross(self) -> PerExample:
        """p_y at the first wrong iterate, at iterate K where none before it is wrong. Needs level `path`."""
        if len(self.prob_label) != self.num_steps + 1:
            raise ValueError("p_y at the first crossing needs a trace of level 'path'")
        step = self.first_cross().long()
        return self.prob_label.gather(0, step[None, :])[0]


@dataclass(frozen=True)
class AttackResult:
    """What an attack returns."""

    x_adv: Images
    """Inside the ball around the clean images and inside [0, 1]; detached."""
    trace: AttackTrace | None = None
    """The path, where it was asked for."""


@dataclass(frozen=True)
class BatchView:
    """One batch as margins and objectives see it. A field is None where nobody asked for it."""

    labels: Labels
    logits_nat: Logits | None = None
    """Logits of the clean images: of the loss pass, or of an extra pass without gradient for a margin alone."""
    logits_adv: Logits | None = None
    """Logits of the adversarial images, from the loss pass."""
    logits_second: Logits | None = None
    """Logits under the recipe's second attack (GAIR-RST's CW)."""
    trace: AttackTrace | None = None

    def nat(self) -> Logits:
        """The natural logits, or an error that names who forgot to ask for them."""
        return _present(self.logits_nat, "logits_nat")

    def adv(self) -> Logits:
        """The adversarial logits, or an error that names who forgot to ask for them."""
        return _present(self.logits_adv, "logits_adv")

    def second(self) -> Logits:
        """The logits under the second attack, or an error that names who forgot to ask for them."""
        return _present(self.logits_second, "logits_second")

    def path(self) -> AttackTrace:
        """The attack's trace, or an error that names who forgot to ask for it."""
        if self.trace is None:
            raise ValueError("this component reads the attack's trace: it must declare it in `needs`")
        return self.trace


def _present(logits: Logits | None, field: str) -> Logits:
    if logits is None:
        raise ValueError(f"this component reads {field}: it must declare it in `needs`")
    return logits


@dataclass(frozen=True)
class LossTerms:
    """Per-example loss in two parts; the batch loss is the mean of weight * weighted + plain."""

    weighted: PerExample
    """What an example's weight multiplies."""
    plain: PerExample
    """What it does not."""

    def total(self, weight: PerExample) -> PerExample:
        """Per-example loss under these weights.

        >>> import torch
        >>> LossTerms(torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])).total(torch.tensor([3.0, 0.0])).tolist()
        [13.0, 20.0]
        """
        return weight * self.weighted + self.plain
