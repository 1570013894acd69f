"""Other data than a run was trained on: its classes, its sizes, and what is said of how it was read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from program import Program, program as program

from probmargin import api as pm
from probmargin.data.loader import load
from probmargin.evaluation.run_data import data_of

NET = """
from torch import nn
def build(num_classes, in_channels):
    return nn.Sequential(nn.Conv2d(in_channels, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                         nn.Linear(32, num_classes))
"""
TRAIN = ("train", "--model", "net:build", "--method", "at", "--epochs", "1", "--set", "attack.num_steps=1")
NAT = ("--attacks", "nat", "--out", "e.json", "--fresh")


def pictures(root: str, *classes: str, size: tuple[int, int] = (8, 8), mode: str = "L", count: int = 5) -> None:
    """Pictures of a width and height; each class has its own shade."""
    for number, name in enumerate(classes):
        folder = Path(root, name)
        folder.mkdir(parents=True)
        draw = np.random.default_rng(number)
        for place in range(count):
            shade = draw.integers(20 * number, 20 * number + 20, (size[1], size[0]), dtype=np.uint8)
            Image.fromarray(shade).convert(mode).save(folder / f"{place}.png")


def train(program: Program, data: str, out: str = "run", *more: str) -> None:
    Path("net.py").write_text(NET, encoding="utf-8")
    result = program(*TRAIN, "--data", data, "--out", out, *more)
    assert result.code == 0, result.err


def judged(program: Program, *arguments: str) -> tuple[dict[str, Any], str]:
    result = program("evaluate", *arguments, *NAT)
    assert result.code == 0, result.err
    return json.loads(Path("e.json").read_text(encoding="utf-8")), result.out


def test_classes_called_by_numbers_are_not_taken_for_others(program: Program) -> None:
    names = [str(number) for number in range(12)]
    pictures("own", *names)
    train(program, "folder:own")
    data = load("folder:own")
    assert data.classes[2] == "10"
    # The same pictures as arrays, whose labels are the numbers that the classes are called by.
    called = np.array([int(name) for name in data.classes])
    x, y = data.test.images.numpy(), called[data.test.labels.numpy()]
    arrays: dict[str, Any] = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    np.savez("whole.npz", **arrays)
    asked = ("evaluate", "run", *NAT, "--data")
    words = "class 2 of npz:whole.npz is '2', of run '10'; name its classes as the run does, in this order (0, 1, 10, "
    program.refuses(words, *asked, "npz:whole.npz")
    np.savez("alone.npz", x=x, y=y)
    words = "are called by numbers, in the order 0, 1, 10, 11, 2, 3, 4, 5, 6, 7, ..., and npz:alone.npz has labels"
    program.refuses(words, *asked, "npz:alone.npz")
    # By name, and by the place in the run's order.
    for labels, classes in ((y, names), (data.test.labels.numpy(), data.classes)):
        np.savez("named.npz", x=x, y=labels, classes=np.array(classes))
        assert torch.equal(
            data_of(pm.open_run("run"), "npz:named.npz", needs_train=False).test.labels, data.test.labels
        )
        assert judged(program, "run", "--data", "npz:named.npz")[0]["test_images"] == 12


def test_a_file_with_names_of_classes_finds_pictures_by_them(program: Program) -> None:
    x = np.random.default_rng(0).integers(0, 256, (12, 1, 8, 8), dtype=np.uint8)
    y = np.arange(12) % 3
    names = ("zebra", "ant", "cat")
    np.savez("own.npz", x_train=x, y_train=y, x_test=x, y_test=y, classes=np.array(names))
    train(program, "npz:own.npz")
    assert program("export", "run", "--format", "safetensors", "-o", "m.safetensors").code == 0
    for place, label in enumerate(y):
        folder = Path("some/test", names[label])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[place, 0]).save(folder / f"{place}.png")
    own, _ = judged(program, "run", "--data", "folder:some")
    file = ("--model", "net:build", "--checkpoint", "m.safetensors")
    found, _ = judged(program, *file, "--data", "folder:some")
    assert found["nat"]["per_class"] == own["nat"]["per_class"]
    said = "classes of folder:some are found by their names, and numbered as the model has them: zebra, ant, cat"
    for named in (("run",), file, (*file[:-1], "run/checkpoints/state-0001.safetensors")):
        found, out = judged(program, *named, "--data", "folder:some", "--save-adversarial", "adv.npz")
        assert said in out
        assert found["nat"]["per_class"] == own["nat"]["per_class"], "a state of a run knows them too"
        with np.load("adv.npz") as arrays:
            assert arrays["classes"].tolist() == list(names)
    assert found["data_as_read"] == load("folder:some", needs_train=False).fingerprint != found["data_fingerprint"]
    Path("some/test/cat").rename("some/test/eel")
    program.refuses(
        "folder:some has a class 'eel', which m.safetensors does not know; name its classes as the run does (ze",
        *("evaluate", *file, "--data", "folder:some"),
    )


def test_other_pictures_come_in_the_size_and_colour_of_the_run(program: Program) -> None:
    pictures("own", "cat", "dog", size=(20, 10), mode="RGB")
    train(program, "folder:own")
    pictures("large/test", "cat", "dog", size=(40, 20))
    run = pm.open_run("run")
    assert run.record["image_shape"] == [3, 10, 20]
    found, out = judged(program, "run", "--data", "folder:large")
    assert found["test_images"] == 10
    assert "resized" not in out
    x = np.zeros((2, 1, 10, 20), np.uint8)
    np.savez("grey.npz", x=x, y=np.array([0, 1]))
    words = "npz:grey.npz has images of 1x10x20, run was trained on 3x10x20: bring them to that"
    for command in ("evaluate", "audit"):
        program.refuses(words, command, "run", "--data", "npz:grey.npz", "--out", "o.json")
    grey = load("folder:own", image_shape=(1, 5, 6))
    assert (grey.channels, grey.image_size) == (1, (5, 6))


def test_what_becomes_of_pictures_is_said_where_a_model_is_judged(program: Program) -> None:
    pictures("mine", "cat", "dog", size=(80, 80))
    Image.new("L", (32, 32)).save("mine/cat/0.png")
    Path("net.py").write_text(NET, encoding="utf-8")
    for command in ("evaluate", "audit"):
        result = program(command, "--model", "net:build", "--data", "folder:mine", "--out", f"{command}.json")
        assert result.code == 0, result.err
        assert "pictures such as 1.png of 80x80 are resized to 32x32: choose another size" in result.out
        assert "2 of the 10 pictures in mine are judged, as its test set: put all into mine/test" in result.out
    train(program, "folder:mine")
    quiet = program("evaluate", "run", "--attacks", "nat")
    assert quiet.code == 0
    assert "resized" not in quiet.out
    assert "its test set" not in quiet.out


def test_a_card_tells_of_the_data_that_was_trained_on(program: Program) -> None:
    pictures("own", "ant", "cat", "eel", count=10)
    train(program, "folder:own", "run", "--validation", "3")
    x = np.zeros((4, 1, 8, 8), np.uint8)
    x[1:] = 255
    np.savez("check.npz", x_train=x, y_train=np.array([0, 1, 2, 2]), x_test=x, y_test=np.array([0, 1, 2, 2]))
    asked = ("export", "run", "--format", "safetensors", "-o", "m.safetensors")
    assert program(*asked, "--data", "npz:check.npz").code == 0
    card = json.loads(next(Path().glob("m*.json")).read_text(encoding="utf-8"))
    assert card["model"]["classes"] == ["ant", "cat", "eel"]
    assert (card["training"]["data"], card["training"]["images"], card["training"]["held_out"]) == ("folder:own", 21, 3)
    Image.new("L", (8, 8)).save("own/ant/more.png")
    program.refuses(
        "folder:own is not what run was trained on, it has changed since: bring it back", *asked[:-1], "n.safetensors"
    )


@pytest.mark.parametrize("as_sets", [False, True])
def test_arrays_that_lie_class_by_class_are_mixed_as_a_files_are(program: Program, as_sets: bool) -> None:
    assert program
    x, y = np.random.default_rng(0).integers(0, 256, (30, 1, 8, 8), dtype=np.uint8), np.arange(30) // 10
    np.savez("same.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    pair: Any = (torch.from_numpy(x), torch.from_numpy(y))
    given: Any = (torch.utils.data.TensorDataset(*pair),) * 2 if as_sets else (pair, pair)
    run = pm.train("at", data=given, model="small-cnn", epochs=1, out="run", settings={"attack.num_steps": 1})
    assert run.record["data_fingerprint"] == load("npz:same.npz").fingerprint
    assert program("evaluate", "run", "--attacks", "nat", "--data", "npz:same.npz").code == 0
    assert Path("run/evaluation.json").exists()


def test_the_first_images_of_one_class_are_told(program: Program) -> None:
    assert program
    x, y = torch.rand(12, 1, 8, 8), torch.arange(12) // 4
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    words = "the first 4 images are of 1 of the 3 classes: shuffle them, or judge all"
    assert words in pm.evaluate(model, (x, y), attacks=["aa"], aa_examples=4)["warnings"]
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    assert words not in pm.evaluate(model, (x[order], y[order]), attacks=["aa"], aa_examples=4)["warnings"]


def test_a_network_is_judged_where_it_lies() -> None:
    """A device that nothing can be computed on shows which one is taken."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    data = torch.rand(6, 1, 8, 8), torch.arange(6) % 3
    assert "accuracy" in pm.evaluate(model, data, attacks=["nat"])["nat"]
    with pytest.raises(pm.UsageError, match="device 'meta' is not supported; use cpu or cuda"):
        pm.evaluate(model.to("meta"), data, attacks=["nat"])
