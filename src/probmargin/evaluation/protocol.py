"""What an attack's name means here; stored with every result."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from probmargin.attacks.attack import Attack
from probmargin.attacks.balls import Norm, check_eps
from probmargin.attacks.pgd import PGD
from probmargin.core.errors import UsageError, unknown_name
from probmargin.core.records import to_plain
from probmargin.evaluation.autoattack import ATTACK_NAMES, VERSIONS, Version, build_attack as build_search
from probmargin.evaluation.own_attacks import PREFIX, build_own, files_of, own_attacks
from probmargin.evaluation.search import Stage

STEP_SHARE = 0.003 * 255 / 8
"""Step of PGD and CW as a share of eps: 0.003 at 8/255, in proportion elsewhere."""

ENSEMBLES: dict[str, Version] = {"aa": "standard", "aa-plus": "plus", "aa-rand": "rand"}

DESCRIPTIONS = {
    "nat": "clean images",
    "fgsm": "one step of size eps from the clean image, along the sign (L-inf) or the gradient (L2)",
    "pgd-20": "PGD on cross-entropy, 20 steps of 0.003 at 8/255 (in proportion elsewhere), uniform start, last iterate",
    "pgd-100": "the same with 100 steps; any pgd-N works, and pgd-NxR restarts R times: right only if right each time",
    "cw": "PGD on CW's margin loss -max(MM + 50, 0), 20 steps, otherwise as pgd-20",
    "cw-100": "the same with 100 steps; any cw-N and cw-NxR works",
    "apgd-ce": "Auto-PGD on cross-entropy, 100 steps, on images that are right as they stand",
    "apgd-dlr": "Auto-PGD on the DLR loss, 100 steps",
    "apgd-t": "Auto-PGD on the targeted DLR loss, 100 steps for each of the 9 nearest classes",
    "fab": "FAB aimed at no class, 100 steps, 5 restarts",
    "fab-t": "FAB aimed at the 9 nearest classes, 100 steps each",
    "square": "Square attack, 5,000 queries, no gradient",
    "aa": "AutoAttack, standard: apgd-ce, apgd-t, fab-t, square, each on what the ones before left",
    "aa-plus": "AutoAttack, plus: apgd-ce x5, apgd-dlr x5, fab x5, square, apgd-t, fab-t",
    "aa-rand": "AutoAttack, rand, for models with random output: apgd-ce, apgd-dlr, gradients averaged over 20 passes",
}


@dataclass(frozen=True)
class Protocol:
    """A named setting in which results can be compared."""

    name: str
    norm: Norm
    eps: float
    step_size: float
    """Of PGD and CW."""
    aa_examples: int | None
    """Images AutoAttack looks at, from the first; None is all. The other attacks see all."""
    summary: str


PROTOCOLS = {
    "standard": Protocol(
        "standard", "Linf", 8 / 255, 0.003, None, "eps 8/255, PGD and CW in steps of 0.003, all test images"
    ),
    "official-1000": Protocol(
        "official-1000",
        "Linf",
        0.031,
        0.003,
        1000,
        "eps 0.031, PGD and CW in steps of 0.003 on all test images, AutoAttack on the first 1,000, as MAIL's script",
    ),
}


def aa_examples_of(asked: int | None, protocol: Protocol | None, attacks: Sequence[str]) -> int | None:
    """How many images AutoAttack's ensembles look at, from the first: as asked, else the protocol's; None is all.

    >>> aa_examples_of(500, PROTOCOLS["standard"], ["aa"]), aa_examples_of(None, PROTOCOLS["official-1000"], ["aa"])
    (500, 1000)
    """
    own = protocol.aa_examples if protocol else None
    if asked is None:
        return own
    if asked < 1:
        raise UsageError(f"--aa-examples must be 1 or more, not {asked}")
    if protocol and own not in (None, asked):
        raise UsageError(
            f"protocol {protocol.name} has AutoAttack on the first {own:,} images: leave out --aa-examples"
        )
    if not ENSEMBLES.keys() & set(attacks):
        raise UsageError(f"--aa-examples is for {', '.join(ENSEMBLES)}: leave it out, or name one of them in --attacks")
    return asked


@dataclass(frozen=True)
class Plan:
    """A named attack as it is run: stages, each on what the ones before it left standing."""

    name: str
    stages: tuple[Stage, ...]
    begins_with_all: bool
    """Attack what is misclassified as it stands too: published PGD scripts do, and such an image may come out right."""
    version: Version | None = None
    """Of AutoAttack, where the plan is one of its ensembles."""

    @property
    def is_search(self) -> bool:
        """Whether it is one of AutoAttack's attacks or ensembles."""
        return bool(self.stages) and not self.begins_with_all

    def meaning(self) -> dict[str, Any]:
        """The plan as stored with its results."""
        if self.version is not None:
            return {"name": self.name, "stages": {stage.name: meaning(stage.attack) for stage in self.stages}}
        single = meaning(self.stages[0].attack if self.stages else None)
        return single if len(self.stages) < 2 else {**single, "restarts": len(self.stages)}


