"""CIFAR's files: read right from folder and archive, refused when hostile, damaged or missing."""

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probmargin.core.errors import UsageError
from probmargin.data.cifar import LAYOUTS, load_cifar
from probmargin.data.dataset import DataSet

WriteCifar = Callable[[str, Path], Path]
WritePickle = Callable[[object, Path], None]


def expected(count: int, seed: int) -> torch.Tensor:
    rows = np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)
    return torch.from_numpy(rows.reshape(count, 3, 32, 32))


def same(a: DataSet, b: DataSet) -> bool:
    return a.fingerprint == b.fingerprint and a.classes == b.classes


def test_cifar10_in_file_order(tmp_path: Path, write_cifar: WriteCifar) -> None:
    write_cifar("cifar10", tmp_path)
    data = load_cifar("cifar10", tmp_path)
    assert (len(data.train), len(data.test), data.num_classes) == (100, 10, 10)
    assert data.classes[:2] == ("class0", "class1")
    assert torch.equal(data.train.images, torch.cat([expected(20, seed) for seed in range(5)]))
    assert torch.equal(data.test.images, expected(10, 5))
    assert data.train.labels.tolist() == [n % 10 for n in range(20)] * 5
    assert data.train.index.tolist() == list(range(100))


def test_cifar100_has_fine_labels(tmp_path: Path, write_cifar: WriteCifar) -> None:
    write_cifar("cifar100", tmp_path)
    data = load_cifar("cifar100", tmp_path)
    assert (len(data.train), len(data.test), data.num_classes) == (20, 10, 100)
    assert data.train.labels.tolist() == list(range(20))
    assert torch.equal(data.train.images, expected(20, 0))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_folder_itself_and_archive_give_the_same(
    name: str, tmp_path: Path, write_cifar: WriteCifar, pack: Callable[[Path, Path], None]
) -> None:
    folder = write_cifar(name, tmp_path)
    data = load_cifar(name, tmp_path)
    assert same(load_cifar(name, folder), data)
    packed = tmp_path / "packed"
    packed.mkdir()
    archive = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}[name]
    pack(folder, packed / archive)
    assert same(load_cifar(name, packed), data)
    assert os.listdir(packed) == [archive]


def test_todays_pickles_are_read_too(tmp_path: Path, write_cifar: WriteCifar) -> None:
    folder = write_cifar("cifar10", tmp_path)
    before = load_cifar("cifar10", tmp_path)
    for protocol in (2, 4):
        record = {"labels": [n % 10 for n in range(10)], "data": expected(10, 5).reshape(10, -1).numpy()}
        (folder / "test_batch").write_bytes(pickle.dumps(record, protocol=protocol))
        assert same(load_cifar("cifar10", tmp_path), before)


class Evil:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.proof}",)


@pytest.mark.parametrize("file", ["data_batch_3", "batches.meta"])
def test_code_in_a_pickle_is_refused_and_not_run(file: str, tmp_path: Path, write_cifar: WriteCifar) -> None:
    folder, proof = write_cifar("cifar10", tmp_path), tmp_path / "proof"
    hostile = pickle.dumps({"data": Evil(proof)})
    pickle.loads(hostile)
    assert proof.exists(), "the attack must work on a plain unpickler for this test to mean anything"
    proof.unlink()
    (folder / file).write_bytes(hostile)
    with pytest.raises(UsageError, match=rf"{file} tries to run code \(\w+\.system\): refused; .*fetch it again"):
        load_cifar("cifar10", tmp_path)
    assert not proof.exists()


@pytest.mark.parametrize(
    "reference", ["builtins\neval", "builtins\ngetattr", "numpy\nload", "numpy.core.multiarray\nscalar"]
)
def test_only_the_short_list_is_admitted(reference: str, tmp_path: Path, write_cifar: WriteCifar) -> None:
    folder = write_cifar("cifar10", tmp_path)
    (folder / "test_batch").write_bytes(b"\x80\x02c" + reference.encode() + b"\n.")
    with pytest.raises(UsageError, match="tries to run code"):
        load_cifar("cifar10", tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 40, 0.5, 0.99])
def test_truncated_file_is_named(keep: float, tmp_path: Path, write_cifar: WriteCifar) -> None:
    path = write_cifar("cifar10", tmp_path) / "data_batch_2"
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    with pytest.raises(UsageError, match=r"data_batch_2 is truncated or damaged .*fetch it again"):
        load_cifar("cifar10", tmp_path)


def test_random_damage_never_escapes_as_another_error(tmp_path: Path, write_cifar: WriteCifar) -> None:
    path = write_cifar("cifar10", tmp_path) / "batches.meta"
    content = path.read_bytes()
    random = np.random.default_rng(0)
    messages: list[str] = []
    for _ in range(60):
        damaged = bytearray(content)
        for place in random.integers(0, len(content), 3):
            damaged[place] = random.integers(0, 256)
        path.write_bytes(damaged)
        try:
            load_cifar("cifar10", tmp_path)
        except UsageError as error:
            messages.append(str(error))
    # A flipped letter of a class name is no damage that can be seen, so not every round has a message.
    assert len(messages) > 10
    assert all("batches.meta" in message and "\n" not in message for message in messages)


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.95])
def test_truncated_archive_is_named(
    keep: float, tmp_path: Path, write_cifar: WriteCifar, pack: Callable[[Path, Path], None]
) -> None:
    folder, archive = write_cifar("cifar10", tmp_path), tmp_path / "cifar-10-python.tar.gz"
    pack(folder, archive)
    shutil.rmtree(folder)
    content = archive.read_bytes()
    archive.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    with pytest.raises(UsageError, match=r"cifar-10-python\.tar\.gz is truncated or damaged .*fetch it again"):
        load_cifar("cifar10", tmp_path)


