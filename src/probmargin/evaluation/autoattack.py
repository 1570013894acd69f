"""AutoAttack: the ensemble that judges a defence, in the order and with the budgets of its authors.

Source: Croce and Hein, arXiv:2003.01690, and the authors' repository at a392200. Noise is keyed by example, so a result
does not depend on the batch size, which only caps memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, TypeVar, Unpack

import torch

from probmargin.attacks.apgd import APGD
from probmargin.attacks.attack import Attack, logits_without_gradient
from probmargin.attacks.balls import Norm
from probmargin.attacks.fab import FAB
from probmargin.attacks.square import Square
from probmargin.core.errors import UsageError, unknown_name
from probmargin.core.frozen import frozen
from probmargin.core.losses import is_correct
from probmargin.core.types import Classifier, Images, Labels, Logits
from probmargin.evaluation._autoattack_checks import (
    check_images,
    check_logits,
    class_count_warning,
    in_full_precision,
    inner_gradient_warning,
    randomness_warning,
    softmax_warning,
    square_warning,
    zero_gradient_warning,
)
from probmargin.evaluation._autoattack_ensemble import Ensemble, OnChunk, aims

T = TypeVar("T")
Version = Literal["standard", "plus", "rand"]
VERSIONS: dict[str, tuple[str, ...]] = {
    "standard": ("apgd-ce", "apgd-t", "fab-t", "square"),
    "plus": ("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"),
    "rand": ("apgd-ce", "apgd-dlr"),
}
ATTACK_NAMES = ("apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "fab", "square")

_CHUNK = 512


class Options(TypedDict, total=False):
    """How an ensemble runs: nothing here changes what it finds, but for the seed and the ids."""

    seed: int
    """Of the noise; 0 unless given."""
    ids: torch.Tensor | None
    """Names of the examples for the noise, their positions unless given; a shard passes those of the whole set."""
    batch_size: int | None
    """The most images in a forward pass; 512 unless given."""
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
        raise UsageError(f"give either a list of attacks or version={version!r}, not both")
    names = VERSIONS[version] if attacks is None else attacks
    return {name: build_attack(name, norm, eps, version) for name in names}


def _not_standard(version: Version, attacks: object, num_classes: int) -> str:
    if attacks is not None:
        return "the list of attacks was chosen by hand"
    if version != "standard":
        return f"version {version!r} is another ensemble"
    if num_classes < 4:
        return f"with {num_classes} classes apgd-t uses the logit margin in place of the targeted DLR loss"
    return ""


def _warnings_before(
    call: Classifier, x: Images, labels: Labels, logits: Logits, chosen: Mapping[str, Attack]
) -> list[str]:
    """Look at the first chunk of images; a random output is what eot is for, so it is no fault there."""
    found = softmax_warning(logits) + inner_gradient_warning(call, x[:1])
    losses = [attack for attack in chosen.values() if isinstance(attack, APGD)]
    if not any(attack.eot > 1 for attack in losses):
        found += randomness_warning(call, x, labels)
    if any(aims(attack) for attack in chosen.values()):
        found += class_count_warning(logits.shape[1])
    return found + [line for attack in losses for line in zero_gradient_warning(call, x, labels, attack)]


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
    chosen = _choose(version, attacks, norm, eps)
    check_images(x, labels)
    full, warnings = in_full_precision(model)
    say = options.get("log") or _silent
    chunk = _or(options.get("batch_size"), _CHUNK)
    if chunk < 1:
        raise UsageError(f"batch_size must be 1 or more, not {chunk}")
    with frozen(full, "eval") as call:
        logits = torch.cat([logits_without_gradient(call, part) for part in x.split(chunk)])
        check_logits(logits, labels)
        warnings += _warnings_before(call, x[:chunk], labels[:chunk], logits[:chunk], chosen)
        ensemble = Ensemble(
            call=call,
            x=x,
            labels=labels,
            ids=_or(options.get("ids"), torch.arange(len(x))).to(x.device),
            norm=norm,
            eps=eps,
            seed=options.get("seed", 0),
            chunk=chunk,
            flags=is_correct(logits, labels),
            num_classes=logits.shape[1],
            on_chunk=options.get("on_chunk"),
        )
        robust = {"clean": ensemble.flags.clone()}
        say(f"initial accuracy: {ensemble.standing():.2%}")
        for name, attack in chosen.items():
            ensemble.run(name, attack)
            robust[name] = ensemble.flags.clone()
            spent = sum(ensemble.seconds.values())
            say(f"robust accuracy after {name.upper()}: {ensemble.standing():.2%} (total time {spent:.1f} s)")
    warnings += square_warning(robust)
    for line in warnings:
        say(f"warning: {line}")
    say(f"robust accuracy: {ensemble.standing():.2%}")
    reason = _not_standard(version, attacks, logits.shape[1])
    return AutoAttackResult(
        x_adv=ensemble.x_adv,
        robust=robust,
        broken_by=tuple(ensemble.broken_by),
        seconds=ensemble.seconds,
        is_standard=not reason,
        reason=reason,
        warnings=tuple(warnings),
        thin_breaks=ensemble.thin_breaks,
    )


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


def _or(value: T | None, default: T) -> T:
    return default if value is None else value
