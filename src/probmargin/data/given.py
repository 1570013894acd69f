"""Data as a script hands it over: a name, arrays, or torch data sets."""

from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch.utils.data import DataLoader, Dataset

from probmargin.core.errors import UsageError
from probmargin.data.checks import Array
from probmargin.data.dataset import DataSet, from_arrays, from_torch_datasets
from probmargin.data.loader import load
from probmargin.data.order import fairly_ordered

Arrays: TypeAlias = tuple[Any, Any]
"""Images and labels, as arrays or tensors."""

Given: TypeAlias = str | Path | DataSet | tuple[Arrays, Arrays] | tuple[Dataset[Any], Dataset[Any]]

_KINDS = "a name such as 'cifar10', a DataSet, ((x, y), (x_test, y_test)), or two torch data sets (train, test)"


def as_data_set(
    data: Given, data_dir: Path | str | None = None, *, download: bool = False, in_files: bool | None = None
) -> DataSet:
    """Make a DataSet of what was given, or say what can be given."""
    if isinstance(data, DataSet):
        if not len(data.train):
            raise UsageError(f"{data.name} has test images alone, which serve to judge a model: add training images")
        return data
    if isinstance(data, str | Path):
        return load(data, data_dir or None, download=download, in_files=in_files)
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise UsageError(f"data is given as {type(data).__name__}: pass {_KINDS}")
    if any(isinstance(part, DataLoader) for part in data):
        raise UsageError("data is given as loaders: pass what they load, (train_loader.dataset, test_loader.dataset)")
    train, test = cast(tuple[Any, Any], data)
    if isinstance(train, Dataset) and isinstance(test, Dataset):
        return fairly_ordered(from_torch_datasets("datasets", train, test))
    if not all(isinstance(part, tuple | list) and len(part) == 2 for part in data):
        raise UsageError(f"data is given as a pair of {type(train).__name__}: pass {_KINDS}")
    return fairly_ordered(from_arrays("arrays", (train[0], train[1]), (test[0], test[1])))


def collected(data: Any) -> tuple[Array, Array]:
    """Images and labels: as they are given, or all batches of a loader."""
    if isinstance(data, DataLoader):
        batches = [_images_and_labels(batch) for batch in data]
        if not batches:
            raise UsageError("the loader yields no batch: give it data, and leave out drop_last")
        if len(shapes := {tuple(x.shape[1:]): None for x, _ in batches}) > 1:
            first, other, *_ = shapes
            raise UsageError(f"the loader yields images of {first} and of {other}: bring all to one shape")
        return torch.cat([x for x, _ in batches]), torch.cat([labels for _, labels in batches])
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise UsageError(
            f"evaluate takes images and labels as (x, y), or a DataLoader of both, not {type(data).__name__}: "
            "collect them first"
        )
    return data[0], data[1]


def _images_and_labels(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    is_pair = isinstance(batch, tuple | list) and len(batch) == 2
    if not is_pair or not all(isinstance(part, torch.Tensor) for part in batch):
        raise UsageError(f"the loader yields {type(batch).__name__}: make it yield (images, labels), two tensors")
    if batch[1].ndim == 0:
        raise UsageError("the loader yields one image at a time: give it a batch_size")
    return batch[0], batch[1]
