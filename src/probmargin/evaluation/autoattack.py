"""AutoAttack: the ensemble that judges a defence, in the order and with the budgets of its authors.

Source: Croce and Hein, arXiv:2003.01690, and the authors' repository at a392200. Noise is keyed by example, so a result
does not depend on the batch size, which only caps memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

import torch

from probmargin.attacks.apgd import APGD
from probmargin.attacks.attack import Attack
from probmargin.attacks.balls import Norm
from probmargin.attacks.fab import FAB
from probmargin.attacks.pgd import PGD
from probmargin.attacks.square import Square
from probmargin.core.errors import UsageError, unknown_name
from probmargin.core.losses import is_correct
from probmargin.core.types import Classifier, Images, Labels
from probmargin.evaluation.checks import (
    class_count_warning,
    inner_gradient_warning,
    randomness_warning,
    softmax_warning,
    square_warning,
    undefined_gradient_warning,
    zero_gradient_warning,
)
from probmargin.evaluation.opening import Threat, opened
from probmargin.evaluation.search import (
    Finding,
    Outcome,
    Parts,
    Stage,
    Subject,
    aims,
    run_stages,
)

Version = Literal["standard", "plus", "rand"]
VERSIONS: dict[str, tuple[str, ...]] = {
    "standard": ("apgd-ce", "apgd-t", "fab-t", "square"),
    "plus": ("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"),
    "rand": ("apgd-ce", "apgd-dlr"),
}
ATTACK_NAMES = ("apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "fab", "square")

OnChunk = Callable[[str, torch.Tensor, torch.Tensor, Images], None]
"""Called after each chunk with the attack's name, the examples' positions, which of them broke, and their images."""

_LOOKED_AT = 256
"""Images that the checks before an ensemble look at."""
_THIN = 1e-4
_CHOSEN = "the list of attacks was chosen by hand"


class Options(TypedDict, total=False):
    """How an ensemble runs: nothing here changes what it finds, but for the seed and the ids."""

    seed: int
    """Of the noise; 0 unless given."""
    ids: torch.Tensor | None
    """Names of the examples for the noise, their positions unless given; a shard passes those of the whole set."""
    batch_size: int | None
    """Caps memory: images attacked at once, found by itself unless given; Square looks ahead in up to 1,024, and on
    CUDA 2,048."""
    log: Callable[[str], None] | None
    """Takes the lines AutoAttack prints."""
    on_chunk: OnChunk | None


@dataclass(frozen=True)
class AutoAttackResult:
    """What an ensemble found; `robust` and `seconds` are in the order the attacks ran."""

    x_adv: Images
    """A confirmed adversarial image where there is one, else the clean image."""
    robust: dict[str, torch.Tensor]
    """Which examples still stand, (B,), after "clean" and after each attack."""
    broken_by: tuple[str, ...]
    """For each example "clean", the attack that broke it, or "" where it is robust."""
    seconds: dict[str, float]
    is_standard: bool
    """Whether the number may be called AutoAttack's standard robust accuracy."""
    reason: str
    """Why it may not; empty where it may."""
    warnings: tuple[str, ...]
    thin_breaks: int
    """Confirmed breaks with a margin within 1e-4 of zero, which other hardware may not confirm."""

    def accuracy(self, after: str | None = None) -> float:
        """Share of the examples that stand after an attack; after the last one where none is named."""
        name = list(self.robust)[-1] if after is None else after
        return float(self.robust[name].double().mean())


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


def _choose(
    version: Version, attacks: Sequence[str] | Mapping[str, Attack] | None, norm: Norm, eps: float
) -> dict[str, Attack]:
    if version not in VERSIONS:
        raise unknown_name("version of AutoAttack", version, VERSIONS)
    if isinstance(attacks, Mapping):
        return dict(attacks)
    if attacks is not None and version != "standard":
        raise UsageError(
            f"both attacks and version={version!r} are given: give either a list of attacks or a version, not both"
        )
    names = VERSIONS[version] if attacks is None else attacks
    return {name: build_attack(name, norm, eps, version) for name in names}


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

    def __init__(self, subject: Subject, num_stages: int, say: Callable[[str], None]) -> None:
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


