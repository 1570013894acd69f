"""SVHN's cropped house numbers from their authors' Matlab files."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from probmargin.core.errors import UsageError
from probmargin.data.dataset import DataSet, from_arrays
from probmargin.data.download import FETCHERS, SVHN_TEST, SVHN_TRAIN, Remote, fetch
from probmargin.data.judged import from_test_arrays

_CLASSES = tuple(str(digit) for digit in range(10))


def load_svhn(data_dir: Path, *, download: bool = False, needs_train: bool = True) -> DataSet:
    """Load train_32x32.mat and test_32x32.mat; the files write digit 0 as 10, which becomes 0 here.

    Unless it `needs_train`, the test file alone will do.
    """
    has_train = download or (data_dir / SVHN_TRAIN.file_name).exists()
    if not needs_train and not has_train and (data_dir / SVHN_TEST.file_name).exists():
        return from_test_arrays("svhn", *_read(data_dir, SVHN_TEST, download), _CLASSES)
    parts = [_read(data_dir, remote, download) for remote in (SVHN_TRAIN, SVHN_TEST)]
    return from_arrays("svhn", parts[0], parts[1], _CLASSES)


def _read(data_dir: Path, remote: Remote, download: bool) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    # Here, because it is slow to import and no other data set needs it.
    from scipy.io import loadmat

    path = data_dir / remote.file_name
    if download:
        fetch(remote.url, path, remote.checksum)
    if not path.is_file():
        raise UsageError(
            f"{path.name} is missing in {data_dir}: pass --data-dir with the folder that holds it, or fetch it with "
            f"--download ({FETCHERS})"
        )
    try:
        record: dict[str, Any] = loadmat(path, variable_names=["X", "y"])
    # A damaged Matlab file fails wherever the reader first trips: any error here means the file.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(
            f"{path} is truncated or damaged ({reason}): delete it and fetch it again with --download ({FETCHERS})"
        ) from error
    images, digits = record.get("X"), record.get("y")
    if images is None or digits is None:
        raise UsageError(f"{path} holds no X and y: fetch the cropped digits (format 2) again")
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise UsageError(f"{path}: X must be uint8 (32, 32, 3, N), found {images.dtype} {images.shape}: fetch it again")
    labels = digits.reshape(-1).astype(np.int64)
    if len(labels) != images.shape[3] or not ((labels >= 1) & (labels <= 10)).all():
        raise UsageError(f"{path}: y must hold {images.shape[3]} numbers from 1 to 10: fetch it again")
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels % 10
