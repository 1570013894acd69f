"""The records: what they keep, how they are made, how they are split."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from probmargin.core.errors import UsageError
from probmargin.data.dataset import (
    DataSet,
    ImageSet,
    from_arrays,
    from_torch_datasets,
    image_set,
    split_validation,
)

RANDOM = np.random.default_rng(0)
X = RANDOM.integers(0, 256, (12, 3, 5, 4), dtype=np.uint8)
Y = np.arange(12) % 3


def make(labels: list[int]) -> ImageSet:
    """Make a set whose pixel and index both name the example, 100 apart."""
    count = len(labels)
    images = torch.arange(count).to(torch.uint8).reshape(count, 1, 1, 1)
    return ImageSet(images, torch.tensor(labels), torch.arange(count) + 100)


def test_image_set_keeps_examples_together() -> None:
    part = make([0, 1, 2, 1]).take([3, 0]).take(torch.tensor([1, 0]))
    assert (part.images.flatten().tolist(), part.labels.tolist(), part.index.tolist()) == (
        [0, 3],
        [0, 1],
        [100, 103],
    )
    assert len(part) == 2
    assert part.to("cpu").index.tolist() == [100, 103]


def test_floats_are_exact_255ths() -> None:
    every = image_set(torch.arange(256).to(torch.uint8).reshape(256, 1, 1, 1), torch.zeros(256).long())
    want = (np.arange(256, dtype=np.float64) / 255).astype(np.float32)
    assert every.floats().dtype == torch.float32
    assert np.array_equal(every.floats().flatten().numpy(), want)
    assert every.floats(torch.tensor([255, 3])).flatten().tolist() == [1.0, want[3]]


@pytest.mark.parametrize("field", ["images", "labels", "index"])
def test_image_set_refuses_wrong_types(field: str) -> None:
    good = vars(make([0, 1]))
    with pytest.raises(ValueError, match="must be"):
        ImageSet(**{**good, field: good[field].float()})
    with pytest.raises(ValueError, match="must be"):
        ImageSet(**{**good, field: good[field][:1, ...] if field != "images" else good[field][0]})


def test_data_set_describes_itself() -> None:
    data = from_arrays("mine", (X, Y), (X[:4], Y[:4]), ("a", "b", "c", "d"))
    assert (data.num_classes, data.channels, data.image_size) == (4, 3, (5, 4))
    assert data.class_counts() == (4, 4, 4, 0)
    mean, std = data.mean_std()
    assert mean == pytest.approx((X / 255).mean((0, 2, 3)), abs=1e-12)
    assert std == pytest.approx((X / 255).std((0, 2, 3)), abs=1e-12)


def test_a_constant_channel_can_be_divided_by() -> None:
    flat = np.full((4, 1, 2, 2), 51, np.uint8)
    mean, std = from_arrays("flat", (flat, Y[:4]), (flat, Y[:4])).mean_std()
    assert mean == pytest.approx((0.2,))
    assert std == (1.0,)


def test_a_channel_of_black_and_white_has_its_own_deviation() -> None:
    halves = np.zeros((4, 1, 2, 2), np.uint8)
    halves[:2] = 255
    assert from_arrays("halves", (halves, Y[:4]), (halves, Y[:4])).mean_std() == ((0.5,), (0.5,))


def test_fingerprint_sees_pixels_labels_and_shape() -> None:
    def mark(x: Any, y: Any, name: str = "n") -> str:
        return from_arrays(name, (x, y), (X, Y)).fingerprint

    first = mark(X, Y)
    assert first == mark(X.copy(), Y.copy(), "another name")
    assert len(first) == 16
    pixel, label = X.copy(), Y.copy()
    pixel[-1, -1, -1, -1] ^= 1
    label[-1] = 0
    assert len({first, mark(pixel, Y), mark(X, label)}) == 3
    wide = (X.reshape(12, 3, 4, 5), Y)
    assert from_arrays("n", wide, wide).fingerprint != first


def test_floats_round_to_the_nearest_level() -> None:
    x = torch.tensor([0.0, 0.001, 0.003, 0.5, 0.998, 0.999, 1.0, 0.2]).reshape(2, 1, 2, 2)
    data = from_arrays("floats", (x, torch.tensor([0, 1])), (x.double(), torch.tensor([0, 1])))
    assert data.train.images.flatten().tolist() == [0, 0, 1, 128, 254, 255, 255, 51]
    assert torch.equal(data.test.images, data.train.images)


@pytest.mark.parametrize(
    ("train", "test", "classes", "message"),
    [
        ((X / 1.0, Y), (X, Y), None, "mine, train: .*divide by 255"),
        (
            (X / 255 / 255, Y),
            (X, Y),
            None,
            r"mine, train: no pixel is above 0\.003922, .*divided by 255 twice: .*up to 1",
        ),
        ((torch.zeros(12, 3, 5, 4), Y), (X, Y), None, "mine, train: no pixel is above 0, black in 8 bits"),
        ((X * 0, Y), (X, Y), None, "mine, train: every pixel is 0, as of floats that were cast to uint8: .*255 times"),
        ((X, Y), (X, Y + 1), None, "mine, test: labels run from 1 to 3 but there are 3 classes"),
        ((X, Y), (X, Y), ("a", "b"), "mine, train: .*2 classes"),
        ((X, Y + 1), (X, Y), None, "mine, train: labels run from 1 to 3: .*subtract 1"),
        ((X, Y * 0), (X, Y), ("a", "b"), "mine, train: .*one class only"),
        ((X, Y), (X[:, :1], Y), None, r"\(3, 5, 4\) but test images are \(1, 5, 4\)"),
    ],
)
def test_from_arrays_says_which_part_is_wrong(train: Any, test: Any, classes: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_arrays("mine", train, test, classes)


class Pictures(Dataset[Any]):
    def __init__(self, pairs: list[tuple[Any, Any]]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, position: int) -> tuple[Any, Any]:
        return self.pairs[position]


def test_torch_datasets_of_each_kind_agree() -> None:
    want = from_arrays("d", (X, Y), (X, Y))
    floats = TensorDataset(torch.from_numpy(X) / 255, torch.from_numpy(Y))
    raw = Pictures([(torch.from_numpy(x), int(y)) for x, y in zip(X, Y, strict=True)])
    pil = Pictures([(Image.fromarray(x.transpose(1, 2, 0)), y) for x, y in zip(X, Y, strict=True)])
    for dataset in (floats, raw, pil):
        assert from_torch_datasets("d", dataset, dataset).fingerprint == want.fingerprint
    grey = Pictures([(Image.fromarray(x[0]), y) for x, y in zip(X, Y, strict=True)])
    assert torch.equal(from_torch_datasets("d", grey, grey).train.images, torch.from_numpy(X[:, :1]))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(torch.zeros(3, 4, 4), 0), (torch.zeros(3, 4, 5), 1)], "differ in shape"),
        ([(torch.zeros(3, 4, 4) - 1, 0), (torch.zeros(3, 4, 4), 1)], "normalisation inside the model"),
        ([(torch.zeros(3, 4, 4), 0.5)], "label 0 is a float"),
        ([(torch.zeros(3, 4, 4), 0), (torch.zeros(3, 4, 4) + 0.001, 1)], "every pixel is 0"),
        ([("picture", 0)], "image 0 is a str"),
        ([], "the dataset is empty"),
    ],
)
def test_wrong_torch_datasets(pairs: list[tuple[Any, Any]], message: str) -> None:
    with pytest.raises(UsageError, match=f"d, train: .*{message}"):
        from_torch_datasets("d", Pictures(pairs), Pictures(pairs))


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_deep_pictures_of_torch_datasets_are_refused_rather_than_clipped(mode: str) -> None:
    dtype = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
    deep = Image.fromarray(np.full((5, 4), 40000, dtype))
    assert deep.mode == mode
    pictures = Pictures([(Image.new("L", (4, 5)), 0), (deep, 1)])
    with pytest.raises(UsageError, match=f"d, train: image 1 has more than 8 bits a channel .mode {mode}.: save it"):
        from_torch_datasets("d", pictures, pictures)


def test_what_is_transparent_in_torch_datasets_becomes_white() -> None:
    shape = Image.new("RGBA", (4, 5), (0, 0, 0, 0))
    shape.putpixel((3, 2), (0, 0, 0, 255))
    index = Image.new("P", (4, 5), 0)
    index.putpixel((3, 2), 1)
    index.info["transparency"] = 0
    index.putpalette([9, 9, 9, 0, 0, 0])
    pictures = Pictures([(shape, 0), (index, 1), (shape.convert("LA"), 1)])
    images = from_torch_datasets("d", pictures, pictures).train.images
    assert images.shape == (3, 3, 5, 4)
    assert (images == 255).flatten(1).sum(1).tolist() == [3 * 19] * 3
    assert images[:, :, 2, 3].unique().tolist() == [0]


def test_iterable_datasets_are_refused() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter([])

    with pytest.raises(UsageError, match="map-style"):
        from_torch_datasets("d", Stream(), Stream())


@settings(deadline=None, derandomize=True, max_examples=80)
@given(
    labels=st.lists(st.sampled_from([0, 1, 2, 5]), min_size=2, max_size=60),
    seed=st.integers(-5, 2**63),
    data=st.data(),
)
def test_split_is_exact_stratified_and_repeatable(labels: list[int], seed: int, data: st.DataObject) -> None:
    train = make(labels)
    count = data.draw(st.integers(1, len(labels) - 1))
    rest, held = split_validation(train, count, seed)
    assert (len(rest), len(held)) == (len(labels) - count, count)
    for part in (rest, held):
        assert part.index.tolist() == sorted(part.index.tolist())
        assert torch.equal(part.images.flatten().long(), part.index - 100)
        assert [labels[i - 100] for i in part.index.tolist()] == part.labels.tolist()
    assert sorted(rest.index.tolist() + held.index.tolist()) == train.index.tolist()
    shares = {label: count * labels.count(label) / len(labels) for label in labels}
    # Where a share is all of a class but a fraction, rounding may stop at the last image.
    if all(labels.count(label) - share >= 1 for label, share in shares.items()):
        for label, share in shares.items():
            assert abs(held.labels.tolist().count(label) - share) < 1
    left = [rest.labels.tolist().count(label) for label in shares]
    assert min(left) > 0 or max(left) == 1, "no class's last image goes while another has more"
    again = split_validation(train, count, seed)[1]
    assert torch.equal(again.index, held.index)


def test_split_follows_the_seed_and_spreads_over_the_set() -> None:
    train = make([0, 1] * 100)
    chosen = [tuple(split_validation(train, 20, seed)[1].index.tolist()) for seed in range(20)]
    assert len(set(chosen)) == 20
    assert len({index for part in chosen for index in part}) > 150
    torch.manual_seed(1)
    assert tuple(split_validation(train, 20, 0)[1].index.tolist()) == chosen[0]


def test_split_of_data_with_a_class_of_one_image() -> None:
    train = make([0] * 1 + [1] * 59)
    assert split_validation(train, 30, 0)[1].labels.tolist() == [1] * 30
    assert split_validation(train, 58, 0)[0].labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("labels", "count", "want"),
    [([0, 1] * 6, 4, [2, 3, 4, 11]), ([0, 1, 2, 0, 1, 0, 0, 0, 2], 3, [1, 3, 5]), ([3, 0, 0, 3, 3, 0], 3, [0, 2, 5])],
)
def test_split_is_what_it_was(labels: list[int], count: int, want: list[int]) -> None:
    """Frozen: another draw would make held-out images of runs that are there into training images."""
    assert (split_validation(make(labels), count, 7)[1].index - 100).tolist() == want


@pytest.mark.parametrize("count", [-1, 0, 4, 5])
def test_split_refuses_impossible_counts(count: int) -> None:
    with pytest.raises(UsageError, match=f"cannot hold out {count} of 4 training images: ask for 1 to 3"):
        split_validation(make([0, 1, 0, 1]), count, 0)


def test_data_set_is_frozen() -> None:
    data = from_arrays("mine", (X, Y), (X, Y))
    assert isinstance(data, DataSet)
    with pytest.raises(AttributeError):
        data.name = "other"  # type: ignore[misc]
