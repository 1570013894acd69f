"""Errors that are one line: what the user can fix, and what only a look at the machine or the code can."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """Wrong use. Its message is one line that names the fix; the command line prints it and exits with 2."""


class Failure(RuntimeError):
    """Not wrong use, yet known: its message is one line, and the command line exits with 1."""


class Interrupted(Exception):
    """The user or the system asked to stop. Its message says what is saved; the command line exits with 130."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Build the error for a name nobody registered: the nearest ones first, then all.

    >>> print(unknown_name("weight", "sigmod", ["hinge", "sigmoid"]))
    unknown weight 'sigmod'; did you mean sigmoid? (known: hinge, sigmoid)
    """
    names = sorted(known)
    # Registered names are written small.
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return UsageError(f"unknown {kind} {name!r}{hint} (known: {', '.join(names)})")


def unknown_setting(path: str, name: str, known: Iterable[str], owner: str) -> UsageError:
    """Build the error for a setting that the component at `path` has not; `owner` is that component's name.

    >>> print(unknown_setting("weight", "slop", ["bias", "slope"], "sigmoid"))
    unknown setting in weight 'slop'; did you mean slope? (known: bias, slope)
    >>> print(unknown_setting("margin", "slope", [], "pm_adv"))
    margin pm_adv takes no settings: leave out margin.slope
    """
    names = list(known)
    if names:
        return unknown_name(f"setting in {path}", name, names)
    return UsageError(f"{path} {owner} takes no settings: leave out {path}.{name}")


def one_logit() -> UsageError:
    """Build the error for a model with one output for two classes: the softmax of one logit is 1, its gradient 0."""
    return UsageError(
        "the model gives one logit for two classes; return one a class, torch.cat([torch.zeros_like(z), z], 1)"
    )
