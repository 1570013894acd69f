"""Errors that are one line: what the user can fix, and what only a look at the machine or the code can."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """Wrong use. Its message is one line that names the fix; the command line prints it and exits with 2."""


class Failure(RuntimeError):
    """Not wrong use, yet known: its message is one line, and the command line exits with 1."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Build the error for a name nobody registered: the nearest ones first, then all.

    >>> print(unknown_name("weight", "sigmod", ["hinge", "sigmoid"]))
    unknown weight 'sigmod'; did you mean sigmoid? (known: hinge, sigmoid)
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return UsageError(f"unknown {kind} {name!r}{hint} (known: {', '.join(names)})")