def run_autoattack(
    model: Classifier,
    x: Images,
    labels: Labels,
    *,
    norm: Norm,
    eps: float,
    version: Version = "standard",
    attacks: Sequence[str] | Mapping[str, Attack] | None = None,
    **options: Unpack[Options],
) -> AutoAttackResult:
    """Run an ensemble on a model in eval mode, each attack on what the ones before it left standing.

    `attacks` replaces the version's list: names of `ATTACK_NAMES`, or components by a name of one's own. `options`
    are `seed`, `ids`, `batch_size`, `log` and `on_chunk`, see `Options`.

    >>> def linear(x): return x.flatten(1) @ torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> x = torch.tensor([[0.55, 0.5], [0.9, 0.2], [0.2, 0.9]]).view(3, 1, 1, 2)
    >>> result = run_autoattack(linear, x, torch.tensor([0, 0, 0]), norm="Linf", eps=0.1, attacks=["apgd-ce"])
    >>> result.broken_by, result.accuracy("clean"), result.accuracy()   # .05 apart; .7 apart; wrong as it stands
    (('apgd-ce', '', 'clean'), 0.6666, 0.3333)
    """
    stages = [Stage(name, attack) for name, attack in _choose(version, attacks, norm, eps).items()]
    threat = Threat(norm, eps, options.get("seed", 0), options.get("ids"))
    with opened(model, x, labels, threat, options.get("batch_size"), stages) as (subject, ready):
        warnings = [*ready.notes, *warnings_before(subject, stages)]
        speaker = Speaker(subject, len(stages), options.get("log") or _silent)
        speaker.begin()
        result = _Collected(subject, speaker, options.get("on_chunk"))
        outcome = run_stages(subject, stages, subject.correct, Parts(), result.take, speaker.stage)
    robust = {"clean": subject.correct, **outcome.after}
    warnings += square_warning(robust)
    speaker.end(list(robust.values())[-1], warnings)
    reason = _CHOSEN if attacks is not None else why_not_standard(version, subject.logits.shape[1])
    return AutoAttackResult(
        x_adv=result.x_adv.to(x.device),
        robust={name: flags.to(x.device) for name, flags in robust.items()},
        broken_by=tuple(result.broken_by),
        seconds=outcome.seconds,
        is_standard=not reason,
        reason=reason,
        warnings=tuple(warnings),
        thin_breaks=speaker.thin_breaks,
    )


class _Collected:
    """Gathers adversarial images and who found them."""

    def __init__(self, subject: Subject, speaker: Speaker, on_chunk: OnChunk | None) -> None:
        # On the host, so that a device holds the images once.
        self.x_adv = subject.x.to("cpu", copy=True)
        self.broken_by = ["" if right else "clean" for right in subject.correct.tolist()]
        self._speaker, self._on_chunk = speaker, on_chunk

    def take(self, stage: Stage, finding: Finding) -> None:
        """Take what a chunk brought."""
        self._speaker.chunk(stage, finding)
        assert finding.x_adv is not None
        won = finding.rows[finding.broken]
        self.x_adv[won] = finding.x_adv.cpu()[finding.broken]
        for row in won.tolist():
            self.broken_by[row] = stage.name
        if self._on_chunk is not None:
            self._on_chunk(stage.name, finding.rows, finding.broken, finding.x_adv)


def run_attack_once(
    attack_name: str,
    model: Classifier,
    x: Images,
    labels: Labels,
    *,
    norm: Norm,
    eps: float,
    **options: Unpack[Options],
) -> AutoAttackResult:
    """Run one attack of `ATTACK_NAMES` alone, on every correctly classified example."""
    return run_autoattack(model, x, labels, norm=norm, eps=eps, attacks=[attack_name], **options)


def _silent(_: str) -> None:
    """Say nothing."""
