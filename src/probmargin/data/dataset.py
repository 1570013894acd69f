"""The records every data set ends in, and the ways to make them from a user's own arrays."""

import hashlib
import operator
from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from PIL import Image
from torch.utils.data import Dataset

from probmargin.core.errors import UsageError
from probmargin.data.checks import (
    Array as Array,
    as_tensor,
    check_contrast,
    check_images as check_images,
    check_pixels,
)
from probmargin.data.fingerprint import digest_of, remembered
from probmargin.data.picture import GREY_MODES, check_depth, flat, pixels_of
from probmargin.data.seeds import stream

_CHUNK = 1024


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images with labels; each example keeps its place in the original order through every split."""

    images: torch.Tensor
    """uint8, (N, C, H, W)."""
    labels: torch.Tensor
    """int64, (N,)."""
    index: torch.Tensor
    """int64, (N,): the example's position in the file it came from."""

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(f"images must be uint8 (N, C, H, W), not {self.images.dtype} {tuple(self.images.shape)}")
        for name, values in (("labels", self.labels), ("index", self.index)):
            if values.dtype != torch.int64 or values.shape != self.images.shape[:1]:
                raise ValueError(f"{name} must be int64 (N,), not {values.dtype} {tuple(values.shape)}")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, positions: torch.Tensor | Sequence[int]) -> "ImageSet":
        """Return the examples at these positions, in this order."""
        where = torch.as_tensor(positions, dtype=torch.int64, device=self.images.device)
        return ImageSet(self.images[where], self.labels[where], self.index[where])

    def to(self, device: torch.device | str) -> "ImageSet":
        """Return the same examples on a device."""
        return ImageSet(self.images.to(device), self.labels.to(device), self.index.to(device))

    def pixels(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the images at these positions, uint8."""
        return self.images[positions.to(self.images.device)]

    def with_labels_on(self, device: torch.device | str) -> "ImageSet":
        """Return the same examples with labels and index on a device, and the images where they are."""
        return replace(self, labels=self.labels.to(device), index=self.index.to(device))

    def counts(self) -> torch.Tensor:
        """Return how many pixels of each channel have each of the 256 values, int64 (C, 256)."""
        return counts_of(self.images)

    def mark(self, digest: "hashlib._Hash") -> None:
        """Add what identifies these examples to a digest."""
        digest.update(repr(tuple(self.images.shape)).encode())
        for tensor in (self.images, self.labels):
            digest.update(tensor.cpu().contiguous().numpy().data)

    def stamp(self, digest: "hashlib._Hash") -> None:
        """Add what cannot stay as it is when the examples change, and is had without reading files."""
        self.mark(digest)

    def floats(self, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Return float32 images in [0, 1], of all examples or of these positions."""
        chosen = self.images if positions is None else self.images[positions.to(self.images.device)]
        # A tensor: CUDA divides by a Python number through its reciprocal, which differs in the last bit.
        return chosen.to(torch.float32) / torch.full((), 255.0, device=chosen.device)


@dataclass(frozen=True, eq=False)
class DataSet:
    """A named data set: training and test images, and the names of the classes."""

    name: str
    train: ImageSet
    test: ImageSet
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What a user should know of how it was read."""
    train_files: tuple[str, ...] = ()
    """Where images are files, the name at each `index` of a training image."""
    open_ended: bool = False
    """May a model know more classes? The labels of test images alone do not tell."""
    as_read: str = ""
    """The fingerprint that it had before its labels were numbered in a model's order; "" where they were not."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for RGB."""
        return self.train.images.shape[1]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width."""
        return self.train.images.shape[2], self.train.images.shape[3]

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hex digits that change with any pixel or label: sha256 of shapes, images, and labels.

        What stays in files is read for it once, and again only when a file may have changed.
        """
        parts = (self.train, self.test)
        if not any(part.images.is_meta for part in parts):
            return digest_of(part.mark for part in parts)[:16]
        stamp = digest_of(part.stamp for part in parts)
        return remembered(stamp, lambda: digest_of(part.mark for part in parts)[:16])

    def mean_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return each channel's mean and standard deviation over the training pixels in [0, 1].

        A constant channel gets 1 as its deviation, so that dividing by it is safe.
        """
        levels = torch.arange(256, dtype=torch.float64) / 255
        means, deviations = [], []
        # 256 exact counts give exact moments without a float copy of the data set.
        for counts in self.train.counts().double():
            share = counts / counts.sum()
            mean = float((share * levels).sum())
            deviation = float((share * (levels - mean) ** 2).sum()) ** 0.5
            means.append(mean)
            deviations.append(deviation if int((counts > 0).sum()) > 1 else 1.0)
        return tuple(means), tuple(deviations)

    def class_counts(self) -> tuple[int, ...]:
        """Return the number of training examples of each class."""
        return tuple(torch.bincount(self.train.labels, minlength=self.num_classes).tolist())


def counts_of(images: torch.Tensor) -> torch.Tensor:
    """How many pixels of each channel of uint8 images (N, C, H, W) have each value, int64 (C, 256)."""
    channels = (images[:, channel].flatten() for channel in range(images.shape[1]))
    return torch.stack([torch.bincount(values, minlength=256).cpu() for values in channels])


def image_set(images: torch.Tensor, labels: torch.Tensor) -> ImageSet:
    """Make an ImageSet of checked images, rounding floats in [0, 1] to 0..255, with the index 0..N-1."""
    if images.is_floating_point():
        images = _to_uint8(images)
    return ImageSet(images, labels.to(torch.int64), torch.arange(len(labels), device=labels.device))


def _to_uint8(images: torch.Tensor) -> torch.Tensor:
    return (images.float() * 255).round().to(torch.uint8)


def from_arrays(
    name: str, train: tuple[Array, Array], test: tuple[Array, Array], classes: Sequence[str] | None = None
) -> DataSet:
    """Make a DataSet from (images, labels) pairs of numpy arrays or tensors.

    Images are (N, C, H, W), uint8 or floats in [0, 1], labels integers from 0. Floats are rounded to
    uint8 (0..255), because the package keeps 8-bit images.
    Classes default to "0", "1", ...

    >>> import numpy as np
    >>> x, y = np.full((4, 1, 2, 2), 51, np.uint8), np.array([0, 1, 0, 1])
    >>> from_arrays("mine", (x, y), (x, y)).classes
    ('0', '1')
    """
    parts = [(as_tensor(x, "images"), as_tensor(y, "labels")) for x, y in (train, test)]
    num_classes = None if classes is None else len(classes)
    for which, (images, labels) in zip(("train", "test"), parts, strict=True):
        try:
            check_images(images, labels, num_classes)
            if which == "train":
                check_contrast(images)
                num_classes = _num_classes(labels, num_classes)
        except UsageError as error:
            raise UsageError(f"{name}, {which}: {error}") from None
    (x_train, _), (x_test, _) = parts
    if x_train.shape[1:] != x_test.shape[1:]:
        raise UsageError(
            f"{name}: train images are {tuple(x_train.shape[1:])} "
            f"but test images are {tuple(x_test.shape[1:])}: "
            "bring both to one (C, H, W)"
        )
    names = tuple(str(number) for number in range(num_classes or 0)) if classes is None else tuple(classes)
    return DataSet(name, image_set(*parts[0]), image_set(*parts[1]), names)


def _num_classes(labels: torch.Tensor, named: int | None) -> int:
    """Count the classes of a training set, which must show at least two and, unless named, start at 0."""
    low, high = (int(value) for value in torch.aminmax(labels))
    if low == high:
        raise UsageError(f"every label is {low}, one class only: pass images of at least two classes")
    if named is not None:
        return named
    if low > 0:
        raise UsageError(f"labels run from {low} to {high}: class numbers start at 0; subtract {low}")
    return high + 1


def from_torch_datasets(name: str, train: Dataset[Any], test: Dataset[Any]) -> DataSet:
    """Make a DataSet from map-style torch datasets giving (image, label).

    An image is a float tensor in [0, 1], a uint8 tensor, or a PIL image of 8 bits, where what is transparent becomes
    white. Every example is read once, so a random transform would be frozen: pass the data without augmentation.
    Floats are rounded to uint8.
    """
    pairs = []
    for which, part in (("train", train), ("test", test)):
        if not hasattr(part, "__len__") or not hasattr(part, "__getitem__"):
            raise UsageError(f"{name}, {which}: not a map-style dataset; pass one with len() and [index]")
        try:
            pairs.append(_read_all(part))
        except UsageError as error:
            raise UsageError(f"{name}, {which}: {error}") from None
    return from_arrays(name, pairs[0], pairs[1])


def _read_all(dataset: Dataset[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Read every example, keeping only 8-bit images in memory."""
    count = len(cast(Sized, dataset))
    if count == 0:
        raise UsageError("the dataset is empty: pass at least one image")
    chunks, labels = [], []
    for start in range(0, count, _CHUNK):
        images = []
        for position in range(start, min(start + _CHUNK, count)):
            image, label = _pair(dataset[position], position)
            images.append(_image_tensor(image, position))
            labels.append(_label_number(label, position))
        if len({(image.shape, image.dtype) for image in images}) > 1:
            raise UsageError(f"images {start} to {start + len(images) - 1} differ in shape or type: resize them all")
        chunk = torch.stack(images)
        check_pixels(chunk)
        chunks.append(_to_uint8(chunk) if chunk.is_floating_point() else chunk)
    if len({chunk.shape[1:] for chunk in chunks}) > 1:
        raise UsageError("images differ in shape: resize them all to one size")
    return torch.cat(chunks), torch.tensor(labels)


def _pair(example: Any, position: int) -> tuple[Any, Any]:
    if isinstance(example, tuple | list) and len(example) == 2:
        return example[0], example[1]
    keys = f" with the keys {', '.join(map(repr, example))}" if isinstance(example, dict) else ""
    raise UsageError(f"example {position} is a {type(example).__name__}{keys}: give (image, label) pairs")


def _image_tensor(image: object, position: int) -> torch.Tensor:
    if isinstance(image, torch.Tensor):
        return image.detach().cpu()
    if isinstance(image, Image.Image):
        check_depth(f"image {position}", image.mode)
        return pixels_of(flat(image, "L" if image.mode in GREY_MODES else "RGB"))
    raise UsageError(f"image {position} is a {type(image).__name__}: give a tensor (C, H, W) or a PIL image")


def _label_number(label: Any, position: int) -> int:
    try:
        return operator.index(label)
    except TypeError:
        raise UsageError(f"label {position} is a {type(label).__name__}: give an integer class number") from None


def split_validation(train: ImageSet, count: int, seed: int) -> tuple[ImageSet, ImageSet]:
    """Split off exactly `count` examples, stratified by class: (rest, held out), both in the original order.

    Class shares are kept as well as whole numbers allow (largest remainder), but for the last image of a class, which
    stays while another class has more; the seed alone decides who goes.
    """
    total = len(train)
    if not 1 <= count < total:
        raise UsageError(f"cannot hold out {count} of {total} training images: ask for 1 to {total - 1}")
    order = torch.randperm(total, generator=stream("split", seed))
    shuffled = train.labels.cpu()[order]
    held = torch.zeros(total, dtype=torch.bool)
    sizes = torch.bincount(shuffled).tolist()
    for label, quota in enumerate(_quotas(sizes, count)):
        held[order[shuffled == label][:quota]] = True
    return train.take((~held).nonzero()[:, 0]), train.take(held.nonzero()[:, 0])


def _quotas(sizes: list[int], count: int) -> list[int]:
    """Share `count` out in proportion to sizes by the largest remainder, in whole numbers.

    No size is used up while another has more than one left.

    >>> _quotas([5, 3, 2], 4), _quotas([1, 1, 8], 5)
    ([2, 1, 1], [0, 0, 5])
    """
    total = sum(sizes)
    quotas = [count * size // total for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda label: -(count * sizes[label] % total))
    for label in by_remainder[: count - sum(quotas)]:
        quotas[label] += 1
    left = [size - quota for size, quota in zip(sizes, quotas, strict=True)]
    for label, size in enumerate(sizes):
        most = max(left)
        if size and not left[label] and most > 1:
            giver = left.index(most)
            left[label], left[giver] = 1, most - 1
    return [size - rest for size, rest in zip(sizes, left, strict=True)]
