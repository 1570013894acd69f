"""CIFAR-10 and CIFAR-100 from their authors' own pickled files, unpacked or still in the archive."""

import codecs
import io
import pickle
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from probmargin.core.errors import UsageError
from probmargin.data.dataset import DataSet, from_arrays
from probmargin.data.download import CIFAR10, CIFAR100, FETCHERS, Remote, fetch
from probmargin.data.judged import from_test_arrays

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How one of the two sets is laid out in files."""

    folder: str
    remote: Remote
    train: tuple[str, ...]
    test: str
    meta: str
    label_key: str
    names_key: str
    num_classes: int

    @property
    def files(self) -> tuple[str, ...]:
        """Every file of the whole set."""
        return (*self.train, self.test, self.meta)


LAYOUTS: Mapping[str, Layout] = {
    "cifar10": Layout(
        folder="cifar-10-batches-py",
        remote=CIFAR10,
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test="test_batch",
        meta="batches.meta",
        label_key="labels",
        names_key="label_names",
        num_classes=10,
    ),
    "cifar100": Layout(
        folder="cifar-100-python",
        remote=CIFAR100,
        train=("train",),
        test="test",
        meta="meta",
        label_key="fine_labels",
        names_key="fine_label_names",
        num_classes=100,
    ),
}


def load_cifar(name: str, data_dir: Path, *, download: bool = False, needs_train: bool = True) -> DataSet:
    """Load "cifar10" or "cifar100" (fine labels) from the authors' folder or archive, or the place of either.

    Unless it `needs_train`, a folder without any of the training files will do where the whole set is nowhere.
    """
    layout = LAYOUTS[name]
    files = _read_files(layout, data_dir, download, needs_train)
    names = _class_names(*files[layout.meta], layout)
    if layout.train[0] not in files:
        return from_test_arrays(name, *_batch(*files[layout.test], layout), names)
    parts = [_batch(*files[file], layout) for file in layout.train]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return from_arrays(name, (images, labels), _batch(*files[layout.test], layout), names)


def _read_files(layout: Layout, data_dir: Path, download: bool, needs_train: bool) -> dict[str, tuple[str, bytes]]:
    """Return (where it was found, content) of each file, from the first of the places that may hold them."""
    alone: Path | None = None
    problem = f"neither {layout.folder}/ nor {layout.remote.file_name} is in {data_dir}"
    for folder in (data_dir / layout.folder, data_dir):
        missing = [file for file in layout.files if not (folder / file).is_file()]
        if not missing:
            return _read_folder(folder, layout.files)
        if missing == list(layout.train) and not needs_train:
            alone = alone or folder
        if len(missing) < len(layout.files):
            problem = f"{missing[0]} is missing in {folder}"
    archive = data_dir / layout.remote.file_name
    if download and not archive.exists():
        fetch(layout.remote.url, archive, layout.remote.checksum)
    if archive.is_file():
        return _read_archive(archive, layout)
    if alone is not None:
        return _read_folder(alone, (layout.test, layout.meta))
    raise UsageError(
        f"{problem}: pass --data-dir with the folder that holds the files, or fetch them with --download ({FETCHERS})"
    )


def _read_folder(folder: Path, files: tuple[str, ...]) -> dict[str, tuple[str, bytes]]:
    return {file: (str(folder / file), (folder / file).read_bytes()) for file in files}


def _read_archive(archive: Path, layout: Layout) -> dict[str, tuple[str, bytes]]:
    """Read the members in one pass, in memory: a gzip stream cannot be searched backwards cheaply."""
    wanted = {f"{layout.folder}/{file}": file for file in layout.files}
    found: dict[str, tuple[str, bytes]] = {}
    try:
        with tarfile.open(archive, "r|*") as tar:
            for member in tar:
                file = wanted.get(member.name.removeprefix("./"))
                content = tar.extractfile(member) if file is not None and member.isfile() else None
                if file is not None and content is not None:
                    found[file] = (f"{archive}:{member.name}", content.read())
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise _damaged(str(archive), error) from error
    missing = [member for member, file in wanted.items() if file not in found]
    if missing:
        raise _damaged(str(archive), f"{missing[0]} is missing")
    return found


def _damaged(where: str, error: object) -> UsageError:
    return UsageError(
        f"{where} is truncated or damaged ({_one_line(error)}): delete it and fetch it again with "
        f"--download ({FETCHERS})"
    )


def _one_line(error: object) -> str:
    return " ".join(f"{error}".split()) or type(error).__name__


def _dtype(spec: Any, align: Any = False, copy: Any = False) -> np.dtype[Any]:
    """Stand in for numpy.dtype: old pickles give its flags as 0 and 1, which numpy 2.4 deprecates."""
    kind: np.dtype[Any] = np.dtype(spec, align=bool(align), copy=bool(copy))
    return kind


# ndarray's own account of itself names the function, whose module has moved between numpy versions.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ADMITTED: Mapping[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): codecs.encode,
}


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that admits arrays and plain data, and refuses everything that could run code."""

    def __init__(self, content: bytes, where: str) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        """Look a global up in the short list of what a CIFAR file needs."""
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise UsageError(
                f"{self._where} tries to run code ({module}.{name}): refused; fetch it again from its authors"
            ) from None


def _unpickle(where: str, content: bytes) -> dict[str, Any]:
    """Return the pickled dictionary, with its Python-2 keys as text."""
    try:
        record = _ArraysOnly(content, where).load()
    except UsageError:
        raise
    # Damaged bytes can be any opcode with any operand, so nearly any error may come out of them.
    except Exception as error:
        raise _damaged(where, error) from error
    if not isinstance(record, dict):
        raise _damaged(where, f"holds a {type(record).__name__}, not a dictionary")
    return {_text(key): value for key, value in record.items()}


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _class_names(where: str, content: bytes, layout: Layout) -> tuple[str, ...]:
    names = _unpickle(where, content).get(layout.names_key)
    if not isinstance(names, list) or len(names) != layout.num_classes:
        raise _damaged(where, f"{layout.names_key} is not a list of {layout.num_classes} names")
    return tuple(_text(name) for name in names)


def _batch(where: str, content: bytes, layout: Layout) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return a file's images (N, 3, 32, 32) and labels, judged by the record's own count."""
    record = _unpickle(where, content)
    data, labels = record.get("data"), record.get(layout.label_key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (_PIXELS,):
        found = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise _damaged(where, f"data must be uint8 (N, {_PIXELS}), found {found}")
    if not isinstance(labels, list) or len(labels) != len(data):
        found = str(len(labels)) if isinstance(labels, list) else "no"
        raise _damaged(where, f"{found} {layout.label_key} for {len(data)} images")
    if not all(isinstance(label, int) and 0 <= label < layout.num_classes for label in labels):
        raise _damaged(where, f"{layout.label_key} must be integers from 0 to {layout.num_classes - 1}")
    return data.reshape(-1, 3, _SIDE, _SIDE), np.array(labels, dtype=np.int64)
