"""Numbers and names as a reader wants them."""

from collections.abc import Sequence

DASH = "\N{EN DASH}"
"""Stands where there is no value."""
NAMES = {
    "square": "Square",
    "nat": "clean",
    "aa": "AutoAttack",
    "aa-plus": "AutoAttack plus",
    "aa-rand": "AutoAttack rand",
}


def percent(share: float | None, digits: int = 1) -> str:
    """A share as a percentage, or a dash.

    >>> percent(0.5), percent(None) == DASH
    ('50.0%', True)
    """
    return DASH if share is None else f"{100 * share:.{digits}f}%"


def attack_name(name: str) -> str:
    """An attack as it is written in a text.

    >>> [attack_name(name) for name in ("nat", "pgd-20", "cw", "aa", "apgd-ce", "own-mine", "worst_case")]
    ['clean', 'PGD-20', 'CW-20', 'AutoAttack', 'APGD-CE', 'own-mine', 'worst case']
    """
    if name == "worst_case":
        return "worst case"
    if name in ("pgd", "cw"):
        return f"{name.upper()}-20"
    return name if name.startswith("own-") else NAMES.get(name, name.upper())


def joined(words: Sequence[str]) -> str:
    """A list in a sentence.

    >>> joined(["a", "b", "c"]), joined(["a"])
    ('a, b and c', 'a')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def p_value(value: float) -> str:
    """A test's p.

    >>> p_value(0.00001), p_value(0.0421)
    ('< 0.0001', '0.042')
    """
    return "< 0.0001" if value < 0.0001 else f"{value:.3f}"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours.

    >>> duration(0.3), duration(42.4), duration(754), duration(9000)
    ('under 1 s', '42 s', '13 min', '2.5 h')
    """
    if seconds < 1:
        return "under 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def count_of(number: int, total: int) -> str:
    """A count with its share.

    >>> count_of(8184, 10000)
    '8,184 (81.8%)'
    """
    return f"{number:,} ({percent(number / total)})" if total else "0"


def short(value: object) -> str:
    """A setting's value in one line.

    >>> short(0.00784313), short([74, 89]), short(None), short(True)
    ('0.007843', '74, 89', 'none', 'yes')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(short(item) for item in value) or "none"
    return str(value)
