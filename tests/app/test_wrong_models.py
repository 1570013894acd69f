"""What can be wrong with a user's own model or loop: one line that names the fix, exit code 2."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobs import blobs
from program import Program, program as program
from safetensors.torch import load_file, save_file
from strategies import tiny_net
from torch.utils.data import DataLoader, Dataset
from trained_run import trained as trained

from probmargin import api as pm

SOURCE = """
import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, channels=1, classes=10, after=lambda x: x):
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)
        self.linear = nn.Linear(256, classes)
        self.after = after

    def forward(self, x):
        return self.after(self.linear(self.conv(x).relu().flatten(1)))


def grey(num_classes): return Net(1, num_classes)
def three(in_channels): return Net(in_channels, 3)
def probabilities(): return Net(after=lambda x: x.softmax(1))
def dropout(): return Net(after=lambda x: F.dropout(x, 0.5))
def pair(): return Net(after=lambda x: (x, x))
def half(): return Net(after=lambda x: x.half())
def flat(): return Net(after=lambda x: x.argmax(1))
def crash(): return Net(after=lambda x: x.no_such_thing())
def needy(depth, width): return Net()
def number(): return 3
def broken(): return undefined_name
def frozen(): return Net().requires_grad_(False)
class Without(Net):
    def forward(self, x):
        with torch.no_grad():
            return super().forward(x)
class Blind(Net):
    def forward(self, x): return super().forward(x.detach())
class Fixed(Net):
    def forward(self, x): return super().forward(x.view(2, 1, 8, 8))
class InPlace(Net):
    def forward(self, x): return super().forward(x.clamp_(0, 1))
class Shifted(Net):
    def forward(self, x):
        x.data.sub_(0.5)
        return super().forward(x)
class Double(Net):
    def __init__(self):
        super().__init__()
        self.linear = self.linear.double()
    def forward(self, x): return self.linear(self.conv(x).flatten(1).double())
class Strict(Net):
    def __init__(self):
        super().__init__()
        self.double()
class Guarded(Net):
    def forward(self, x):
        assert x.min() >= 0 and x.max() <= 1, "my range"
        return super().forward(x)
class Auxiliary(Net):
    def forward(self, x): return (super().forward(x), x) if self.training else super().forward(x)
class Still(Net):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.conv.requires_grad_(False), self.linear.requires_grad_(False)
class Few(Net):
    def forward(self, x):
        if len(x) > 10: raise ValueError("no big\\nbatches")
        return super().forward(x)
class Leaving(Net):
    def forward(self, x): raise SystemExit(3)
def leave(): raise SystemExit("no network today")
def nothing():
    net = Net()
    net.linear.weight.data.fill_(float("nan"))
    return net
