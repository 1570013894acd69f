"""What is wrong with these images and labels, in one line that names the fix."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from probmargin.core.errors import UsageError
from probmargin.core.settings import PIXEL_ROUNDING

Array: TypeAlias = npt.NDArray[Any] | torch.Tensor
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# Beyond this a range is no mean/std normalisation: a white pixel reaches about 2.8 on the usual constants.
_NORMALISED_BOUND = 10.0
# Floats up to here come to black and two levels beside it; what was in [0, 255] and is divided twice ends at one.
_DIMMEST = 2.5 / 255
# Overshoot this small comes from resampling or rounding, not from another scale.
_OVERSHOOT = 0.05


def as_tensor(values: Array, what: str) -> torch.Tensor:
    """Turn a numpy array (of any byte order, writable or not) or a tensor into a tensor."""
    if isinstance(values, torch.Tensor):
        return values.detach()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "u" and array.dtype.itemsize > 1):
        raise UsageError(f"{what} have dtype {array.dtype}: pass uint8 or float images and integer (int64) labels")
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def check_images(images: Array, labels: Array, num_classes: int | None = None) -> None:
    """Raise UsageError unless these are images (N, C, H, W), uint8 or floats in [0, 1], with labels 0..K-1.

    Without `num_classes` the labels must hold at least two classes; with it a batch of one class is fine.
    """
    pixels, targets = as_tensor(images, "images"), as_tensor(labels, "labels")
    _check_shape(pixels)
    check_pixels(pixels)
    if pixels.dtype == torch.uint8 and int(pixels.max()) == 1:
        raise UsageError(
            "uint8 images go from 0 to 255, and these hold 0 and 1 alone: pass 255 times as much, or floats"
        )
    check_labels(targets, len(pixels), num_classes)


def _check_shape(pixels: torch.Tensor) -> None:
    shape = tuple(pixels.shape)
    must = f"images must have shape (N, C, H, W); found {shape}"
    if len(shape) == 3:
        raise UsageError(f"{must}: add a channel axis with images[:, None]")
    if len(shape) != 4:
        raise UsageError(f"{must}: pass one 4-dimensional array of all images")
    if shape[1] not in (1, 3):
        if shape[3] in (1, 3):
            raise UsageError(
                f"{must}: channels look last; move them with images.transpose(0, 3, 1, 2) "
                "(numpy) or images.permute(0, 3, 1, 2) (torch)"
            )
        raise UsageError(f"{must}: C must be 1 (grey) or 3 (RGB); convert the images to RGB")
    if 0 in shape:
        raise UsageError(f"{must}: there are no pixels; pass at least one image")


def check_pixels(pixels: torch.Tensor) -> None:
    """Raise UsageError unless the pixels are uint8, or floats in [0, 1]."""
    if pixels.dtype == torch.uint8:
        return
    if not pixels.is_floating_point():
        raise UsageError(f"images have dtype {_name(pixels.dtype)}: pass uint8 (0..255) or floats in [0, 1]")
    low, high = (float(value) for value in torch.aminmax(pixels.detach()))
    if not (np.isfinite(low) and np.isfinite(high)):
        first = int((~torch.isfinite(pixels)).flatten(1).any(1).nonzero()[0])
        raise UsageError(f"images hold NaN or infinite values (first at position {first}): repair or drop them")
    if low < -PIXEL_ROUNDING or high > 1 + PIXEL_ROUNDING:
        raise UsageError(f"images must be in [0, 1]; found values from {low:.4g} to {high:.4g}: {_fix(low, high)}")


def check_contrast(pixels: torch.Tensor) -> None:
    """Raise UsageError where a whole training set is black: a wrong scale left nothing to learn from."""
    highest = float(pixels.max())
    if pixels.is_floating_point() and highest <= _DIMMEST:
        raise UsageError(
            f"no pixel is above {highest:.4g}, black in 8 bits, as if divided by 255 twice: pass floats that go up to 1"
        )
    if highest == 0:
        raise UsageError(
            "every pixel is 0, as of floats that were cast to uint8: pass the floats, or 255 times as much as uint8"
        )


def _fix(low: float, high: float) -> str:
    """Guess what the user did to the images from the range they ended up with."""
    if low >= -_OVERSHOOT and high <= 1 + _OVERSHOOT:
        return "clip them to [0, 1]"
    if 0 <= low and 2 < high <= 255:
        return "they look like 0..255; divide by 255"
    if low < 0 and max(-low, high) <= _NORMALISED_BOUND:
        return "they look normalised; pass raw [0,1] images and put the normalisation inside the model"
    return "rescale them to [0, 1]"


def check_labels(labels: torch.Tensor, count: int, num_classes: int | None) -> None:
    """Raise UsageError unless each image has one integer label, in range, of more than one class."""
    if labels.ndim != 1:
        fix = (
            "labels.reshape(-1)"
            if labels.ndim == 0 or labels.numel() == len(labels)
            else "labels.argmax(1) if they are one-hot"
        )
        raise UsageError(f"labels must have shape (N,); found {tuple(labels.shape)}: use {fix}")
    if labels.dtype not in _INTEGERS:
        raise UsageError(f"labels have dtype {_name(labels.dtype)}: pass integer class numbers (int64)")
    if len(labels) != count:
        raise UsageError(f"{count} images but {len(labels)} labels: pass one label for each image")
    low, high = (int(value) for value in torch.aminmax(labels))
    if low < 0 or (num_classes is not None and high >= num_classes):
        raise UsageError(_range_message(low, high, num_classes))
    if (num_classes is None and low == high) or (num_classes is not None and num_classes < 2):
        raise UsageError(f"every label is {low}, one class only: pass images of at least two classes")


def _range_message(low: int, high: int, num_classes: int | None) -> str:
    found = f"labels run from {low} to {high}"
    if num_classes is None:
        return f"{found}: class numbers start at 0; relabel or drop the negative ones"
    hint = "subtract 1" if (low, high) == (1, num_classes) else "relabel them or name all classes"
    return f"{found} but there are {num_classes} classes, so labels must be 0 to {num_classes - 1}: {hint}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
