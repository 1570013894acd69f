"""A user's own images and network, from the command line: found, said, trained, judged, gone on with."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from program import Program, program as program
from training_runs import fit, recipe

from probmargin import api as pm
from probmargin.core.settings import AWP, EMA
from probmargin.data.balance import imbalance
from probmargin.data.dataset import DataSet, from_arrays
from probmargin.data.folder import load_folder
from probmargin.data.loader import load
from probmargin.methods import propose as propose_module
from probmargin.methods.propose import LARGE_SET, propose, separation
from probmargin.methods.resolve import resolve
from probmargin.models.build import build_model
from probmargin.runs.run import open_run

NET = """
from torch import nn
def build(num_classes, in_channels):
    layers = [nn.Conv2d(in_channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, num_classes))
"""


def pictures(
    root: Path, *, classes: int = 3, size: tuple[int, int] = (8, 8), grey: bool = False, count: int = 10
) -> None:
    """Classes are bright in different corners."""
    draw = np.random.default_rng(0)
    for label in range(classes):
        folder = root / f"class-{label}"
        folder.mkdir(parents=True)
        for number in range(count):
            pixels = draw.integers(0, 60, (*size, 3), dtype=np.uint8)
            pixels[(label % 2) * 4 :, (label // 2) * 4 :][:4, :4] += 180
            Image.fromarray(pixels.mean(2).astype(np.uint8) if grey else pixels).save(folder / f"{number}.png")


def train(*more: str) -> tuple[str, ...]:
    quick = ("--epochs", "2", "--set", "attack.num_steps=2", "--device", "cpu")
    return ("train", "--method", "mail-trades", "--out", "run", *quick, *more)


@pytest.mark.parametrize(("grey", "size", "classes"), [(True, (8, 8), 2), (False, (10, 12), 3), (False, (8, 8), 5)])
def test_a_folder_and_a_file_with_a_network(program: Program, grey: bool, size: tuple[int, int], classes: int) -> None:
    pictures(Path("pictures"), grey=grey, size=size, classes=classes)
    Path("nets").mkdir()
    Path("nets/small.py").write_text(NET, encoding="utf-8")
    result = program(*train("--data", "folder:pictures", "--model", "nets.small:build"))
    assert result.code == 0, result.err
    assert f"model nets.small:build is imported from {Path.cwd() / 'nets/small.py'}" in result.out
    shape = f"{1 if grey else 3}x{size[0]}x{size[1]}"
    assert (
        f"{8 * classes} training images of {classes} classes, {shape}: eps {'0.1' if grey else '8/255'}" in result.out
    )
    assert "set your own with --set attack.eps=..., --epochs N" in result.out
    found = open_run("run")
    assert found.recipe.attack.eps == pytest.approx(0.1 if grey else 8 / 255)  # type: ignore[union-attr]
    assert found.recipe.batch_size == 16
    assert found.record["class_counts"] == {f"class-{label}": 8 for label in range(classes)}
    judged = program("evaluate", "run", "--attacks", "nat,pgd-3")
    assert judged.code == 0, judged.err
    assert "model nets.small:build is imported from" in judged.out
    assert json.loads(Path("run/evaluation.json").read_text())["num_examples"] == 2 * classes


def test_the_size_of_images_is_remembered(program: Program) -> None:
    pictures(Path("pictures"), size=(20, 20))
    assert program(*train("--data", "folder:pictures", "--model", "small-cnn", "--image-size", "12")).code == 0
    program("evaluate", "run", "--attacks", "nat")
    stored = json.loads(Path("run/evaluation.json").read_text())
    assert stored["data_fingerprint"] == load("folder:pictures", image_size=12).fingerprint
    assert stored["data_fingerprint"] != load("folder:pictures").fingerprint
    written = program("export", "run", "--format", "safetensors", "-o", "m.safetensors")
    assert written.code == 0, written.err
    assert "(batch, 3, 12, 12)" in Path("m.safetensors.card.md").read_text(encoding="utf-8")
    report = program("report", "run", "-o", "r.html")
    assert "no pictures" not in report.out


def test_results_of_a_run_are_of_its_own_data(program: Program) -> None:
    """A picture that is added moves the split: some of what would be judged was trained on."""
    pictures(Path("pictures"), size=(8, 8))
    pictures(Path("other"), size=(8, 8), count=5)
    assert program(*train("--data", "folder:pictures", "--model", "small-cnn")).code == 0
    assert program("evaluate", "run", "--attacks", "nat").code == 0
    own = Path("run/evaluation.json").read_bytes()
    program.refuses("give --out FILE", "evaluate", "run", "--attacks", "nat", "--data", "folder:other")
    assert program("evaluate", "run", "--attacks", "nat", "--data", "folder:other", "--out", "o.json").code == 0
    assert json.loads(Path("o.json").read_text())["data"] == "folder:other"
    assert Path("run/evaluation.json").read_bytes() == own
    shutil.copy("other/class-0/0.png", "pictures/class-0/new.png")
    program.refuses("is not what run was trained on, it has changed since", "evaluate", "run", "--attacks", "nat")


def test_an_attack_that_does_not_reach_its_ball_is_said(program: Program) -> None:
    said = program(*train("--data", "digits", "--model", "small-cnn", "--set", "attack.eps=0.3")).out
    assert "2 steps of 0.03, to 0.06 and not to its eps 0.3: raise attack.step_size" in said


def test_random_weights_are_said(program: Program) -> None:
    said = program(
        "evaluate", "--model", "small-cnn", "--data", "digits", "--attacks", "nat", "--num-examples", "9"
    ).out
    assert "no --checkpoint is given: small-cnn is judged with random weights" in said
    assert "no --out is given: results are printed and not kept" in said
    Path("nets").mkdir()
    Path("nets/small.py").write_text(NET, encoding="utf-8")
    said = program(
        "evaluate", "--model", "nets.small:build", "--data", "digits", "--attacks", "nat", "--num-examples", "9"
    ).out
    assert "no --checkpoint is given: nets.small:build is judged with the weights it is built with" in said


def test_fine_tuning_and_the_weights_a_run_began_with(program: Program) -> None:
    pictures(Path("pictures"), classes=3)
    pictures(Path("more"), classes=4)
    assert program(*train("--data", "folder:more", "--model", "small-cnn", "--normalize")).code == 0
    program("export", "run", "--format", "safetensors", "-o", "first.safetensors")
    Path("run").rename("before")
    tune = train(
        "--data", "folder:pictures", "--model", "small-cnn", "--checkpoint", "first.safetensors", "--set", "lr=1e-9"
    )
    program.refuses("--new-head starts its last layer afresh", *tune)
    assert program(*tune, "--new-head").code == 0
    before, after = open_run("before").model, open_run("run").model
    # The normalisation came with the weights, and is not that of the new data.
    assert torch.equal(before.state_dict()["0.mean"], after.state_dict()["0.mean"])
    for key in ("1.features.0.weight", "1.head.1.weight"):
        torch.testing.assert_close(after.state_dict()[key], before.state_dict()[key], rtol=0, atol=1e-6)
    assert program(*tune, "--new-head", "--resume").code == 0
    same = [argument if argument != "folder:pictures" else "folder:more" for argument in tune]
    assert program(*same, "--new-head", "--out", "as-many").code == 0
    fresh, old = open_run("as-many").model.state_dict(), before.state_dict()
    torch.testing.assert_close(fresh["1.head.1.weight"], old["1.head.1.weight"], rtol=0, atol=1e-6)
    last = list(old)[-1]
    assert (fresh[last] - old[last]).abs().max() > 1e-3, "other classes, though as many"
    weights = pm.load_model("first.safetensors").state_dict()
    weights["1.features.0.weight"] += 1
    torch.save(weights, "other.pt")
    again = [argument if argument != "first.safetensors" else "other.pt" for argument in tune]
    program.refuses("checkpoint.sha256 is", *again, "--new-head", "--resume")
    Path("first.safetensors").rename("moved.safetensors")
    moved = [argument if argument != "first.safetensors" else "moved.safetensors" for argument in tune]
    assert program(*moved, "--new-head", "--resume").code == 0


def test_a_network_that_normalises_by_itself_takes_its_own_weights(program: Program) -> None:
    """Layers called 0.mean and 0.std may be the user's own: no second normalisation is put around them."""
    Path("normed.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Norm(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('mean', torch.tensor([0.3])); self.register_buffer('std', torch.tensor([0.4]))\n"
        "    def forward(self, x):\n"
        "        return (x - self.mean) / self.std\n"
        "def build():\n"
        "    return nn.Sequential(Norm(), nn.Flatten(), nn.Linear(64, 10))\n",
        encoding="utf-8",
    )
    quick = ("--data", "digits", "--model", "normed:build", "--method", "standard", "--epochs", "1", "--device", "cpu")
    assert program("train", *quick, "--out", "run").code == 0
    assert program("export", "run", "--format", "safetensors", "-o", "m.safetensors").code == 0
    tuned = program("train", *quick, "--out", "tuned", "--checkpoint", "m.safetensors")
    assert tuned.code == 0, tuned.err
    assert list(open_run("tuned").model.state_dict()) == ["0.mean", "0.std", "2.weight", "2.bias"]


