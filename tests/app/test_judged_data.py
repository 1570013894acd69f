"""Data with a test part alone: models are judged on it, and nothing is trained on it."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from program import Program, program as program
from trained_run import trained as trained

from probmargin import api as pm
from probmargin.data.digits import load_digits
from probmargin.data.loader import load

NET = """
from torch import nn
def build(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, num_classes))
def wide():
    return build(10, 1)
"""
NAT = ("--attacks", "nat,pgd-2", "--eps", "0.05")


@pytest.fixture
def weights(program: Program) -> Path:
    """A network of one's own for ten classes."""
    assert program
    Path("net.py").write_text(NET, encoding="utf-8")
    torch.manual_seed(0)
    path = Path("w.pt")
    torch.save({"1.weight": torch.randn(10, 64), "1.bias": torch.zeros(10)}, path)
    return path


def model(name: str = "net:build") -> tuple[str, ...]:
    return ("--model", name, "--checkpoint", "w.pt")


def images(labels: Any, **names: Any) -> dict[str, Any]:
    x = np.random.default_rng(0).integers(0, 256, (len(labels), 1, 8, 8), dtype=np.uint8)
    return {"x_test": x, "y_test": np.asarray(labels), **names}


def pictures(root: str, *classes: str, count: int = 4) -> None:
    draw = np.random.default_rng(0)
    for name in classes:
        folder = Path(root, name)
        folder.mkdir(parents=True)
        for number in range(count):
            Image.fromarray(draw.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / f"{number}.png")


def judged(program: Program, *arguments: str) -> dict[str, Any]:
    result = program("evaluate", *arguments, *NAT, "--out", "e.json", "--fresh")
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(Path("e.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("names", [("x_test", "y_test"), ("x", "y"), ("images", "labels")])
def test_arrays_alone_give_what_they_give_beside_a_training_part(
    program: Program, weights: Path, names: tuple[str, str]
) -> None:
    assert weights.exists()
    part = images(np.arange(20) % 10)
    np.savez("whole.npz", x_train=part["x_test"], y_train=part["y_test"], **part)
    np.savez("alone.npz", **dict(zip(names, part.values(), strict=True)))
    whole, alone = (judged(program, *model(), "--data", f"npz:{name}.npz") for name in ("whole", "alone"))
    assert alone["worst_case"] == whole["worst_case"]
    assert alone["nat"]["accuracy"] == whole["nat"]["accuracy"]
    assert alone["test_images"] == 20
    assert alone["data_fingerprint"] != whole["data_fingerprint"]
    assert program("audit", *model(), "--data", "npz:alone.npz", "--num-examples", "4").code == 0


@pytest.mark.parametrize("name", ["net:build", "net:wide"])
@pytest.mark.parametrize("labels", [[3, 7, 3, 7], [2, 2, 2]])
def test_the_model_says_how_many_classes_there_are_where_not_all_occur(
    program: Program, weights: Path, trained: Path, name: str, labels: list[int]
) -> None:
    assert weights.exists()
    np.savez("alone.npz", **images(labels))
    assert len(judged(program, *model(name), "--data", "npz:alone.npz")["worst_case"]["confusion"]) == 10
    audited = program("audit", *model(name), "--data", "npz:alone.npz", "--surrogate", str(trained))
    assert audited.code == 0, audited.err


def test_a_model_with_too_few_outputs_or_for_other_named_classes_is_refused(program: Program, weights: Path) -> None:
    assert weights.exists()
    np.savez("more.npz", **images([0, 11]))
    asked = ("evaluate", *NAT, "--data")
    program.refuses("is for another number of classes", *asked, "npz:more.npz", *model())
    program.refuses("the data has 12 classes, so it must be (2, 12)", *asked, "npz:more.npz", "--model", "net:wide")
    np.savez("named.npz", **images([0, 1], classes=np.array(["cat", "dog"])))
    program.refuses("is for another number of classes", *asked, "npz:named.npz", *model())
    program.refuses("the data has 2 classes, so it must be (2, 2)", *asked, "npz:named.npz", "--model", "net:wide")


def test_labels_that_seem_to_start_at_one_are_said(program: Program, weights: Path, trained: Path) -> None:
    assert weights.exists()
    for labels, is_said in (([1, 9], True), ([0, 9], False), ([2, 9], False)):
        np.savez("alone.npz", **images(labels))
        for subject in (model(), (str(trained),)):
            result = program("evaluate", *subject, *NAT, "--data", "npz:alone.npz", "--out", "e.json", "--fresh")
            assert result.code == 0, result.err
            assert ("the lowest label of npz:alone.npz is 1: class numbers start at 0" in result.out) == is_said


def test_pictures_alone(program: Program, weights: Path) -> None:
    assert weights.exists()
    classes = [f"class-{number}" for number in range(10)]
    pictures("mine/test", *classes[:8:2])
    asked = ("--data", "folder:mine", *model())
    program.refuses("is for another number of classes", "evaluate", *asked)
    for name in {*classes} - {*classes[:8:2]}:
        Path("mine/test", name).mkdir()
    found = judged(program, *asked)
    assert [sum(row) for row in found["worst_case"]["confusion"]] == [4, 0, 4, 0, 4, 0, 4, 0, 0, 0]
    assert load("folder:mine", needs_train=False).test.labels.unique().tolist() == [0, 2, 4, 6]
    Path("none/test/cat").mkdir(parents=True)
    Path("none/test/dog").mkdir()
    program.refuses("none/test holds empty class folders alone", "evaluate", "--data", "folder:none", *model())


def test_a_run_is_judged_on_some_of_its_classes(program: Program, trained: Path) -> None:
    test = load_digits().test
    chosen = (test.labels == 3) | (test.labels == 7)
    x, y = test.images[chosen].numpy(), test.labels[chosen].numpy()
    np.savez("some.npz", x=x, y=y)
    program.refuses("give --out FILE", "evaluate", str(trained), "--data", "npz:some.npz")
    by_number = judged(program, str(trained), "--data", "npz:some.npz")
    for place, (pixels, label) in enumerate(zip(x, y, strict=True)):
        folder = Path("some/test", str(label))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0]).save(folder / f"{place}.png")
    by_name = judged(program, str(trained), "--data", "folder:some")
    assert by_name["nat"]["accuracy"] == by_number["nat"]["accuracy"] > 0.5
    assert [row for row, told in enumerate(by_name["worst_case"]["confusion"]) if sum(told)] == [3, 7]
    np.savez("other.npz", x=x, y=y * 0 + 10)
    asked = ("evaluate", str(trained), "--out", "e.json", "--data")
    program.refuses("has 11 classes and", *asked, "npz:other.npz")
    pictures("other/test", "3", "x")
    program.refuses("has 2 classes and", *asked, "folder:other")


