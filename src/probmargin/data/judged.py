"""Test images alone, which a model can be judged on and not trained."""

from collections.abc import Sequence

from probmargin.core.errors import UsageError
from probmargin.data.checks import Array, as_tensor, check_images
from probmargin.data.dataset import DataSet, ImageSet, image_set


def no_images(like: ImageSet) -> ImageSet:
    """The training part of data that has none: no images, of the same shape."""
    return like.take([])


def from_test_arrays(name: str, images: Array, labels: Array, classes: Sequence[str] | None = None) -> DataSet:
    """Make a DataSet without training images; where classes are not named, the model may know more than occur.

    >>> import numpy as np
    >>> data = from_test_arrays("mine", np.zeros((2, 1, 2, 2), np.uint8), np.array([2, 2]))
    >>> len(data.train), data.classes, data.open_ended
    (0, ('0', '1', '2'), True)
    """
    x, y = as_tensor(images, "images"), as_tensor(labels, "labels")
    highest = int(y.max()) if y.numel() and not y.is_floating_point() else 0
    names = tuple(map(str, range(max(2, highest + 1)))) if classes is None else tuple(classes)
    try:
        check_images(x, y, len(names))
    except UsageError as error:
        raise UsageError(f"{name}, test: {error}") from None
    test = image_set(x, y)
    return DataSet(name, no_images(test), test, names, open_ended=classes is None)
