"""Attacks of a user's own file: an evaluation knows them as own-NAME, so that none passes for one of the protocol's."""

import re
from dataclasses import MISSING
from typing import Any

from probmargin.attacks.attack import ATTACKS, Attack
from probmargin.attacks.balls import Norm
from probmargin.core.errors import UsageError
from probmargin.core.registry import is_own
from probmargin.methods.plugins import check_ball_fields
from probmargin.models.own_code import fingerprints

PREFIX = "own-"


def own_attacks() -> dict[str, str]:
    """What files of the user's own have registered, with a line on each.

    >>> own_attacks()
    {}
    """
    own = [name for name in ATTACKS.names() if is_own(ATTACKS.get(name))]
    return {f"{PREFIX}{name}": ATTACKS.summary(name) for name in own}


def build_own(name: str, norm: Norm, eps: float) -> Attack:
    """The attack of a name with the prefix, in the ball of the evaluation; its other settings are its defaults."""
    known, registered = own_attacks(), name.removeprefix(PREFIX)
    if name not in known:
        raise UsageError(
            f"no loaded file registers an attack {registered!r} (loaded: {', '.join(known) or 'none'}); give its file "
            "before the command, probmargin --plugin FILE COMMAND"
        )
    if not re.fullmatch(r"[\w.-]+", registered):
        raise UsageError(f"attack {registered!r} cannot name a result; give it a name of letters, digits, _ and -")
    cls = ATTACKS.get(registered)
    fields: dict[str, Any] = getattr(cls, "__dataclass_fields__", {})
    check_ball_fields(f"attack {registered!r}", cls)
    for field, about in fields.items():
        if field not in ("norm", "eps") and about.default is MISSING and about.default_factory is MISSING:
            raise UsageError(
                f"attack {registered!r} has no value of {field}; give it a default in class {cls.__name__}"
            )
    return ATTACKS.build({"name": registered, "norm": norm, "eps": eps})


def files_of(attack: Attack) -> list[dict[str, str]]:
    """The files of the user's own that an attack is written in, with their content's SHA-256; none for ours."""
    return list(fingerprints([type(attack).__module__]).values())


def own_label(attack: Attack) -> str:
    """What a result says of an attack of the user's own; empty for one of ours."""
    if not is_own(attack):
        return ""
    return ", ".join(
        ["not an attack of probmargin", *(f"{one['file']} {one['sha256'][:16]}" for one in files_of(attack))]
    )
