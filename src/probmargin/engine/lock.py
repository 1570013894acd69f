"""One process at a time in a folder."""

import errno
import os
import socket
import threading
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

_held: dict[Path, int] = {}
"""The thread of this process that holds a folder: the system does not keep threads apart."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep others out of a folder, which is made where it is missing; refuse it where another is in it.

    The thread that holds a folder may hold it again.
    """
    place, thread = folder.resolve(), threading.get_ident()
    if fcntl is None or _held.get(place) == thread:
        yield
        return
    new = [path for path in (place, *place.parents) if not path.exists()]
    if _held.setdefault(place, thread) != thread:
        raise _in_use(folder, _own_name())
    try:
        handle = _taken(folder)
        try:
            yield
        finally:
            # Removed while it is held: the next one's file must not be.
            (folder / LOCK).unlink(missing_ok=True)
            os.close(handle)
            with suppress(OSError):
                for path in new:
                    path.rmdir()
    finally:
        del _held[place]


def _own_name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _in_use(folder: Path, owner: str) -> UsageError:
    return UsageError(f"{folder} is in use by {owner}; choose another --out, or wait until that ends")


def _taken(folder: Path) -> int:
    """An open file that is ours alone. Locks of this kind are not inherited by the processes that load images."""
    path = folder / LOCK
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            # Whoever left the folder empty has removed it since.
            continue
        except PermissionError:
            raise UsageError(
                f"{path} is another user's; delete it if nobody is at work there, or choose another --out"
            ) from None
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                owner = os.read(handle, 200).decode(errors="replace")
                os.close(handle)
                raise _in_use(folder, owner or "another process") from None
            # A file system without locks goes unguarded.
        if _is_at(handle, path):
            # On a full disk the name is missing; the lock holds all the same.
            with suppress(OSError):
                os.ftruncate(handle, 0)
                os.write(handle, _own_name().encode())
            return handle
        # Whoever held it has removed it since.
        os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
