"""From the name a user types to a data set."""

import os
from functools import partial
from pathlib import Path

from probmargin.core.arguments import checked
from probmargin.core.errors import UsageError, unknown_name
from probmargin.data.cifar import load_cifar
from probmargin.data.dataset import DataSet
from probmargin.data.digits import load_digits
from probmargin.data.download import FETCHERS
from probmargin.data.folder import load_folder
from probmargin.data.npz import load_npz
from probmargin.data.svhn import load_svhn

DATA_DIR_VARIABLE = "PROBMARGIN_DATA"
DESCRIPTIONS: dict[str, str] = {
    "digits": "handwritten digits embedded in scikit-learn: 1,437 + 360 grey images of 8x8, 10 classes",
    "cifar10": "CIFAR-10 from its authors' files: 50,000 + 10,000 RGB images of 32x32, 10 classes",
    "cifar100": "CIFAR-100 from its authors' files: 50,000 + 10,000 RGB images of 32x32, 100 classes",
    "svhn": "SVHN cropped house numbers: 73,257 + 26,032 RGB images of 32x32, 10 classes",
    "folder:PATH": "images as PATH/train/CLASS/* and PATH/test/CLASS/*, or PATH/CLASS/* (20% for the test)",
    "npz:FILE": "arrays x_train, y_train, x_test, y_test (and classes) in a .npz file",
}


@checked
def load(
    spec: str | Path,
    data_dir: str | Path | None = None,
    *,
    download: bool = False,
    image_size: int | None = None,
    image_shape: tuple[int, int, int] | None = None,
    in_files: bool | None = None,
    needs_train: bool = True,
) -> DataSet:
    """Load digits, cifar10, cifar100, svhn, folder:PATH or npz:FILE.

    CIFAR and SVHN are read from `data_dir`, or else from the folder that PROBMARGIN_DATA names; only with
    `download` are they fetched into it when missing. `image_size`, a side, and `in_files` are for folder:PATH; so is
    `image_shape`, the (C, H, W) that a run was trained on. A Path is that of a folder or of an .npz file. To judge a
    model, test images alone will do: then `needs_train` is False.
    """
    spec = spec if isinstance(spec, str) else f"{'npz' if spec.suffix == '.npz' else 'folder'}:{spec}"
    kind, colon, place = spec.partition(":")
    if kind in ("folder", "npz"):
        if not place:
            example = next(known for known in DESCRIPTIONS if known.startswith(kind))
            raise UsageError(f"data set {spec!r} names no place: write {example}")
        if kind == "folder":
            return load_folder(
                Path(place),
                image_size=image_size,
                image_shape=image_shape,
                in_files=in_files,
                needs_train=needs_train,
            )
    elif colon or spec not in DESCRIPTIONS:
        raise _unknown(spec)
    if image_size is not None:
        raise UsageError(f"an image size is for folder:PATH alone; {kind} has its own: leave it out")
    if kind == "npz":
        return load_npz(Path(place), needs_train=needs_train)
    if kind == "digits":
        return load_digits()
    where = _data_dir(spec, data_dir, download)
    read = load_svhn if kind == "svhn" else partial(load_cifar, kind)
    return read(where, download=download, needs_train=needs_train)


def _data_dir(spec: str, data_dir: str | Path | None, download: bool) -> Path:
    """Resolve where the authors' files are; a download may still have to create the folder."""
    named = data_dir if data_dir is not None else os.environ.get(DATA_DIR_VARIABLE)
    if not named:
        raise UsageError(
            f"{spec} needs a folder with its files: pass --data-dir DIR or set {DATA_DIR_VARIABLE}=DIR "
            f"(--download fills it: {FETCHERS})"
        )
    where = Path(named).expanduser()
    if not where.is_dir() and (where.exists() or not download):
        raise UsageError(f"{where} is not a folder: pass --data-dir with the folder that holds {spec}'s files")
    return where


def _unknown(spec: str) -> UsageError:
    """The error for a name that is no data set's; it may be a place's."""
    is_file = spec.endswith(".npz") and os.path.isfile(spec)
    if is_file or os.path.isdir(spec):
        return UsageError(f"{spec!r} is a place and no data set: write {'npz' if is_file else 'folder'}:{spec}")
    return unknown_name("data set", spec, DESCRIPTIONS)
