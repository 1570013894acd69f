"""AutoAttack: the ensemble that judges a defence, in the order and with the budgets of its authors.

Source: Croce and Hein, arXiv:2003.01690, and the authors' repository at a392200.
"""

from collections.abc import Sequence
from typing import Literal

import torch

from probmargin.attacks.apgd import APGD
from probmargin.attacks.attack import Attack
from probmargin.attacks.balls import Norm
from probmargin.attacks.fab import FAB
from probmargin.attacks.pgd import PGD
from probmargin.attacks.square import Square
from probmargin.core.errors import unknown_name
from probmargin.core.losses import is_correct
from probmargin.core.speech import Say
from probmargin.evaluation.checks import (
    class_count_warning,
    inner_gradient_warning,
    randomness_warning,
    softmax_warning,
    undefined_gradient_warning,
    zero_gradient_warning,
)
from probmargin.evaluation.search import Finding, Outcome, Stage, Subject, aims

Version = Literal["standard", "plus", "rand"]
VERSIONS: dict[str, tuple[str, ...]] = {
    "standard": ("apgd-ce", "apgd-t", "fab-t", "square"),
    "plus": ("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"),
    "rand": ("apgd-ce", "apgd-dlr"),
}
ATTACK_NAMES = ("apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "fab", "square")

_LOOKED_AT = 256
"""Images that the checks before an ensemble look at."""
_THIN = 1e-4


def build_attack(name: str, norm: Norm, eps: float, version: Version = "standard") -> Attack:
    """The component behind an ensemble's name, with the budget it has in a version.

    >>> build_attack("apgd-ce", "Linf", 0.1, "plus").restarts, build_attack("apgd-dlr", "Linf", 0.1, "rand").eot
    (5, 20)
    """
    restarts = 5 if version == "plus" else 1
    eot = 20 if version == "rand" else 1
    if name == "apgd-ce":
        return APGD(norm=norm, eps=eps, loss="ce", restarts=restarts, eot=eot)
    if name == "apgd-dlr":
        return APGD(norm=norm, eps=eps, loss="dlr", restarts=restarts, eot=eot)
    if name == "apgd-t":
        return APGD(norm=norm, eps=eps, loss="dlr_targeted")
    if name == "fab-t":
        return FAB(norm=norm, eps=eps)
    if name == "fab":
        return FAB(norm=norm, eps=eps, targeted=False, restarts=5)
    if name == "square":
        return Square(norm=norm, eps=eps)
    raise unknown_name("attack of AutoAttack", name, ATTACK_NAMES)


def why_not_standard(version: Version, num_classes: int) -> str:
    """Why an ensemble's number may not be called AutoAttack's standard; empty where it may.

    >>> why_not_standard("standard", 10), why_not_standard("plus", 10)
    ('', "version 'plus' is another ensemble")
    """
    if version != "standard":
        return f"version {version!r} is another ensemble"
    if num_classes < 4:
        return f"with {num_classes} classes apgd-t uses the logit margin in place of the targeted DLR loss"
    return ""


def warnings_before(subject: Subject, stages: Sequence[Stage]) -> list[str]:
    """Look at the first images; a random output is what eot is for, so it is no fault there."""
    ascents = [stage.attack for stage in stages if isinstance(stage.attack, APGD)]

    def look(rows: torch.Tensor) -> list[str]:
        # The model itself is asked: a form made for searches calls other code, and may hide what is random.
        call, x, labels = subject.judge, subject.x[rows], subject.labels[rows]
        found = softmax_warning(subject.logits[rows]) + inner_gradient_warning(call, x[:1])
        if not any(attack.eot > 1 for attack in ascents):
            found += randomness_warning(call, x)
        losses, aimed = {attack.loss for attack in ascents}, any(aims(stage.attack) for stage in stages)
        found += class_count_warning(losses, aimed, subject.logits.shape[1])
        probe = APGD(norm=subject.norm, eps=subject.eps)
        if not all(isinstance(stage.attack, Square) for stage in stages):
            found += undefined_gradient_warning(call, x, labels, ascents[0] if ascents else probe)
        climbs = any(isinstance(stage.attack, PGD) and stage.attack.loss == "ce" for stage in stages)
        probes = [*ascents, probe] if climbs else ascents
        # Where a label comes third DLR is 1 whatever the model, and its gradient zero.
        right = is_correct(subject.logits[rows], labels)
        return found + [line for one in probes for line in zero_gradient_warning(call, x[right], labels[right], one)]

    rows = torch.arange(min(_LOOKED_AT, len(subject.x)), device=subject.x.device)
    return next(subject.room.in_chunks(rows, look))


class Speaker:
    """Says what AutoAttack says, in its words, since people grep for them."""

    def __init__(self, subject: Subject, num_stages: int, say: Say) -> None:
        self.subject, self.num_stages, self.say = subject, num_stages, say
        self.largest = 0.0
        self.thin_breaks = 0
        self._done = 0

    def begin(self) -> None:
        """Before the first attack."""
        self.say(f"initial accuracy: {float(self.subject.correct.double().mean()):.2%}")

    def chunk(self, stage: Stage, finding: Finding) -> None:
        """After a chunk."""
        self.thin_breaks += int((finding.broken & (finding.score.margin > -_THIN)).sum())
        self.largest = max(self.largest, float(finding.size.max()))
        broken = int(finding.broken.sum())
        place = f"{self._done + 1}/{self.num_stages}"
        self.say(f"{stage.name} - {place} - {broken} out of {len(finding.rows)} successfully perturbed")

    def stage(self, stage: Stage, outcome: Outcome) -> None:
        """After an attack."""
        self._done += 1
        share, spent = float(outcome.after[stage.name].double().mean()), sum(outcome.seconds.values())
        self.say(f"robust accuracy after {stage.name.upper()}: {share:.2%} (total time {spent:.1f} s)")

    def end(self, standing: torch.Tensor, warnings: Sequence[str]) -> None:
        """After the last attack."""
        self.say(f"max {self.subject.norm} perturbation: {self.largest:.5f}")
        for line in warnings:
            self.say(f"warning: {line}")
        self.say(f"robust accuracy: {float(standing.double().mean()):.2%}")
