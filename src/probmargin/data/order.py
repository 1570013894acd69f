"""The order of test images, of which many commands take the first few."""

import torch

from probmargin.data.dataset import ImageSet
from probmargin.data.seeds import stream


def mixed(test: ImageSet) -> ImageSet:
    """Return the examples in a mixed order that their number alone decides, so that the first N are a fair sample."""
    return test.take(torch.randperm(len(test), generator=stream("test order", 0)))


def is_by_class(labels: torch.Tensor) -> bool:
    """Whether each class's examples lie together; one example of each class is no such order.

    >>> is_by_class(torch.tensor([1, 1, 0])), is_by_class(torch.tensor([1, 0, 1])), is_by_class(torch.tensor([0, 1]))
    (True, False, False)
    """
    classes = len(labels.unique())
    return classes < len(labels) and len(labels.unique_consecutive()) == classes
