"""One process at a time in a folder."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from probmargin.core.errors import UsageError

try:
    import fcntl
except ImportError:  # There is none on Windows, where folders go unguarded.
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
"""The file in a folder that its process holds; the system lets go of it when the process ends, however it ends."""

_held: set[Path] = set()
"""Folders that this process holds."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, which is made where it is missing; refuse it where another is in it."""
    place = folder.absolute()
    if fcntl is None or place in _held:
        yield
        return
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    handle = _taken(folder)
    _held.add(place)
    try:
        yield
    finally:
        _held.discard(place)
        (folder / LOCK).unlink(missing_ok=True)
        os.close(handle)
        if is_new:
            with suppress(OSError):
                folder.rmdir()


def _taken(folder: Path) -> int:
    """An open file that is ours alone. Locks of this kind are not inherited by the processes that load images."""
    path = folder / LOCK
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(handle, 200).decode(errors="replace")
            os.close(handle)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise UsageError(
                f"{folder} is in use by {owner or 'another process'}; choose another --out, or wait until that ends"
            ) from None
        if _is_at(handle, path):
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return handle
        # Whoever held it has removed it since.
        os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