def test_data_given_in_python_is_asked_for_again(program: Program) -> None:
    pm.train("at", model="small-cnn", data=images(20), out="run", epochs=1, device="cpu")
    program.refuses("give the same with --data npz:FILE", "evaluate", "run")
    program.refuses("give the same with --data npz:FILE", "export", "run", "--format", "onnx", "-o", "m.onnx")


def test_frozen_layers_stay_under_everything(tmp_path: Path) -> None:
    """Weight decay, momentum, weight perturbation and the moving average leave them alone, statistics too."""
    model = build_model("small-cnn", num_classes=2, in_channels=1, seed=0)
    frozen = [name for name in model.state_dict() if name.startswith(("features.0.", "features.1."))]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    method = recipe("mail-at", epochs=3, awp=AWP(gamma=0.01), ema=EMA(decay=0.9))
    trained, path = fit(tmp_path / "run", method, model=model)
    for name in frozen:
        assert torch.equal(trained[name], before[name]), name
    assert not torch.equal(trained["features.3.weight"], before["features.3.weight"])
    assert not torch.equal(trained["features.4.running_mean"], before["features.4.running_mean"])
    state = open_run(path).load_state()[1]
    assert torch.equal(state.part("ema")["features.0.weight"], before["features.0.weight"])
    assert torch.equal(state.part("model")["features.0.weight"], before["features.0.weight"])
    assert not any(name in frozen for name in state.part("momentum"))