def test_missing_files_are_named_with_the_fix(
    tmp_path: Path, write_cifar: WriteCifar, pack: Callable[[Path, Path], None]
) -> None:
    with pytest.raises(UsageError, match=f"cifar-10-batches-py/ nor cifar-10-python.tar.gz is in {tmp_path}: "):
        load_cifar("cifar10", tmp_path)
    folder = write_cifar("cifar10", tmp_path)
    (folder / "data_batch_4").unlink()
    with pytest.raises(UsageError, match=f"data_batch_4 is missing in {folder}: pass --data-dir.*--download"):
        load_cifar("cifar10", tmp_path)
    pack(folder, tmp_path / "cifar-10-python.tar.gz")
    with pytest.raises(UsageError, match=r"tar\.gz.*cifar-10-batches-py/data_batch_4 is missing"):
        load_cifar("cifar10", tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_test_images_alone_serve_where_no_training_is_meant(
    name: str, tmp_path: Path, write_cifar: WriteCifar, pack: Callable[[Path, Path], None]
) -> None:
    folder = write_cifar(name, tmp_path)
    whole = load_cifar(name, tmp_path, needs_train=False)
    pack(folder, tmp_path / "kept")
    train = [folder / file for file in LAYOUTS[name].train]
    for file in train[1:]:
        file.unlink()
    if len(train) > 1:
        with pytest.raises(UsageError, match="data_batch_2 is missing"):
            load_cifar(name, tmp_path, needs_train=False)
    train[0].unlink()
    for place in (tmp_path, folder):
        with pytest.raises(UsageError, match=f"{train[0].name} is missing in {folder}: pass --data-dir"):
            load_cifar(name, place)
        alone = load_cifar(name, place, needs_train=False)
        assert (len(alone.train), alone.classes, alone.open_ended) == (0, whole.classes, False)
        assert torch.equal(alone.test.images, whole.test.images)
        assert torch.equal(alone.test.labels, whole.test.labels)
        assert alone.fingerprint != whole.fingerprint
    (tmp_path / "kept").rename(tmp_path / LAYOUTS[name].remote.file_name)
    assert same(load_cifar(name, tmp_path, needs_train=False), whole), "the whole set comes first"
    (tmp_path / LAYOUTS[name].remote.file_name).unlink()
    (folder / LAYOUTS[name].meta).unlink()
    with pytest.raises(UsageError, match="is missing"):
        load_cifar(name, tmp_path, needs_train=False)


GOOD = np.zeros((3, 3072), np.uint8)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([1, 2], "holds a list"),
        ({"labels": [0, 1, 2]}, "data must be uint8"),
        ({"labels": [0, 1, 2], "data": GOOD[:, :-1]}, r"found uint8 \(3, 3071\)"),
        ({"labels": [0, 1, 2], "data": GOOD.astype(np.float32)}, r"found float32"),
        ({"data": GOOD}, "no labels for 3 images"),
        ({"labels": [0, 1], "data": GOOD}, "2 labels for 3 images"),
        ({"labels": [0, 1, 10], "data": GOOD}, "labels must be integers from 0 to 9"),
        ({"labels": [0, 1, -1], "data": GOOD}, "labels must be integers from 0 to 9"),
        ({"labels": [0, 1, 0.5], "data": GOOD}, "labels must be integers from 0 to 9"),
    ],
)
def test_wrong_records_are_refused(
    record: object, message: str, tmp_path: Path, write_cifar: WriteCifar, write_pickle: WritePickle
) -> None:
    write_pickle(record, write_cifar("cifar10", tmp_path) / "test_batch")
    with pytest.raises(UsageError, match=f"test_batch.*{message}"):
        load_cifar("cifar10", tmp_path)


def test_wrong_class_names_are_refused(tmp_path: Path, write_cifar: WriteCifar, write_pickle: WritePickle) -> None:
    write_pickle({"fine_label_names": ["a", "b"]}, write_cifar("cifar100", tmp_path) / "meta")
    with pytest.raises(UsageError, match=r"meta .*not a list of 100 names"):
        load_cifar("cifar100", tmp_path)


@pytest.mark.skipif("PROBMARGIN_DATA" not in os.environ, reason="needs PROBMARGIN_DATA")
def test_the_real_cifar10() -> None:
    data = load_cifar("cifar10", Path(os.environ["PROBMARGIN_DATA"]))
    assert (len(data.train), len(data.test)) == (50000, 10000)
    assert data.class_counts() == (5000,) * 10
    assert torch.bincount(data.test.labels).tolist() == [1000] * 10
    mean, std = data.mean_std()
    assert mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=1e-4)
    assert std == pytest.approx((0.2470, 0.2435, 0.2616), abs=1e-4)
