"""Images that stay in their files, for folders that do not fit into memory."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import PIL
import torch

from probmargin._version import __version__
from probmargin.core.errors import UsageError
from probmargin.data.dataset import ImageSet, counts_of

Decode = Callable[[Path], torch.Tensor]

_AT_ONCE = 2048
"""Images that are read and wait to be taken."""
_SHOWN = 5
"""Files that cannot be read and are named before a count."""


class Unreadable(UsageError):
    """A picture that cannot be read."""

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"cannot read the image {file} ({reason}): repair or remove it")
        self.file, self.reason = file, reason


def raise_together(wrong: Sequence[Unreadable]) -> None:
    """Name all pictures that cannot be read at once, where there are any."""
    if len(wrong) > 1:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        names = ", ".join(str(one.file) for one in wrong[:_SHOWN])
        raise UsageError(f"cannot read {len(wrong)} images, {names}{more}: repair or remove them")
    for one in wrong:
        raise one


@dataclass(frozen=True, eq=False, kw_only=True)
class FileImageSet(ImageSet):
    """Images read one by one when they are asked for; `images` has their shape but no pixels (device "meta")."""

    files: tuple[Path, ...]
    decode: Decode
    """Reads a file as uint8 (C, H, W); goes to worker processes, so it can be pickled."""

    def take(self, positions: torch.Tensor | Sequence[int]) -> "FileImageSet":
        """Return the examples at these positions, in this order, still unread."""
        where = torch.as_tensor(positions, dtype=torch.int64).cpu()
        here = where.to(self.labels.device)
        files = tuple(self.files[place] for place in where.tolist())
        return replace(
            self, images=unread(len(files), self.images), labels=self.labels[here], index=self.index[here], files=files
        )

    def to(self, device: torch.device | str) -> ImageSet:
        """Read everything, and return it on a device."""
        read, wrong = [], []
        for place in range(len(self)):
            try:
                read.append(self.read(place))
            except Unreadable as error:
                wrong.append(error)
        raise_together(wrong)
        return ImageSet(torch.stack(read), self.labels, self.index).to(device)

    def pixels(self, positions: torch.Tensor) -> torch.Tensor:
        """Read the images at these positions, uint8."""
        return torch.stack([self.read(place) for place in positions.tolist()])

    def read(self, place: int) -> torch.Tensor:
        """Read one image; a file that changed its size since it was listed is refused."""
        pixels = self.decode(self.files[place])
        if pixels.shape != self.images.shape[1:]:
            raise UsageError(
                f"{self.files[place]} gives {tuple(pixels.shape)}, others {tuple(self.images.shape[1:])}: save it again"
            )
        return pixels

    def floats(self, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Read float32 images in [0, 1], of all examples or of these positions."""
        chosen = self.pixels(torch.arange(len(self)) if positions is None else positions)
        return chosen.to(torch.float32) / torch.full((), 255.0)

    def counts(self) -> torch.Tensor:
        """Read every image once, and return how many pixels of each channel have each value, int64 (C, 256)."""
        total = torch.zeros(self.images.shape[1], 256, dtype=torch.int64)
        for pixels in self._each():
            total += counts_of(pixels[None])
        return total

    def _each(self) -> Iterator[torch.Tensor]:
        """Every image in order, read a few at a time."""
        with ThreadPoolExecutor(os.cpu_count()) as readers:
            for start in range(0, len(self), _AT_ONCE):
                yield from readers.map(self.read, range(start, min(start + _AT_ONCE, len(self))))

    def mark(self, digest: "hashlib._Hash") -> None:
        """Add the pixels: data is the same data wherever it lies."""
        digest.update(repr(tuple(self.images.shape)).encode())
        for pixels in self._each():
            digest.update(pixels.contiguous().numpy().data)
        digest.update(self.labels.cpu().contiguous().numpy().data)

    def stamp(self, digest: "hashlib._Hash") -> None:
        """Add where the files lie, their sizes and times, and what they are decoded to."""
        for file in self.files:
            try:
                facts = file.stat()
            except OSError as error:
                raise Unreadable(file, str(error.strerror)) from error
            # The second time is the system's own: it moves even where the first is set back.
            times = (facts.st_mtime_ns, facts.st_ctime_ns)
            digest.update(repr((os.fsencode(file.absolute()), facts.st_size, times)).encode())
        # Another decoder, or other code of ours around it, may give other pixels.
        digest.update(repr((PIL.__version__, __version__, tuple(self.images.shape), self.labels.tolist())).encode())


def unread(count: int, like: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """The shape of images that are not in memory: reading it raises."""
    size = like.shape[1:] if isinstance(like, torch.Tensor) else like
    return torch.empty(count, *size, dtype=torch.uint8, device="meta")


def free_memory() -> int:
    """Bytes of the host's memory that are free."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
