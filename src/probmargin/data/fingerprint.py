"""Fingerprints of data, and those that take long to make remembered in the user's cache folder."""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable

from probmargin.core.cache import cache_folder


def digest_of(adds: "Iterable[Callable[[hashlib._Hash], None]]") -> str:
    """The sha256 of what these add, in their order."""
    digest = hashlib.sha256()
    for add in adds:
        add(digest)
    return digest.hexdigest()


def remembered(stamp: str, make: Callable[[], str]) -> str:
    """The fingerprint that an earlier start made of data with this stamp, or a new one; what cannot be kept is not."""
    folder = cache_folder("fingerprints")
    if folder is None:
        return make()
    place = folder / stamp
    with contextlib.suppress(OSError, ValueError):
        known = place.read_text(encoding="ascii")
        if re.fullmatch("[0-9a-f]{16}", known):
            return known
    found = make()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        aside = place.with_name(f"{stamp}.{os.getpid()}")
        aside.write_text(found, encoding="ascii")
        aside.replace(place)
    return found