def test_nothing_is_trained_on_it(program: Program, weights: Path) -> None:
    assert weights.exists()
    np.savez("alone.npz", **images([0, 1, 0, 1]))
    pictures("mine/test", "cat", "dog")
    train = ("train", "--model", "net:build", "--epochs", "1", "--out", "run", "--data")
    for more in ((), ("--dry-run",)):
        program.refuses("has test images alone", *train, "npz:alone.npz", *more)
        program.refuses("holds test/ but no train/: add it", *train, "folder:mine", *more)
    for name in ("npz:alone.npz", "folder:mine"):
        with pytest.raises(pm.UsageError, match=r"has test images alone.*: add training images"):
            pm.train(data=pm.load_data(name, needs_train=False), model="small-cnn", out="run")


def cifar(place: str) -> Path:
    folder = Path(place, "cifar-10-batches-py")
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        pixels = draw.integers(0, 256, (10, 3072), dtype=np.uint8)
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": [*range(10)]}))
    names = [f"class{number}" for number in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    return folder


def test_the_authors_test_files_alone(program: Program) -> None:
    folder = cifar("data")
    Path("net.py").write_text(NET.replace("64", "1024"), encoding="utf-8")
    asked = ("--data", "cifar10", "--data-dir", "data")
    train = ("train", *asked, "--model", "net:build", "--method", "at", "--set", "attack.num_steps=1", "--epochs", "1")
    assert program(*train, "--out", "run").code == 0
    judged_whole = judged(program, "run", "--data-dir", "data")
    assert program("evaluate", "run", "--data-dir", "data", "--attacks", "nat").code == 0
    own = Path("run/evaluation.json").read_bytes()
    for file in folder.glob("data_batch_*"):
        file.unlink()
    program.refuses("data_batch_1 is missing in", *train, "--out", "again")
    for command in ("evaluate", "audit"):
        program.refuses("has test images alone, and run was trained on more", command, "run", "--data-dir", "data")
    alone = judged(program, "run", *asked)
    assert alone["worst_case"] == judged_whole["worst_case"]
    assert (alone["data"], alone["test_images"]) == ("cifar10", 10)
    assert alone["data_fingerprint"] != judged_whole["data_fingerprint"]
    assert Path("run/evaluation.json").read_bytes() == own, "results of a run are those of what it was trained on"
    for command in ("evaluate", "audit"):
        result = program(command, "--model", "net:build", *asked, "--num-examples", "4", "--out", f"{command}.json")
        assert result.code == 0, result.err


def test_what_is_missing_is_named(program: Program, weights: Path) -> None:
    assert weights.exists()
    part = images([0, 1])
    for content in ({"x_test": part["x_test"]}, {"x": part["x_test"], "labels": part["y_test"]}):
        np.savez("half.npz", **content)
        program.refuses("lacks test images with labels: save", "evaluate", *model(), "--data", "npz:half.npz")
    np.savez("half.npz", x_train=part["x_test"], **part)
    program.refuses("lacks y_train: save", "evaluate", *model(), "--data", "npz:half.npz")
    np.savez("wrong.npz", **images([-1, 1]))
    program.refuses("wrong.npz, test: labels run from -1 to 1", "evaluate", *model(), "--data", "npz:wrong.npz")