def uneven(*counts: int) -> DataSet:
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 1, 8, 8), dtype=np.uint8)
    return from_arrays("uneven", (images, labels), (images, labels))


def test_uneven_classes_are_said_and_kept(tmp_path: Path, program: Program) -> None:
    assert imbalance(uneven(20, 10)) is None
    assert "30 training images of '0' and 10 of '1', 3 times as many" in str(imbalance(uneven(30, 10)))
    line = imbalance(uneven(60, 10, 4))
    assert line is not None
    assert "60 training images of '0' and 4 of '2', 15 times as many" in line
    assert "split" not in line
    assert str(imbalance(uneven(9, 0, 0, 9))).startswith("no training image is of '1', '2': the model has an output")
    assert "'4', '5' and 2 more: the model" in str(imbalance(uneven(9, *[0] * 7, 9)))
    for name, count in (("many", 40), ("few", 2)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((8, 8), 5 * number, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    for part in ("train", "test"):
        shutil.copytree(tmp_path / "pictures", tmp_path / "parts" / part)
    assert "split" not in str(imbalance(load_folder(tmp_path / "parts")))
    data = load_folder(tmp_path / "pictures")
    assert "the split of train and test keeps the shares" in str(imbalance(data))
    # Sorted: few, many. One of two goes to the test set, and one in five of the others.
    assert data.class_counts() == (1, 32)
    assert torch.bincount(data.test.labels).tolist() == [1, 8]
    result = program(*train("--data", "folder:pictures", "--model", "small-cnn"))
    assert "classes are uneven: 32 training images of 'many' and 1 of 'few', 32 times as many" in result.out


def images(count: int, *, channels: int = 3, size: int = 8, spread: int = 255) -> DataSet:
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, spread + 1, (count, channels, size, size), dtype=np.uint8)
    return from_arrays("mine", (pixels, np.arange(count) % 2), (pixels[:2], np.arange(2)))


def test_proposals_follow_the_data() -> None:
    assert propose(load("digits")) is None
    scales = {}
    for name, data in {
        "tiny": images(20),
        "small": images(1500),
        "grey": images(200, channels=1),
        "middle": images(20, size=64),
        "large images": images(20, size=72),
        "close": images(200, spread=20),
        "many": images(LARGE_SET, size=2),
    }.items():
        proposal = propose(data)
        assert proposal is not None
        scales[name] = proposal.scale
    assert scales["tiny"].eps == scales["small"].eps == scales["middle"].eps == 8 / 255
    assert scales["grey"].eps == 0.1
    assert scales["grey"].step_size == pytest.approx(0.025)
    assert scales["large images"].eps == 4 / 255
    # A quarter of the distance between classes: 20 levels apart, not 255.
    assert scales["close"].eps in (4 / 255, 5 / 255)
    assert scales["tiny"].epochs == 200
    assert (scales["small"].epochs, scales["small"].batch_size) == (34, 128)
    assert (scales["many"].epochs, scales["many"].lr) == (None, None)
    method = resolve("mail-trades", data=scales["many"])
    assert (method.epochs, method.lr, method.augment.flip) == (100, 0.01, False)
    own = resolve("mail-trades", data=scales["small"], epochs=7, settings={"attack.eps": "2/255"})
    assert (own.epochs, own.attack.eps) == (7, pytest.approx(2 / 255))  # type: ignore[union-attr]
    said = propose(images(1500))
    assert said is not None
    assert "eps 2/255 (as you set it), 7 epochs of 12 batches, no flips" in said.line(own)
    assert "eps" not in said.line(resolve("standard", data=scales["small"]))


def test_given_weights_are_tuned_at_a_low_rate(program: Program) -> None:
    scales = [propose(images(count, size=2), is_tuning=True) for count in (200, LARGE_SET)]
    assert [found and found.scale.lr for found in scales] == [0.01, 0.01]
    pictures(Path("pictures"))
    Path("small.py").write_text(NET.replace("nn.BatchNorm2d(8), ", ""), encoding="utf-8")
    options = ("--data", "folder:pictures", "--model", "small:build")
    assert "lr " not in program(*train(*options)).out.splitlines()[0]
    weights = ("--checkpoint", "run/checkpoints/state-0002.safetensors")
    first = next(
        line for line in program(*train(*options, *weights, "--out", "tuned")).out.splitlines() if "eps" in line
    )
    assert ", lr 0.01 (low, to keep what the weights know), " in first
    assert "--epochs N, --set lr=..., --set augment.flip=true" in first
    assert open_run("tuned").recipe.lr == 0.01
    kept = ("--keep-epochs", "1", "--set", "weight_decay=0.001")
    assert program(*train(*options, *weights, *kept, "--out", "kept")).code == 0
    forked = program(*train(*options, *kept, "--out", "forked", "--fork", "kept@1"))
    assert forked.code == 0, forked.err
    assert program(*train(*options, *kept, "--out", "twice", "--fork", "forked@1")).code == 0, "and of its fork"
    own = program(*train(*options, *weights, "--out", "own", "--set", "lr=0.02"))
    assert "lr 0.02 (as you set it)" in own.out
    assert open_run("own").recipe.lr == 0.02
    data = images(40)
    run = pm.train("standard", model="small-cnn", data=data, out="python", epochs=1, device="cpu")
    tuned = {"model": "small-cnn", "data": data, "epochs": 2, "device": "cpu", "keep_epochs": [1]}
    given = run.path / "checkpoints" / "state-0001.safetensors"
    pm.train("standard", **tuned, out="python-tuned", checkpoint=given)  # type: ignore[arg-type]
    assert pm.train("standard", **tuned, out="python-fork", fork="python-tuned@1").recipe.lr == 0.01  # type: ignore[arg-type]
    state = run.path / "checkpoints" / "state-0001.safetensors"
    again = pm.train("standard", model="small-cnn", data=data, out="again", epochs=1, device="cpu", checkpoint=state)
    assert (run.recipe.lr, again.recipe.lr) == (0.05, 0.01)


@pytest.mark.parametrize("star", ["", "*"], ids=["a network", "its layers"])
def test_a_network_that_normalises_takes_the_weights_of_the_one_inside(program: Program, star: str) -> None:
    pictures(Path("pictures"))
    Path("small.py").write_text(NET.replace("nn.BatchNorm2d(8), ", ""), encoding="utf-8")
    inside = f"{star}small.build(num_classes, in_channels)"
    wrapped = f"nn.Sequential(pm.Normalize([0.4, 0.5, 0.6], [0.2, 0.2, 0.2]), {inside})"
    Path("whole.py").write_text(
        "import probmargin as pm\nimport small\nfrom torch import nn\n\n\n"
        f"def build(num_classes: int, in_channels: int) -> nn.Module:\n    return {wrapped}\n",
        encoding="utf-8",
    )
    bare = build_model("small:build", num_classes=3, in_channels=3)
    torch.save(bare.state_dict(), "bare.pt")
    options = ("--data", "folder:pictures", "--model", "whole:build", "--checkpoint", "bare.pt")
    twice = program(*train(*options, "--normalize"))
    assert twice.code == 2
    assert "whole:build normalises its images itself: leave out --normalize" in twice.err
    assert program(*train(*options, "--set", "lr=1e-12")).code == 0
    run = open_run("run")
    assert "mean_std" not in run.record["model_settings"]
    x = torch.rand(2, 3, 8, 8)
    expected = bare.eval()((x - torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1)) / 0.2)
    torch.testing.assert_close(run.model(x), expected)
    assert program("evaluate", "run", "--attacks", "nat").code == 0
    found = json.loads(open_run("run").evaluation_path.read_text(encoding="utf-8"))
    assert (found["model"], found["classes"]) == ("whole:build", ["class-0", "class-1", "class-2"])
    assert program("export", "run", "--format", "safetensors", "-o", "whole.safetensors").code == 0
    torch.testing.assert_close(pm.load_model("whole.safetensors", "whole:build")(x), expected)


