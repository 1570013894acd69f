"""Digits, SVHN, .npz files, label noise, and the name a user types."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat
from sklearn.datasets import load_digits as sklearn_digits

from probmargin.core.errors import UsageError
from probmargin.core.shell import NAMED, is_named
from probmargin.data.dataset import image_set
from probmargin.data.digits import load_digits
from probmargin.data.label_noise import label_noise
from probmargin.data.loader import DESCRIPTIONS, load
from probmargin.data.npz import load_npz
from probmargin.data.svhn import load_svhn

RANDOM = np.random.default_rng(0)


def test_what_can_be_loaded_by_name_is_what_commands_name() -> None:
    assert all(is_named(name) for name in DESCRIPTIONS)
    assert {name for name in DESCRIPTIONS if ":" not in name} == set(NAMED)


def test_digits_are_sklearns_scaled_and_split_for_good() -> None:
    data, bunch = load_digits(), sklearn_digits()
    assert (len(data.train), len(data.test), data.image_size, data.channels) == (1437, 360, (8, 8), 1)
    for part in (data.train, data.test):
        want = np.floor(bunch.images[part.index] * 255 / 16 + 0.5).astype(np.uint8)
        assert np.array_equal(part.images[:, 0].numpy(), want)
        assert np.array_equal(part.labels.numpy(), bunch.target[part.index])
    assert sorted([*data.train.index.tolist(), *data.test.index.tolist()]) == list(range(1797))
    shares = torch.bincount(data.test.labels) / torch.bincount(torch.from_numpy(bunch.target))
    assert ((shares - 360 / 1797).abs() < 0.01).all()
    assert data.fingerprint == "7e6c91ac72f945af"


def write_svhn(folder: Path, **changes: Any) -> np.ndarray[Any, Any]:
    x = RANDOM.integers(0, 256, (32, 32, 3, 12), dtype=np.uint8)
    y = np.array([10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1], dtype=np.uint8)[:, None]
    for name in ("train", "test"):
        savemat(folder / f"{name}_32x32.mat", {"X": x, "y": y}, do_compression=True)
    if changes:
        record = {key: value for key, value in {"X": x, "y": y, **changes}.items() if value is not None}
        savemat(folder / "test_32x32.mat", record)
    return x


def test_svhn_turns_the_axes_and_calls_ten_zero(tmp_path: Path) -> None:
    x = write_svhn(tmp_path)
    data = load_svhn(tmp_path)
    assert data.train.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert data.train.images.shape == (12, 3, 32, 32)
    assert data.train.images[7, 2, 5, 30] == x[5, 30, 2, 7]
    assert data.num_classes == 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "holds no X and y"),
        ({"X": np.zeros((12, 32, 32, 3), np.uint8)}, "X must be uint8"),
        ({"X": np.zeros((32, 32, 3, 12))}, "X must be uint8 .* found float64"),
        ({"y": np.arange(12)[:, None]}, "y must hold 12 numbers from 1 to 10"),
        ({"y": np.ones((11, 1))}, "y must hold 12 numbers"),
    ],
)
def test_wrong_svhn_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_svhn(tmp_path, **changes)
    with pytest.raises(UsageError, match=f"test_32x32.mat.*{message}"):
        load_svhn(tmp_path)


@pytest.mark.parametrize("keep", [0, 50, 200, 9000])
def test_truncated_svhn_is_named(keep: int, tmp_path: Path) -> None:
    write_svhn(tmp_path)
    path = tmp_path / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"train_32x32.mat (is truncated or damaged|holds no X).*fetch"):
        load_svhn(tmp_path)


def test_svhn_has_test_images_alone_where_no_training_is_meant(tmp_path: Path) -> None:
    write_svhn(tmp_path)
    whole = load_svhn(tmp_path, needs_train=False)
    (tmp_path / "train_32x32.mat").unlink()
    alone = load_svhn(tmp_path, needs_train=False)
    assert (len(whole.train), len(alone.train), alone.classes) == (12, 0, whole.classes)
    assert torch.equal(alone.test.images, whole.test.images)
    assert alone.fingerprint != whole.fingerprint
    with pytest.raises(UsageError, match=r"train_32x32\.mat is missing"):
        load_svhn(tmp_path)


def test_missing_svhn_names_the_fix(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"train_32x32.mat is missing in {tmp_path}: pass --data-dir .*--download"):
        load_svhn(tmp_path)


X = RANDOM.integers(0, 256, (6, 3, 8, 7), dtype=np.uint8)
Y = np.array([0, 1, 2, 0, 1, 2])


def save(path: Path, x: Any, y: Any = Y, **more: Any) -> Path:
    np.savez(path, x_train=x, y_train=y, x_test=x[:3], y_test=y[:3], **more)
    return path


@pytest.mark.parametrize("x", [X, X.transpose(0, 2, 3, 1), (X / 255).astype(np.float32), X.transpose(0, 2, 3, 1) / 255])
def test_npz_in_each_layout(x: Any, tmp_path: Path) -> None:
    data = load_npz(save(tmp_path / "a.npz", x, classes=np.array(["cat", "dog", "eel"])))
    assert torch.equal(data.train.images, torch.from_numpy(X))
    assert torch.equal(data.test.images, torch.from_numpy(X[:3]))
    assert data.classes == ("cat", "dog", "eel")


@pytest.mark.parametrize("keys", [("x_train", "y_train", "x_test", "y_test"), ("x", "y")])
def test_npz_names_of_classes(keys: tuple[str, ...], tmp_path: Path) -> None:
    path, needs_train = tmp_path / "a.npz", len(keys) == 4
    arrays: dict[str, Any] = {key: X if key[0] == "x" else Y for key in keys}
    np.savez(path, **arrays, classes=np.array([b"cat", "tür".encode(), b"caf\xe9"]))
    assert load_npz(path, needs_train=needs_train).classes == ("cat", "tür", "caf\\xe9")
    np.savez(path, **arrays, classes=np.array(["cat", "dog", "cat"]))
    with pytest.raises(UsageError, match=r"a\.npz names two classes 'cat': give each a name of its own"):
        load_npz(path, needs_train=needs_train)


def test_npz_grey_without_a_channel_and_labels_in_a_column(tmp_path: Path) -> None:
    data = load_npz(save(tmp_path / "a.npz", X[:, 0], Y[:, None]))
    assert torch.equal(data.train.images, torch.from_numpy(X[:, :1]))
    assert data.classes == ("0", "1", "2")


@pytest.mark.parametrize(("labels", "mixed"), [(np.arange(30) // 10, True), (np.arange(30) % 3, False)])
def test_npz_that_lies_class_by_class_is_mixed(labels: Any, mixed: bool, tmp_path: Path) -> None:
    x = RANDOM.integers(0, 256, (30, 3, 8, 7), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.arange(30) % 3, x_test=x, y_test=labels)
    data = load_npz(tmp_path / "a.npz")
    assert set(data.test.labels[:9].tolist()) == {0, 1, 2}
    assert (data.test.index.tolist() != list(range(30))) == mixed
    assert torch.equal(data.test.images, torch.from_numpy(x)[data.test.index])
    assert torch.equal(data.test.labels, torch.from_numpy(labels)[data.test.index])
    assert torch.equal(data.train.labels, torch.arange(30) % 3)
    assert torch.equal(load_npz(tmp_path / "a.npz").test.index, data.test.index)


def test_npz_faults_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with pytest.raises(UsageError, match=r"a\.npz does not exist"):
        load_npz(path)
    np.savez(path, x_train=X, y_train=Y)
    with pytest.raises(UsageError, match="lacks x_test, y_test"):
        load_npz(path)
    save(path, X, Y.astype(object))
    with pytest.raises(UsageError, match="holds pickled objects, which are refused"):
        load_npz(path)
    save(path, X, classes=np.array(["cat", None, "eel"], dtype=object))
    with pytest.raises(UsageError, match="pickled objects"):
        load_npz(path)
    save(path, X * 1.0)
    with pytest.raises(UsageError, match=r"npz:.*a\.npz, train: .*divide by 255"):
        load_npz(path)
    whole = save(path, X).read_bytes()
    for keep in (0, 20, len(whole) // 2):
        path.write_bytes(whole[:keep])
        with pytest.raises(UsageError, match=r"a\.npz is truncated or damaged .*save it again"):
            load_npz(path)
    path.write_text("plain text")
    with pytest.raises(UsageError, match=r"a\.npz .*is no \.npz"):
        load_npz(path)
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(UsageError, match="is one array"):
        load_npz(path)


def test_noise_changes_exactly_its_share() -> None:
    labels = torch.arange(1000) % 10
    train = image_set(torch.zeros(1000, 1, 1, 1, dtype=torch.uint8), labels)
    noisy, changed = label_noise(train, "symmetric:0.2", 10, seed=0)
    assert (changed.dtype, int(changed.sum())) == (torch.bool, 200)
    assert torch.equal(noisy.labels != labels, changed)
    assert torch.equal(train.labels, torch.arange(1000) % 10)
    assert (int(noisy.labels.min()), int(noisy.labels.max())) == (0, 9)
    assert torch.equal(noisy.index, train.index)
    shifts = torch.bincount((noisy.labels - labels)[changed] % 10, minlength=10)
    assert shifts[0] == 0
    assert (shifts[1:] > 5).all(), "uniform over the nine other classes: 22 each on average"
    again, other = (label_noise(train, "symmetric:0.2", 10, seed=seed)[0] for seed in (0, 1))
    assert torch.equal(again.labels, noisy.labels)
    assert not torch.equal(other.labels, noisy.labels)


@pytest.mark.parametrize(("rate", "count"), [("0", 0), ("1", 7), ("0.5", 4), ("1e-9", 0)])
def test_noise_rounds(rate: str, count: int) -> None:
    train = image_set(torch.zeros(7, 1, 1, 1, dtype=torch.uint8), torch.arange(7) % 2)
    noisy, changed = label_noise(train, f"symmetric:{rate}", 2, seed=0)
    assert int(changed.sum()) == int((noisy.labels != train.labels).sum()) == count


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("symetric:0.2", "unknown label noise 'symetric'; did you mean symmetric"),
        ("symmetric", "has no rate: write for example symmetric:0.2"),
        ("symmetric:much", "has no rate"),
        ("symmetric:1.1", "from 0 to 1"),
        ("symmetric:-0.1", "from 0 to 1"),
        ("symmetric:nan", "from 0 to 1"),
    ],
)
def test_wrong_noise_specs(spec: str, message: str) -> None:
    train = image_set(torch.zeros(2, 1, 1, 1, dtype=torch.uint8), torch.tensor([0, 1]))
    with pytest.raises(UsageError, match=message):
        label_noise(train, spec, 2, seed=0)


def test_pairs_of_classes_are_taken_for_each_other() -> None:
    train = image_set(torch.zeros(100, 1, 2, 2), torch.arange(100) % 5)
    noisy, changed = label_noise(train, "pair:0.3", 5, seed=0)
    assert int(changed.sum()) == 30
    assert torch.equal(noisy.labels[changed], (train.labels[changed] + 1) % 5)
    assert torch.equal(noisy.labels[~changed], train.labels[~changed])


def test_noise_of_an_example_goes_by_its_pixels() -> None:
    draw = torch.Generator().manual_seed(0)
    kinds = torch.randint(0, 256, (8, 3, 12, 12), generator=draw, dtype=torch.uint8)
    labels = torch.arange(16000) % 4  # more wrong ones of a class than are looked at together
    pictures = torch.arange(16000) % 8
    train = image_set(kinds[pictures], labels)
    noisy, changed = label_noise(train, "instance:0.25", 4, seed=3)
    assert abs(float(changed.float().mean()) - 0.25) < 0.03
    assert torch.equal(changed, noisy.labels != labels)
    wrong = [noisy.labels[changed & (pictures == picture)] for picture in range(8)]
    alike = [float((found == found.mode().values).float().mean()) for found in wrong]
    assert sum(alike) / 8 > 0.8, "the same image goes the same way; by chance it would be a third"
    assert len({int(found.mode().values) for found in wrong}) > 2
    again, other = (label_noise(train, "instance:0.25", 4, seed=seed)[0] for seed in (3, 4))
    assert torch.equal(again.labels, noisy.labels)
    assert not torch.equal(other.labels, noisy.labels)
    for rate in (0.0, 0.02, 0.9):
        share = float(label_noise(train, f"instance:{rate}", 4, seed=0)[1].float().mean())
        assert abs(share - rate) < 0.03


def test_noise_of_examples_is_at_rates_of_their_own() -> None:
    """Of rates around 1 those above it are cut off, which leaves a mean of 0.960, and 0.976 of what is scaled to 1."""
    train = image_set(torch.zeros(4000, 1, 1, 1, dtype=torch.uint8), torch.arange(4000) % 2)
    assert 0.965 < float(label_noise(train, "instance:1", 2, seed=0)[1].float().mean()) < 0.987


def test_noise_needs_two_classes() -> None:
    train = image_set(torch.zeros(2, 1, 1, 1, dtype=torch.uint8), torch.tensor([0, 0]))
    with pytest.raises(UsageError, match="at least two classes"):
        label_noise(train, "symmetric:0.5", 1, seed=0)


def test_load_by_name(tmp_path: Path, write_cifar: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_svhn(tmp_path)
    for name in ("cifar10", "cifar100"):
        write_cifar(name, tmp_path)
    assert load("digits").name == "digits"
    assert load(f"npz:{save(tmp_path / 'a.npz', X)}").image_size == (8, 7)
    for name in ("cifar10", "cifar100", "svhn"):
        assert load(name, tmp_path).name == name
        monkeypatch.setenv("PROBMARGIN_DATA", str(tmp_path / "absent"))
        assert load(name, tmp_path).name == name, "what is given goes before what is set"
        monkeypatch.setenv("PROBMARGIN_DATA", str(tmp_path))
        assert load(name).name == name
        monkeypatch.delenv("PROBMARGIN_DATA")
        with pytest.raises(UsageError, match=rf"{name} needs a folder .*--data-dir DIR or set PROBMARGIN_DATA"):
            load(name)
        with pytest.raises(UsageError, match="absent is not a folder: pass --data-dir"):
            load(name, tmp_path / "absent")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cifar", r"unknown data set 'cifar'; did you mean cifar10"),
        ("digits:8", "unknown data set 'digits:8'"),
        ("zip:a", "unknown data set 'zip:a'"),
        ("folder", "names no place: write folder:PATH"),
        ("npz:", "names no place: write npz:FILE"),
    ],
)
def test_wrong_names(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(spec)


def test_an_image_size_is_for_folders() -> None:
    with pytest.raises(UsageError, match="folder:PATH alone; digits has its own"):
        load("digits", image_size=16)


def test_each_spec_has_one_line() -> None:
    assert list(DESCRIPTIONS) == ["digits", "cifar10", "cifar100", "svhn", "folder:PATH", "npz:FILE"]
    assert all(text and "\n" not in text for text in DESCRIPTIONS.values())
