"""What a dry run says, and that it refuses what the run would refuse."""

import json
from pathlib import Path

import pytest
from program import Program, contents, program as program

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


def test_dry_run_refuses_the_forks_that_the_run_would(program: Program, tmp_path: Path) -> None:
    short = ("--epochs", "5", "--batch-size", "512", "--set", "attack.num_steps=1")
    assert program(*TRAIN, "--method", "at", *short, "--keep-epochs", "2", "--out", "parent").code == 0
    (tmp_path / "moved").mkdir()
    record = json.loads((tmp_path / "parent/record.json").read_text(encoding="utf-8"))
    (tmp_path / "moved/record.json").write_text(json.dumps({**record, "data_fingerprint": "f"}), encoding="utf-8")
    (tmp_path / "moved/recipe.json").write_bytes((tmp_path / "parent/recipe.json").read_bytes())
    common = (*TRAIN, "--method", "at", *short, "--out", "child", "--fork")
    for fork, further, words in (
        ("parent", (), "--fork takes RUN@EPOCH"),
        ("none@1", (), "there is no run at none"),
        ("parent@3", (), "has not kept its state after 3 epochs"),
        ("parent@5", (), "nothing is left to train after 5 of 5 epochs"),
        ("parent@2", ("--set", "lr=0.5"), "in epoch 0 lr is"),
        ("parent@2", ("--seed", "2"), "seed is 1 there and 2 here"),
        ("parent@2", ("--normalize",), "model_settings.mean_std is None there"),
        ("moved@2", (), "data_fingerprint is 'f' there"),
        ("parent@2", ("--out", "parent"), "already holds a run"),
    ):
        program.refuses(words, *common, fork, *further)
        told = program(*common, fork, *further).err
        program.refuses(told, *common, fork, *further, "--dry-run")
    before = contents(tmp_path)
    result = program(*common, "parent@2", "--dry-run")
    assert result.code == 0, result.err
    assert "5 epochs of 3 steps" in result.out
    assert contents(tmp_path) == before