def test_weights_that_know_other_classes_are_named(program: Program) -> None:
    pictures(Path("pictures"))
    options = ("--data", "folder:pictures", "--model", "small-cnn")
    assert program(*train(*options)).code == 0
    assert program("export", "run", "--format", "safetensors", "-o", "first.safetensors").code == 0
    tune = ("--set", "lr=1e-9", "--checkpoint", "first.safetensors")
    said = "first.safetensors has class-0 as class 0, and folder:pictures has a: its last layer learns that anew"
    assert said not in program(*train(*options, *tune, "--out", "same")).out
    Path("pictures/class-2").rename("pictures/a")
    tuned = program(*train(*options, *tune, "--out", "other"))
    assert tuned.code == 0, tuned.err
    assert said in tuned.out
    pixels, labels = np.zeros((30, 3, 8, 8), np.uint8), np.arange(30) % 3
    pixels[np.arange(30), labels] = 200
    np.savez("numbers.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    unnamed = program(*train("--data", "npz:numbers.npz", "--model", "small-cnn", *tune, "--out", "unnamed"))
    assert unnamed.code == 0, unnamed.err
    assert "first.safetensors has" not in unnamed.out, "numbers are no names"
    afresh = program(*train(*options, *tune, "--new-head", "--out", "afresh")).out
    assert said not in afresh
    assert re.search(r"starts afresh: head\.\d\.bias \(3,\), head\.\d\.weight \(3, \d+\)\n", afresh), afresh


def test_a_run_goes_on_and_is_forked_where_its_data_moved_to(program: Program) -> None:
    pictures(Path("pictures"))
    options = ("--model", "small-cnn", "--keep-epochs", "1")
    assert program(*train("--data", "folder:pictures", *options)).code == 0
    for file in Path("run/checkpoints").glob("state-0002.*"):
        file.unlink()
    Path("elsewhere").mkdir()
    Path("pictures").rename("elsewhere/pictures")
    there = ("--data", "folder:elsewhere/pictures", *options)
    forked = program(*train(*there, "--out", "forked", "--fork", "run@1"))
    assert forked.code == 0, forked.err
    resumed = program(*train(*there, "--resume"))
    assert resumed.code == 0, resumed.err
    assert open_run("run").record["data"] == "folder:elsewhere/pictures"
    assert program("evaluate", "run", "--attacks", "nat").code == 0
    assert open_run("run").record["weights"] == open_run("forked").record["weights"]
    pictures(Path("others"), count=12)
    program.refuses(
        "data is 'folder:elsewhere/pictures' there and 'folder:others' here",
        *train("--data", "folder:others", *options, "--resume"),
    )


def test_separation_is_the_distance_to_another_class() -> None:
    pixels = np.zeros((4, 1, 2, 2), dtype=np.uint8)
    pixels[2:, 0, 0, 0] = 51
    pixels[3, 0, 1, 1] = 102
    data = from_arrays("corner", (pixels, np.array([0, 0, 1, 1])), (pixels[1:3], np.array([0, 1])))
    assert separation(data.train) == pytest.approx(0.2)


def test_separation_of_large_images_is_of_as_many_as_there_are_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten classes, 25 levels apart; of 20 images 18 are compared, though no room is left for so many pixels."""
    monkeypatch.setattr(propose_module, "_VALUES", 1)
    labels = np.arange(20) % 10
    pixels = np.broadcast_to(25 * labels.astype(np.uint8)[:, None, None, None], (20, 1, 2, 2)).copy()
    assert separation(from_arrays("steps", (pixels, labels), (pixels, labels)).train) == pytest.approx(25 / 255)


def test_the_same_from_python_says_what_it_proposes(tmp_path: Path) -> None:
    from training_runs import Listener

    listener = Listener()
    data = images(40)
    run = pm.train("at", model="small-cnn", data=data, out=tmp_path / "run", epochs=1, device="cpu", reporter=listener)
    assert listener.said[0].startswith("40 training images of 2 classes, 3x8x8: eps 8/255")
    assert run.recipe.batch_size == 16