"""

MODELS = [
    ("build it for 3 channels", "grey"),
    ("must be (2, 2): give its last layer 2 outputs", "three"),
    ("leave out its last softmax", "probabilities"),
    ("use nn.Dropout", "dropout"),
    ("return one tensor of logits", "pair"),
    ("call .float() on it", "half"),
    ("give its last layer 10 outputs", "flat"),
    ("no_such_thing", "crash"),
    ("needy() missing 2 required positional arguments", "needy"),
    ("not an nn.Module", "number"),
    ("NameError: name 'undefined_name' is not defined", "broken"),
    ("every one is frozen", "frozen"),
    ("linear.weight holds NaN", "nothing"),
    ("has no function or class named 'absent'", "absent"),
    ("no gradient reaches the images", "Without"),
    ("no gradient reaches the images", "Blind"),
    ("leave the batch size open", "Fixed"),
    ("InPlace changes its input in place; write x = x - 0.5", "InPlace"),
    ("Shifted changes its input in place", "Shifted"),
    ("Double computes in torch.float64; call .float() on it", "Double"),
    ("Strict computes in torch.float64; call .float() on it", "Strict"),
    ("Guarded fails on images a little outside [0, 1], where the attack starts: AssertionError: my range", "Guarded"),
    ("Auxiliary in train mode returns tuple; return one tensor of logits", "Auxiliary"),
    ("no gradient reaches the parameters", "Still"),
    ("takes a few images and not a batch of 128: ValueError: no big batches", "Few"),
    ("SystemExit: 3", "Leaving"),
    ("SystemExit: no network today", "leave"),
]


def colour() -> str:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    np.savez("colour.npz", x_train=x, y_train=np.arange(20) % 2, x_test=x[:10], y_test=np.arange(10) % 2)
    return "npz:colour.npz"


@pytest.mark.parametrize(("words", "name"), MODELS, ids=[name for _, name in MODELS])
def test_own_models_that_are_wrong(program: Program, words: str, name: str) -> None:
    Path("wrongnets.py").write_text(SOURCE, encoding="utf-8")
    data = colour() if name in ("grey", "three") else "digits"
    program.refuses(
        words,
        "train",
        "--model",
        f"wrongnets:{name}",
        "--data",
        data,
        "--method",
        "at",
        "--out",
        "run",
        "--device",
        "cpu",
    )


@pytest.mark.parametrize(
    ("words", "model", "text"),
    [
        ("SyntaxError", "badsyntax:build", "def build(:\n"),
        ("line 2", "badname:build", "import torch\nundefined\n"),
        ("install no_such_library", "badimport:build", "import no_such_library\n"),
        ("run in the folder that holds absentnet.py", "absentnet:build", None),
        ("--model badfile:build, not as a file", "badfile.py:build", "import torch\n"),
        ("--model nets.badfile:build, not as a file", "nets/badfile.py:build", None),
        ("is not package.module:factory", ".badfile:build", None),
        ("is not package.module:factory", "badfile:", None),
    ],
)
def test_own_files_that_are_wrong(program: Program, words: str, model: str, text: str | None) -> None:
    if text is not None:
        Path(model.partition(":")[0].removesuffix(".py") + ".py").write_text(text, encoding="utf-8")
    program.refuses(words, "train", "--model", model, "--data", "digits", "--out", "run", "--device", "cpu")


def test_a_last_batch_of_one_image(program: Program) -> None:
    """Batch norm of vectors has no variance to take there; batch norm of pictures has."""
    Path("vectors.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))\n",
        encoding="utf-8",
    )
    train = ("train", "--data", "digits", "--method", "standard", "--epochs", "1", "--out", "run", "--device", "cpu")
    single = ("--batch-size", "359")  # 1,437 images: four batches and one image
    program.refuses("use --batch-size 358", *train, "--model", "vectors:build", *single)
    assert program(*train, "--model", "small-cnn", *single).code == 0


def test_the_average_that_torch_keeps_of_a_network_is_taken(program: Program, trained: Path) -> None:
    state = load_file(next(trained.glob("checkpoints/*.safetensors")))
    weights = {name.removeprefix("model/"): value for name, value in state.items() if name.startswith("model/")}
    averaged = {f"module.{name}": value for name, value in weights.items()} | {"n_averaged": torch.tensor(7)}
    torch.save(averaged, "average.pt")
    save_file(weights, "good.safetensors")
    asked = ("evaluate", "--model", "small-cnn", "--data", "digits", "--num-examples", "9", "--attacks", "nat")
    found = [program(*asked, "--checkpoint", file) for file in ("average.pt", "good.safetensors")]
    assert found[0].code == 0, found[0].err
    assert [line.split("(")[0] for line in found[0].out.splitlines() if line.startswith("nat")] == [
        line.split("(")[0] for line in found[1].out.splitlines() if line.startswith("nat")
    ]


def test_checkpoints_that_are_wrong(program: Program, trained: Path) -> None:
    state = load_file(next(trained.glob("checkpoints/*.safetensors")))
    weights = {name.removeprefix("model/"): value for name, value in state.items() if name.startswith("model/")}
    save_file(weights, "good.safetensors")
    save_file(weights | {"head.3.bias": torch.full((10,), torch.nan)}, "nan.safetensors")
    train = ("train", "--data", "digits", "--method", "at", "--out", "run", "--device", "cpu")
    fit = (*train, "--model", "small-cnn", "--checkpoint")
    program.refuses("head.3.bias holds NaN", *fit, "nan.safetensors")
    program.refuses("does not fit resnet18", *train, "--model", "resnet18", "--checkpoint", "good.safetensors")
    few = (*train, "--model", "small-cnn", "--data", colour(), "--checkpoint", "good.safetensors")
    program.refuses("features.0.weight (16, 1, 3, 3) for (16, 3, 3, 3)", *few)
    program.refuses("features.0.weight (16, 1, 3, 3) for (16, 3, 3, 3)", *few, "--new-head")
    two = {f"{prefix}.{name}": value for prefix in ("student", "teacher") for name, value in weights.items()}
    save_file({name: value.clone() for name, value in two.items()}, "two.safetensors")
    program.refuses("save what follows student. or teacher. in its names alone", *fit, "two.safetensors")
    torch.save({"evil": shutil.rmtree}, "evil.pt")
    program.refuses("pickled code is refused", *fit, "evil.pt")
    judged = ("evaluate", "--model", "resnet18", "--data", "digits", "--checkpoint")
    program.refuses("does not fit resnet18", *judged, "good.safetensors")
    program.refuses("no checkpoint file", *judged, "none.pt")
    program.refuses(
        "head.3.bias holds NaN",
        "evaluate",
        "--model",
        "small-cnn",
        "--data",
        "digits",
        "--checkpoint",
        "nan.safetensors",
    )


@pytest.mark.parametrize(
    ("words", "name"), [("leave out its last softmax", "probabilities"), ("--attacks nat,aa-rand", "dropout")]
)
def test_models_that_cannot_be_judged(program: Program, words: str, name: str) -> None:
    Path("wrongnets.py").write_text(SOURCE, encoding="utf-8")
    program.refuses(words, "evaluate", "--model", f"wrongnets:{name}", "--data", "digits", "--attacks", "nat,pgd-5")


@pytest.mark.parametrize("command", [("evaluate", "--attacks", "nat,pgd-5"), ("audit", "--num-examples", "10")])
@pytest.mark.parametrize("name", ["Without", "Blind"])
def test_models_without_gradients_cannot_be_attacked(program: Program, command: tuple[str, ...], name: str) -> None:
    Path("wrongnets.py").write_text(SOURCE, encoding="utf-8")
    judged = ("--model", f"wrongnets:{name}", "--data", "digits")
    program.refuses("no gradient reaches the images", command[0], *judged, *command[1:])
    assert program("evaluate", *judged, "--attacks", "nat", "--num-examples", "10").code == 0


def test_a_module_that_cannot_be_imported_since_it_ends_the_program(program: Program) -> None:
    Path("ending.py").write_text("import sys\nsys.exit(4)\n", encoding="utf-8")
    program.refuses("SystemExit: 4", "train", "--model", "ending:build", "--data", "digits", "--out", "run")


class Dicts(Dataset[Any]):
    """As Hugging Face's data sets are."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {"image": torch.zeros(1, 8, 8), "label": place % 2}


