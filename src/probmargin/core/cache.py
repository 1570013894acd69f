"""Where files lie that make the next start shorter and may be deleted at any time."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path | None:
    """A folder of this package in the user's cache folder; None for a user without a home.

    >>> kept = cache_folder("fingerprints")
    >>> kept is None or kept.parts[-2:] == ("probmargin", "fingerprints")
    True
    """
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if chosen.is_absolute():
        return chosen / "probmargin" / name
    try:
        return Path.home() / ".cache" / "probmargin" / name
    except RuntimeError:
        return None
