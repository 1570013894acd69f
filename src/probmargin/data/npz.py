"""Arrays of a user's own in one .npz file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from probmargin.core.errors import UsageError
from probmargin.data.dataset import DataSet, from_arrays
from probmargin.data.order import is_by_class, mixed

KEYS = ("x_train", "y_train", "x_test", "y_test")


def load_npz(path: Path) -> DataSet:
    """Load x_train, y_train, x_test, y_test and, if there, classes (names) from a .npz file.

    Images are (N, H, W), (N, H, W, C) or (N, C, H, W), uint8 or floats in [0, 1], which are rounded to
    uint8. Where both axes could be the channels, (N, C, H, W) is meant. Pickled objects are refused.
    Test images that lie class by class come in a mixed order, always the same, so that the first N are a fair sample;
    `index` is the place in the file. Others keep the file's order.
    """
    path = path.expanduser()
    if not path.is_file():
        raise UsageError(f"{path} does not exist: pass npz:FILE with {', '.join(KEYS)} in it")
    arrays = _read(path)
    missing = [key for key in KEYS if key not in arrays]
    if missing:
        raise UsageError(f"{path} lacks {', '.join(missing)}: save it with numpy.savez and {', '.join(KEYS)}")
    last = _channels_last(arrays["x_train"].shape)
    train, test = (
        (_channels_first(arrays[f"x_{part}"], last), _flat(arrays[f"y_{part}"])) for part in ("train", "test")
    )
    classes = tuple(str(name) for name in arrays["classes"].reshape(-1)) if "classes" in arrays else None
    data = from_arrays(f"npz:{path}", train, test, classes)
    return replace(data, test=mixed(data.test)) if is_by_class(data.test.labels) else data


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        # Opened here, because numpy leaves the file open when its content is no zip archive after all.
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise UsageError(f"{path} is one array, not an .npz: save it with numpy.savez and {', '.join(KEYS)}")
            return {key: file[key] for key in (*KEYS, "classes") if key in file.files}
    except UsageError:
        raise
    # zipfile, zlib and numpy's header parser each have errors of their own, and all mean the file.
    except Exception as error:
        if "allow_pickle" in str(error):
            raise UsageError(
                f"{path} holds pickled objects, which are refused, or is no .npz: save plain numeric arrays "
                "(and class names as a string array)"
            ) from error
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{path} is truncated or damaged ({reason}): save it again") from error


def _channels_last(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and shape[3] in (1, 3) and shape[1] not in (1, 3)


def _channels_first(images: npt.NDArray[Any], last: bool) -> npt.NDArray[Any]:
    if images.ndim == 3:
        return images[:, None]
    return images.transpose(0, 3, 1, 2) if last and images.ndim == 4 else images


def _flat(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Accept a column of labels, which many tools write."""
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
