"""Every way a user's arrays can be wrong gets one line that names the fix."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from probmargin.core.errors import UsageError
from probmargin.data.checks import check_pixels
from probmargin.data.dataset import check_images

X = np.linspace(0, 1, 4 * 3 * 5 * 6, dtype=np.float32).reshape(4, 3, 5, 6)
Y = np.array([0, 1, 2, 1])
NAN, INF = X.copy(), X.copy()
NAN[2, 0, 0, 0] = np.nan
INF[3, 0, 0, 0] = np.inf


@pytest.mark.parametrize(
    ("images", "labels", "num_classes", "message"),
    [
        (NAN, Y, None, r"NaN or infinite values \(first at position 2\): repair"),
        (INF, Y, None, r"NaN or infinite values \(first at position 3\)"),
        (X * 255, Y, None, r"from 0 to 255: they look like 0\.\.255; divide by 255"),
        ((X - 0.5) / 0.25, Y, None, r"pass raw \[0,1\] images and put the normalisation inside the model"),
        (X * 2 - 1, Y, None, "put the normalisation inside the model"),
        (X * 1.001, Y, None, r"clip them to \[0, 1\]"),
        (X * 4000, Y, None, r"rescale them to \[0, 1\]"),
        ((X * 255).astype(np.int64), Y, None, "dtype int64: pass uint8"),
        (X.astype(object), Y, None, "images have dtype object"),
        ((X * 255).astype(np.uint16), Y, None, "images have dtype uint16"),
        (X[:, 0], Y, None, r"\(N, C, H, W\); found \(4, 5, 6\): add a channel axis with images\[:, None\]"),
        (X.reshape(4, -1), Y, None, r"\(N, C, H, W\); found \(4, 90\)"),
        (X.transpose(0, 2, 3, 1), Y, None, r"\(N, C, H, W\).*images.transpose\(0, 3, 1, 2\)"),
        (np.zeros((4, 4, 8, 8)), Y, None, r"C must be 1 \(grey\) or 3 \(RGB\)"),
        (X[:0], Y[:0], None, "pass at least one image"),
        (X, Y, 2, "labels run from 0 to 2 but there are 2 classes, so labels must be 0 to 1"),
        (X, np.array([1, 2, 3, 3]), 3, "labels run from 1 to 3 but there are 3 classes.*subtract 1"),
        (X, Y - 1, None, "labels run from -1 to 1: class numbers start at 0"),
        (X, Y.astype(np.float32), None, "labels have dtype float32: pass integer"),
        (X, Y > 0, None, "labels have dtype bool: pass integer"),
        (X, np.array(["a", "b", "c", "d"]), None, "labels have dtype <U1"),
        (X, Y[:3], None, "4 images but 3 labels"),
        (X, Y[:, None], None, r"found \(4, 1\): use labels.reshape\(-1\)"),
        (X, np.eye(4)[Y], None, r"found \(4, 4\): use labels.argmax\(1\) if they are one-hot"),
        (X, Y * 0, None, "every label is 0, one class only"),
        (X, Y * 0, 1, "one class only"),
    ],
)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_each_fault_has_its_line(
    kind: str, images: npt.NDArray[Any], labels: npt.NDArray[Any], num_classes: int | None, message: str
) -> None:
    given: list[Any] = [images, labels]
    # Tensors have no objects and no strings, and numpy alone is asked about uint16.
    if kind == "torch" and images.dtype.kind not in "OU" and labels.dtype.kind != "U" and images.itemsize != 2:
        given = [torch.from_numpy(np.ascontiguousarray(array)) for array in given]
    with pytest.raises(UsageError, match=message) as caught:
        check_images(given[0], given[1], num_classes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("images", "labels", "num_classes"),
    [
        (X, Y, None),
        (X, Y, 3),
        (X, Y * 0, 3),
        ((X[:1] * 0).astype(np.uint8), Y[:1], 3),
        (X[:1] / 255, Y[:1], 3),
        ((X * 255).astype(np.uint8), Y.astype(np.uint8), 10),
        (X[:, :1].astype(np.float64), Y.astype(np.int32), None),
        (X.astype(">f4"), Y.astype(">i8"), None),
        (X[::-1], Y[::-1], None),
        (torch.from_numpy(X).half(), torch.from_numpy(Y), None),
    ],
)
def test_good_data_passes(images: Any, labels: Any, num_classes: int | None) -> None:
    check_images(images, labels, num_classes)


def test_images_that_want_gradients_pass_without_a_warning() -> None:
    check_pixels(torch.from_numpy(X).requires_grad_())


def test_read_only_arrays_pass() -> None:
    images = X.copy()
    images.flags.writeable = False
    check_images(images, Y)