def make_plan(name: str, norm: Norm, eps: float, step_size: float | None = None) -> Plan:
    """The plan a name stands for.

    >>> [stage.name for stage in make_plan("aa", "Linf", 0.1).stages]
    ['apgd-ce', 'apgd-t', 'fab-t', 'square']
    >>> [stage.name for stage in make_plan("pgd-20x3", "Linf", 0.1).stages]
    ['restart-1', 'restart-2', 'restart-3']
    """
    check_eps(norm, eps)
    if name in ENSEMBLES:
        version = ENSEMBLES[name]
        stages = tuple(Stage(part, build_search(part, norm, eps, version)) for part in VERSIONS[version])
        return Plan(name, stages, begins_with_all=False, version=version)
    if name in ATTACK_NAMES:
        return Plan(name, (Stage(name, build_search(name, norm, eps)),), begins_with_all=False)
    attack = build_attack(name, norm, eps, step_size)
    if attack is None:
        return Plan(name, (), begins_with_all=True)
    restarts = _restarts(name)
    if restarts == 1:
        return Plan(name, (Stage(name, attack, fills=True),), begins_with_all=True)
    stages = tuple(Stage(f"restart-{number + 1}", attack, number, fills=True) for number in range(restarts))
    return Plan(name, stages, begins_with_all=True)


_PATTERN = r"(pgd|cw)(?:-([1-9]\d*))?(?:x([1-9]\d*))?"


def _restarts(name: str) -> int:
    found = re.fullmatch(_PATTERN, name)
    return int(found[3] or 1) if found else 1


def build_attack(name: str, norm: Norm, eps: float, step_size: float | None = None) -> Attack | None:
    """The attack behind a name of one stage, a single restart of it; None for clean images.

    >>> build_attack("cw-30", "Linf", 8 / 255).step_size
    0.003
    """
    check_eps(norm, eps)
    if name == "nat":
        return None
    if name.startswith(PREFIX):
        return build_own(name, norm, eps)
    if name == "fgsm":
        return PGD(norm=norm, eps=eps, step_size=eps, num_steps=1, start="zero")
    if found := re.fullmatch(_PATTERN, name):
        return PGD(
            loss="ce" if found[1] == "pgd" else "cw",
            norm=norm,
            eps=eps,
            step_size=STEP_SHARE * eps if step_size is None else step_size,
            num_steps=int(found[2] or 20),
            start="uniform_eps",
            clamp_start=True,
        )
    if name in ENSEMBLES:
        raise UsageError(f"{name} is an ensemble; give one attack here, such as pgd-20 or apgd-ce")
    if name in ATTACK_NAMES:
        return build_search(name, norm, eps)
    raise unknown_name("attack", name, [*DESCRIPTIONS, "pgd-N", "cw-N", *own_attacks()])


def meaning(attack: Attack | None) -> dict[str, Any]:
    """An attack as stored with its result; one of the user's own with the files that it is written in."""
    if attack is None:
        return {"name": "nat"}
    files = files_of(attack)
    return {**to_plain(attack), **({"files": files} if files else {})}
