"""Writers of tiny files in the formats of the data sets' authors."""

import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
Python3Pickler: Any = pickle._Pickler


class Python2Pickler(Python3Pickler):  # type: ignore[misc]
    """Writes text as Python 2 `str`, and numpy under its old module path, as the authors' files have it."""

    dispatch: ClassVar[dict[Any, Any]] = dict(Python3Pickler.dispatch)

    def save_string(self, value: str | bytes) -> None:
        raw = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)
        self.memoize(value)

    def save_old_global(self, value: Any, name: str | None = None) -> None:
        module = value.__module__.replace("numpy._core", "numpy.core")
        self.write(pickle.GLOBAL + f"{module}\n{name or value.__name__}\n".encode())
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string
    for _kind in (type(np.dtype), type(np.array), type(pickle.dumps), type(lambda: 0), type):
        dispatch[_kind] = save_old_global


def dump(record: object, path: Path) -> None:
    with path.open("wb") as file:
        Python2Pickler(file, protocol=2).dump(record)


def pixels(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


@pytest.fixture
def write_pickle() -> Callable[[object, Path], None]:
    return dump


@pytest.fixture
def write_cifar() -> Callable[[str, Path], Path]:
    """Return a writer of a set with 20 images a training file (labels 0..19 mod K) and 10 test images."""

    def write(name: str, place: Path) -> Path:
        folder = place / FOLDERS[name]
        folder.mkdir(parents=True)
        key, classes = ("labels", 10) if name == "cifar10" else ("fine_labels", 100)
        train = [f"data_batch_{n}" for n in range(1, 6)] if name == "cifar10" else ["train"]
        test, meta = ("test_batch", "batches.meta") if name == "cifar10" else ("test", "meta")
        for seed, file in enumerate([*train, test]):
            count = 10 if file == test else 20
            labels = [n % classes for n in range(count)]
            files = [f"{n}.png" for n in range(count)]
            record = {"batch_label": file, key: labels, "data": pixels(count, seed), "filenames": files}
            dump(record, folder / file)
        names = [f"class{n}" for n in range(classes)]
        dump({"label_names" if name == "cifar10" else "fine_label_names": names}, folder / meta)
        return folder

    return write


@pytest.fixture
def pack() -> Callable[[Path, Path], None]:
    """Return a packer of a folder into a .tar.gz, under the folder's own name."""

    def write(folder: Path, archive: Path) -> None:
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(folder, arcname=folder.name)

    return write
