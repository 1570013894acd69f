"""Lines for the user: what has something to say is handed a function that takes them."""

from collections.abc import Callable

Say = Callable[[str], None]


def silent(line: str) -> None:
    """Say nothing."""
