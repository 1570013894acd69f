"""Fetch a file from its authors: resumable, checked, and in place only when whole."""

import contextlib
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from probmargin.core.errors import UsageError

FETCHERS = "train, evaluate, audit and reproduce take it"
"""Commands that have --download."""
_TIMEOUT = 30.0
_CHUNK = 1 << 18
_NETWORK_ERRORS = (OSError, http.client.HTTPException)


@dataclass(frozen=True)
class Remote:
    """A file at its authors' site, with the checksum it must have."""

    url: str
    checksum: str
    """md5 or sha256 in hex, told apart by length."""

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return self.url.rsplit("/", 1)[-1]


CIFAR10 = Remote("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a")
CIFAR100 = Remote("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85")
SVHN_TRAIN = Remote("http://ufldl.stanford.edu/housenumbers/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373")
SVHN_TEST = Remote("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3")


def fetch(url: str, target: Path, sha_or_md5: str, *, progress: bool = True) -> Path:
    """Download a file to `target` unless it is there already, and return `target`.

    The bytes go to `target.part`, which a later call resumes, and are renamed once the checksum is right.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    if not _is_whole(part, sha_or_md5):
        _download(url, target, part, progress)
        if not _is_whole(part, sha_or_md5):
            part.unlink()
            raise UsageError(f"{url} came with a wrong checksum and was deleted: try again, or {_by_hand(url, target)}")
    os.replace(part, target)
    return target


def _by_hand(url: str, target: Path) -> str:
    return f"download {url} yourself and put it in {target.parent} as {target.name}"


def _is_whole(path: Path, checksum: str) -> bool:
    """Say whether the file is there and has this checksum: an unbroken .part needs no network at all."""
    if not path.is_file():
        return False
    name = "md5" if len(checksum) == 32 else "sha256"
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(name, usedforsecurity=False)).hexdigest() == (
            checksum.lower()
        )


def _download(url: str, target: Path, part: Path, progress: bool) -> None:
    """Bring the .part to its full length, resuming where the server allows it."""
    have = part.stat().st_size if part.exists() else 0
    response = _open(url, target, have)
    if response is None:
        # 416: the server has nothing past what we hold, which is not the file; only a fresh start helps.
        have, response = 0, _open(url, target, 0)
        if response is None:
            raise UsageError(f"cannot download {url} (HTTP 416): {_by_hand(url, target)}")
    with response:
        if not _continues_at(response, have):
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        with part.open("ab" if have else "wb") as file:
            received = _copy(_chunks(response, url, target), file, have, total, progress)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and received < total:
        raise UsageError(
            f"{url} broke off at {received} of {total} bytes: run again to resume, or {_by_hand(url, target)}"
        )


def _open(url: str, target: Path, have: int) -> http.client.HTTPResponse | None:
    """Ask for the bytes from `have` on; None says that the server holds no such range."""
    request = urllib.request.Request(url, headers={"User-Agent": "probmargin"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except _NETWORK_ERRORS as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            if error.code == 416 and have:
                return None
        raise _unreachable(url, target, error) from error
    return response


def _unreachable(url: str, target: Path, error: Exception) -> UsageError:
    reason = getattr(error, "reason", None) or error
    return UsageError(f"cannot download {url} ({reason}): {_by_hand(url, target)}")


def _continues_at(response: http.client.HTTPResponse, have: int) -> bool:
    """Say whether the answer starts where our bytes end; a server without Range sends everything."""
    if response.status != 206:
        return False
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return found is not None and int(found[1]) == have


def _chunks(response: http.client.HTTPResponse, url: str, target: Path) -> Iterator[bytes]:
    """Read the body. Network errors alone are turned: a full disk is the writer's, and stays an OSError."""
    while True:
        try:
            chunk = response.read(_CHUNK)
        except _NETWORK_ERRORS as error:
            raise _unreachable(url, target, error) from error
        if not chunk:
            return
        yield chunk


def _copy(chunks: Iterator[bytes], file: BinaryIO, have: int, total: int | None, progress: bool) -> int:
    """Write the chunks behind a progress bar, shown on a terminal only; return the file's new length."""
    received = have
    with contextlib.ExitStack() as stack:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        bar = Progress(*columns, console=console, disable=not (progress and console.is_terminal))
        stack.enter_context(bar)
        task = bar.add_task(Path(file.name).name, total=total, completed=have)
        for chunk in chunks:
            file.write(chunk)
            received += len(chunk)
            bar.update(task, completed=received)
    return received
