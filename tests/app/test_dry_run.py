"""What a dry run says, and that it refuses what the run would refuse."""

import json
from pathlib import Path

import pytest
from program import Program, program as program

TRAIN = ("train", "--data", "digits", "--model", "small-cnn", "--device", "cpu")


def test_dry_run_minds_the_precision_and_compilation_asked_for(program: Program) -> None:
    common = ("train", "--data", "digits", "--model", "small-cnn", "--out", "run", "--device", "cpu", "--dry-run")
    result = program(*common, "--precision", "bf16")
    assert result.code == 0, result.err
    assert "float32" in result.out.splitlines()[-2]
    result = program(*common, "--compile", "sometimes")
    assert result.code == 2
    assert "--compile" in result.err


def test_dry_run_prints_the_recipe_and_touches_nothing(program: Program, tmp_path: Path) -> None:
    result = program("train", "--method", "mail-trades", "--out", "run", "--dry-run", "--set", "attack.eps=4/255")
    assert result.code == 0
    plain = json.loads(result.out[: result.out.index("recipe hash")])
    assert plain["attack"]["eps"] == pytest.approx(4 / 255)
    assert "100 epochs of 391 steps" in result.out
    assert "images on cpu, scaled to 128)" in result.out
    assert list(tmp_path.iterdir()) == []


def test_dry_run_refuses_what_the_run_would(program: Program, tmp_path: Path) -> None:
    (tmp_path / "ownnet.py").write_text(
        "import torch\n"
        "def small(num_classes):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, num_classes))\n"
        "def fixed():\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))\n",
        encoding="utf-8",
    )
    common = ("train", "--data", "digits", "--out", "run", "--device", "cpu", "--dry-run", "--model")
    program.refuses("does not take images of shape (1, 8, 8)", *common, "ownnet:small")
    program.refuses("the data has 10 classes", *common, "ownnet:fixed")
    for option, value, words in (
        ("--checkpoint", "none.pt", "there is no checkpoint file none.pt"),
        ("--keep-epochs", "99", "--keep-epochs takes epochs"),
        ("--validation", "5000", "cannot hold out 5000"),
        ("--monitor", "pgd-20:5000", "there are 360 test images"),
        ("--label-noise", "symmetric:2", "not from 0 to 1"),
        ("--out", "ownnet.py", "ownnet.py is a file"),
    ):
        program.refuses(words, *common, "small-cnn", option, value)


def test_one_of_a_thing_is_named_in_the_singular(program: Program) -> None:
    said = program(*TRAIN, "--epochs", "1", "--batch-size", "1437", "--out", "run", "--dry-run").out
    assert "for 1 epoch of 1 step, " in said


def test_weights_that_never_come_are_named(program: Program) -> None:
    asked = (*TRAIN, "--method", "mail-at", "--epochs", "2", "--out", "run", "--dry-run", "--set", "burn_in_epochs=9")
    assert "burn-in takes 9 epochs and training 2 epochs, so every weight stays one" in program(*asked).out
