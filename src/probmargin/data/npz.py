"""Arrays of a user's own in one .npz file."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from probmargin.core.errors import UsageError
from probmargin.data.dataset import DataSet, from_arrays
from probmargin.data.judged import from_test_arrays
from probmargin.data.order import fairly_ordered

KEYS = ("x_train", "y_train", "x_test", "y_test")
_JUDGED = (("x_test", "y_test"), ("x", "y"), ("images", "labels"))
"""What test images alone may be called."""


def load_npz(path: Path, *, needs_train: bool = True) -> DataSet:
    """Load x_train, y_train, x_test, y_test and, if there, classes (names) from a .npz file.

    Images are (N, H, W), (N, H, W, C) or (N, C, H, W), uint8 or floats in [0, 1], which are rounded to
    uint8. Where both axes could be the channels, (N, C, H, W) is meant. Pickled objects are refused.
    Test images that lie class by class come in a mixed order, always the same, so that the first N are a fair sample;
    `index` is the place in the file. Others keep the file's order. Unless it `needs_train`, a file may hold x_test and
    y_test alone, also called x and y, or images and labels.
    """
    path = path.expanduser()
    if not path.is_file():
        raise UsageError(f"{path} does not exist: pass npz:FILE with {', '.join(KEYS)} in it")
    arrays = _read(path)
    pairs = _pairs(path, arrays, needs_train)
    last = _channels_last(arrays[pairs[0][0]].shape)
    parts = [(_channels_first(arrays[x], last), _flat(arrays[y])) for x, y in pairs]
    classes = _names(path, arrays["classes"]) if "classes" in arrays else None
    name = f"npz:{path}"
    data = (
        from_test_arrays(name, *parts[0], classes)
        if len(parts) == 1
        else from_arrays(name, parts[0], parts[1], classes)
    )
    return fairly_ordered(data)


def _names(path: Path, classes: npt.NDArray[Any]) -> tuple[str, ...]:
    """The names of the classes, each of them once."""
    flat = classes.reshape(-1)
    names = [name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name) for name in flat]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise UsageError(f"{path} names two classes {name!r}: give each a name of its own")
    return tuple(names)


def _pairs(path: Path, arrays: dict[str, npt.NDArray[Any]], needs_train: bool) -> list[tuple[str, str]]:
    """The names of images and labels, first of the training part and then of the test part."""
    if not needs_train and not arrays.keys() & {"x_train", "y_train"}:
        whole = [pair for pair in _JUDGED if arrays.keys() >= set(pair)]
        if not whole:
            raise UsageError(f"{path} lacks test images with labels: save it with numpy.savez and x_test, y_test")
        return whole[:1]
    missing = [key for key in KEYS if key not in arrays]
    if missing == ["x_train", "y_train"]:
        raise UsageError(f"{path} has test images alone, which serve to judge a model: add x_train, y_train to train")
    if missing:
        raise UsageError(f"{path} lacks {', '.join(missing)}: save it with numpy.savez and {', '.join(KEYS)}")
    return [("x_train", "y_train"), ("x_test", "y_test")]


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        # Opened here, because numpy leaves the file open when its content is no zip archive after all.
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise UsageError(f"{path} is one array, not an .npz: save it with numpy.savez and {', '.join(KEYS)}")
            names = KEYS if set(KEYS) & set(file.files) else tuple(name for pair in _JUDGED for name in pair)
            return {key: file[key] for key in (*names, "classes") if key in file.files}
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