def test_loaders_and_dictionaries_from_python(tmp_path: Path) -> None:
    x, labels = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 0, 1])

    def refused(words: str, **arguments: Any) -> None:
        with pytest.raises(pm.UsageError, match=words):
            pm.train("at", model=tiny_net(classes=2), out=tmp_path / "run", device="cpu", **arguments)
        assert not (tmp_path / "run").exists()

    refused(r"example 0 is a dict with the keys 'image', 'label': give \(image, label\) pairs", data=(Dicts(), Dicts()))
    loader: DataLoader[Any] = DataLoader(Dicts(), batch_size=2)
    refused(r"train_loader\.dataset", data=(loader, loader))
    refused("pass a name", data=loader)
    refused("pass a name", data=({"image": x}, {"image": x}))
    with pytest.raises(pm.UsageError, match="take it out of its batch"):
        pm.mail_loss(tiny_net(classes=2), {"image": x}, labels)  # type: ignore[arg-type]
    with pytest.raises(pm.UsageError, match="convert them before the call"):
        pm.mail_loss(tiny_net(classes=2), (x * 255).to(torch.uint8), labels)
    with pytest.raises(pm.UsageError, match="the loader yields dict: make it yield"):
        pm.evaluate(tiny_net(classes=2), loader)
    with pytest.raises(pm.UsageError, match="collect them first"):
        pm.evaluate(tiny_net(classes=2), Dicts())  # type: ignore[arg-type]


def test_torch_data_sets_are_fine(tmp_path: Path) -> None:
    data = blobs()
    pairs = [torch.utils.data.TensorDataset(part.floats(), part.labels) for part in (data.train, data.test)]
    run = pm.train("at", model=tiny_net(classes=2), data=tuple(pairs), out=tmp_path / "run", epochs=1, device="cpu")  # type: ignore[arg-type]
    assert run.record["data"] == "datasets"
