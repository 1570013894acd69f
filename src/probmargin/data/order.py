"""The order of test images, of which many commands take the first few."""

from dataclasses import replace

import torch

from probmargin.data.dataset import DataSet, ImageSet
from probmargin.data.seeds import stream


def mixed(test: ImageSet) -> ImageSet:
    """Return the examples in a mixed order that their number alone decides, so that the first N are a fair sample."""
    return test.take(torch.randperm(len(test), generator=stream("test order", 0)))


def fairly_ordered(data: DataSet) -> DataSet:
    """The data with its test images mixed where they lie class by class."""
    return replace(data, test=mixed(data.test)) if is_by_class(data.test.labels) else data


def is_by_class(labels: torch.Tensor) -> bool:
    """Whether each class's examples lie together; one example of each class is no such order.

    >>> is_by_class(torch.tensor([1, 1, 0])), is_by_class(torch.tensor([1, 0, 1])), is_by_class(torch.tensor([0, 1]))
    (True, False, False)
    """
    classes = len(labels.unique())
    return classes < len(labels) and len(labels.unique_consecutive()) == classes
