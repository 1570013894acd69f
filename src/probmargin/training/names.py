"""The names that commands and recipes take."""

from probmargin.attacks.attack import ATTACKS
from probmargin.core.arguments import checked
from probmargin.core.errors import unknown_name
from probmargin.data.loader import DESCRIPTIONS as DATA_SETS
from probmargin.evaluation.own_attacks import own_attacks
from probmargin.evaluation.protocol import DESCRIPTIONS as PROTOCOL_ATTACKS, PROTOCOLS
from probmargin.margins.margin import MARGINS
from probmargin.methods.resolve import METHODS
from probmargin.models.build import DESCRIPTIONS as MODELS
from probmargin.objectives.objective import OBJECTIVES
from probmargin.weights.weight import NORMALIZERS, WEIGHTS


@checked
def catalogue(kind: str | None = None) -> list[str]:
    """The names that commands and recipes take, one line each; of one kind or of all.

    >>> [line.split()[0] for line in catalogue("weights")][1:4]
    ['gairat_discrete', 'gairat_sigmoid', 'gairat_tanh']
    """
    kinds: dict[str, dict[str, str]] = {
        "methods": {name: _method_summary(name) for name in METHODS},
        "margins": {name: MARGINS.summary(name) for name in MARGINS.names()},
        "weights": {name: WEIGHTS.summary(name) for name in WEIGHTS.names()},
        "normalizers": {name: NORMALIZERS.summary(name) for name in NORMALIZERS.names()},
        "objectives": {name: OBJECTIVES.summary(name) for name in OBJECTIVES.names()},
        "attacks": PROTOCOL_ATTACKS
        | own_attacks()
        | {f"{n} (in recipes)": ATTACKS.summary(n) for n in ATTACKS.names()},
        "protocols": {name: protocol.summary for name, protocol in PROTOCOLS.items()},
        "models": dict(MODELS),
        "data": dict(DATA_SETS),
    }
    if kind is not None and kind not in kinds:
        raise unknown_name("kind of name", kind, kinds)
    lines = []
    for title, entries in kinds.items():
        if kind in (None, title):
            lines.append(title)
            width = max(map(len, entries)) + 2
            lines += [f"  {name:<{width}}{summary}" for name, summary in entries.items()]
    return lines


def _method_summary(name: str) -> str:
    presets = METHODS[name]
    return f"{str(presets['paper'].__doc__).splitlines()[0]} [{', '.join(presets)}]"
