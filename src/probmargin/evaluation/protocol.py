"""What an attack's name means here; stored with every result."""

import re
from dataclasses import dataclass
from typing import Any

from probmargin.attacks.attack import Attack
from probmargin.attacks.balls import Norm, check_eps
from probmargin.attacks.pgd import PGD
from probmargin.core.errors import unknown_name
from probmargin.core.records import to_plain

STEP_SHARE = 0.003 * 255 / 8
"""Step of PGD and CW as a share of eps: 0.003 at 8/255, in proportion elsewhere."""

DESCRIPTIONS = {
    "nat": "clean images",
    "fgsm": "one sign step of size eps from the clean image",
    "pgd-20": "PGD on cross-entropy, 20 steps of 0.003 at 8/255 (in proportion elsewhere), uniform start, last iterate",
    "pgd-100": "the same with 100 steps; any pgd-N works",
    "cw": "PGD on CW's margin loss -max(MM + 50, 0), 20 steps, otherwise as pgd-20",
    "cw-100": "the same with 100 steps; any cw-N works",
}


@dataclass(frozen=True)
class Protocol:
    """A named setting in which results can be compared."""

    name: str
    norm: Norm
    eps: float
    num_examples: int | None
    """Images AutoAttack looks at; None is all."""
    summary: str


PROTOCOLS = {
    "standard": Protocol("standard", "Linf", 8 / 255, None, "all test images at 8/255"),
    "official-1000": Protocol(
        "official-1000", "Linf", 0.031, 1000, "eps 0.031 and the first 1,000 test images, as MAIL's script does"
    ),
}


def build_attack(name: str, norm: Norm, eps: float) -> Attack | None:
    """The attack a name stands for; None for clean images."""
    check_eps(norm, eps)
    if name == "nat":
        return None
    if name == "fgsm":
        return PGD(norm=norm, eps=eps, step_size=eps, num_steps=1, start="zero")
    if found := re.fullmatch(r"(pgd|cw)(?:-([1-9]\d*))?", name):
        loss, steps = ("ce" if found[1] == "pgd" else "cw"), int(found[2] or 20)
        step_size = STEP_SHARE * eps
        return PGD(
            loss="ce" if loss == "ce" else "cw",
            norm=norm,
            eps=eps,
            step_size=step_size,
            num_steps=steps,
            start="uniform_eps",
            clamp_start=True,
        )
    raise unknown_name("attack", name, DESCRIPTIONS)


def meaning(attack: Attack | None) -> dict[str, Any]:
    """An attack as stored with its result."""
    return {"name": "nat"} if attack is None else dict(to_plain(attack))
