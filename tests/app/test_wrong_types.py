"""Wrong kinds of things handed to the public functions: one line that names the argument and what it takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blobs import blobs
from strategies import tiny_net
from torch import nn

from probmargin import api as pm
from probmargin.core.arguments import checked
from probmargin.core.autocast import outside_autocast
from probmargin.core.records import coerce

LOGITS, LABELS = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1])


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))


def given_data() -> tuple[torch.Tensor, torch.Tensor]:
    test = blobs().test
    return test.floats(), test.labels


TRAIN: list[tuple[str, Any, str]] = [
    ("epochs", "two", "epochs: 'two' is not a number"),
    ("epochs", 2.5, "epochs takes a whole number, not 2.5"),
    ("epochs", True, "epochs takes a number, not True"),
    ("epochs", [2], r"epochs takes a number, not \[2\]"),
    ("batch_size", float("inf"), "batch_size takes a finite number, not inf"),
    ("settings", ["lr=0.1"], "settings takes names with values such as"),
    ("settings", {5: 1}, "settings takes names as text, not 5"),
    ("settings", {"lr": object()}, "lr takes a number, not <object"),
    ("settings", {"attack": [1]}, "attack takes an object with a name"),
    ("out", None, "out takes a path, as text or a Path, not None"),
    ("out", 3, "out takes a path"),
    ("checkpoint", {"a": 1}, "checkpoint takes a path"),
    ("data_dir", 3, "data_dir takes a path"),
    ("monitor", ["pgd-20"], r"monitor takes text, not \['pgd-20'\]"),
    ("fork", 3, "fork takes text, not 3"),
    ("label_noise", 0.2, "label_noise takes text, not 0.2"),
    ("seed", "one", "seed: 'one' is not a number"),
    ("seed", None, "seed takes a number, not None"),
    ("model", 3, "model is given as int: pass"),
    ("method", 5, "method is given as int: pass a name"),
    ("preset", 5, "preset takes text, not 5"),
    ("data", 5, "data is given as int: pass a name"),
    ("keep_epochs", 5, "keep_epochs takes a list such as 74,89, not 5"),
    ("keep_epochs", [1.5], "keep_epochs takes a whole number, not 1.5"),
    ("resume", "maybe", "resume takes true or false, not 'maybe'"),
    ("placement", ["host"], r"placement takes text, not \['host'\]"),
    ("placement", "files", "only images of folder:PATH can stay in their files"),
    ("reporter", print, "reporter is given as builtin_function_or_method: pass a Reporter, or verbose=True"),
    ("validation", np.zeros(3), "validation takes a number, not array"),
]


@pytest.mark.parametrize(("name", "value", "words"), TRAIN)
def test_train_names_the_argument(name: str, value: Any, words: str, tmp_path: Path) -> None:
    """And nothing is written."""
    given = {"method": "at", "model": net(), "data": blobs(), "out": tmp_path / "run", "device": "cpu", name: value}
    with pytest.raises(pm.UsageError, match=words) as error:
        pm.train(**given)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", float("inf"), float("nan"), np.float32("nan")])
@pytest.mark.parametrize("path", ["weight.bias", "weight.slope", "lr", "weight_decay", "awp.gamma", "attack.step_size"])
def test_settings_are_finite(path: str, number: Any, tmp_path: Path) -> None:
    with pytest.raises(pm.UsageError, match=rf"{path}( takes a finite number, not|: 'nan' is not a number)"):
        pm.train("mail-at", model=net(), data=blobs(), out=tmp_path / "run", settings={path: number}, device="cpu")
    assert list(tmp_path.iterdir()) == []


def test_lambda_may_be_infinite() -> None:
    """It is what GAIRAT's uniform weights are."""
    assert pm.resolve("gairat", settings={"weight.lam": "inf"}).plain()["weight"]["lam"] == "inf"
    assert pm.gairat_weight(torch.tensor([4.0]), 10, float("inf")).tolist() == [1.0]
    with pytest.raises(pm.UsageError, match="'nan' is not a number"):
        pm.resolve("gairat", settings={"weight.lam": "nan"})


def test_train_takes_what_has_a_meaning(tmp_path: Path) -> None:
    run = pm.train(
        "at",
        model=net(),
        data=blobs(),
        out=str(tmp_path / "run"),
        epochs="2",  # type: ignore[arg-type]
        batch_size=np.int64(32),  # type: ignore[arg-type]
        seed=torch.tensor(3),  # type: ignore[arg-type]
        keep_epochs=np.array([1]),  # type: ignore[arg-type]
        settings={"attack.num_steps": np.int32(1), "lr_milestones": np.array([1]), "attack.eps": "8/255"},
        device="cpu",
    )
    record = pm.open_run(str(run.path)).record
    assert (record["seed"], record["recipe"]["epochs"], record["recipe"]["batch_size"]) == (3, 2, 32)
    assert record["recipe"]["lr_milestones"] == [1]
    assert (run.path / "checkpoints" / "state-0001.json").exists()


EVALUATE: list[tuple[str, Any, str]] = [
    ("eps", "8/255/2", "eps: '8/255/2' is not a number"),
    ("eps", [0.1], r"eps takes a number, not \[0.1\]"),
    ("eps", float("nan"), "eps takes a finite number"),
    ("batch_size", 2.5, "batch_size takes a whole number, not 2.5"),
    ("aa_examples", 2.5, "aa_examples takes a whole number, not 2.5"),
    ("seed", None, "seed takes a number, not None"),
    ("attacks", None, r"attacks takes a list such as \['nat', 'pgd-20'\], not None"),
    ("attacks", [5], "attacks takes text, not 5"),
    ("norm", ["Linf"], "unknown norm"),
    ("device", 0, "device takes text, not 0"),
    ("model", "small-cnn", "pass the network itself"),
    ("data", (np.zeros((4, 16)), np.zeros(4, int)), "pass one 4-dimensional array"),
    ("data", (np.zeros((4, 1, 4, 4)), np.zeros(4)), "pass integer class numbers"),
    ("data", (np.zeros((4, 1, 4, 4)), np.full(4, np.inf)), "pass integer class numbers"),
    ("data", (np.zeros((4, 1, 4, 4)), torch.tensor(1)), r"labels must have shape \(N,\); found \(\)"),
    ("data", (np.zeros((4, 1, 4, 4)), np.zeros((4, 2), int)), "if they are one-hot"),
    ("data", (None, None), "images have dtype object"),
]


@pytest.mark.parametrize(("name", "value", "words"), EVALUATE)
def test_evaluate_names_the_argument(name: str, value: Any, words: str) -> None:
    with pytest.raises(pm.UsageError, match=words) as error:
        pm.evaluate(**{"model": net(), "data": given_data(), "attacks": ["nat", "pgd-1"], name: value})
    assert "\n" not in str(error.value)


def test_evaluate_takes_what_has_a_meaning() -> None:
    model, data = tiny_net(classes=2), given_data()
    wanted = pm.evaluate(model, data, ["pgd-2"], eps=8 / 255)
    for eps in ("8/255", np.float64(8 / 255), torch.tensor(8 / 255, dtype=torch.float64)):
        found = pm.evaluate(model, data, "pgd-2", eps=eps, batch_size="16")  # type: ignore[arg-type]
        assert (found["eps"], found["pgd-2"]["correct"]) == (wanted["eps"], wanted["pgd-2"]["correct"])


def test_data_by_path(tmp_path: Path) -> None:
    x, labels = np.full((4, 1, 4, 4), 9, np.uint8), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "data.npz", x_train=x, y_train=labels, x_test=x, y_test=labels)
    assert pm.load_data(tmp_path / "data.npz").name.startswith("npz:")
    with pytest.raises(pm.UsageError, match="nowhere"):
        pm.load_data(Path("nowhere"))
    with pytest.raises(pm.UsageError, match="spec takes a path, as text or a Path, not 5"):
        pm.load_data(5)  # type: ignore[arg-type]
    run = pm.train("standard", model=net(), data=tmp_path / "data.npz", out=tmp_path / "run", epochs=1, device="cpu")
    assert run.record["data"].startswith("npz:")


class Pair(nn.Module):
    """A model with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x), x


class Changing(Pair):
    """A model that writes into its input."""

    def forward(self, x: torch.Tensor) -> Any:
        x.clamp_(0, 1)
        return self.inner(x)


class Guarded(Pair):
    """A model that takes [0, 1] at its word."""

    def forward(self, x: torch.Tensor) -> Any:
        assert x.min() >= 0, "too dark"
        return self.inner(x)


def single() -> nn.Module:
    """A model with one output for two classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 1))


X, Y = torch.rand(4, 1, 4, 4).round(), torch.tensor([0, 1, 0, 1])
LOSS: list[tuple[dict[str, Any], str]] = [
    ({"x": X[:0], "labels": Y[:0]}, "the batch is empty"),
    ({"x": X.half()}, r"images are torch.float16, too coarse .* pass x.float\(\)"),
    ({"x": X.bfloat16()}, r"images are torch.bfloat16, too coarse"),
    ({"model": net().half()}, r"computes in torch.float16; call .float\(\)"),
    ({"model": net().to("meta")}, "lie on cpu and meta: move them all to one device"),
    ({"model": Pair()}, "model Pair returns tuple; return one tensor of logits"),
    (
        {"model": nn.Sequential(net(), nn.Softmax(1))},
        "model Sequential returns probabilities; leave out its last softmax",
    ),
    ({"model": single()}, "one logit for two classes; return one a class"),
    ({"model": single(), "labels": Y * 0}, "one logit for two classes; return one a class"),
    ({"model": single(), "labels": Y * 0, "method": "standard"}, "one logit for two classes"),
    ({"model": nn.Flatten(0)}, r"gives an output of shape \(16,\) for 1 images"),
    ({"model": Changing()}, "model Changing changes its input in place"),
    ({"model": Guarded()}, "fails on images a little outside .* too dark .*clamp_start=true"),
    ({"x": X.numpy()}, "x takes a tensor, not ndarray: take it out of its batch, or convert it"),
    ({"labels": [0, 1, 0, 1]}, "labels takes a tensor, not list"),
    ({"labels": Y[:, None]}, "use labels.reshape"),
    ({"labels": Y[:3]}, "convert them before the call"),
    ({"labels": torch.tensor(1)}, "convert them before the call"),
    ({"labels": Y.float()}, "pass integer class numbers"),
    ({"labels": Y + 1}, "labels run from 1 to 2"),
    ({"eps": [0.1]}, "eps takes a number"),
    ({"num_steps": 1.5}, "num_steps takes a whole number"),
    ({"seed": "x"}, "seed: 'x' is not a number"),
    ({"weighted": 2}, "weighted takes true or false"),
]


@pytest.mark.parametrize(("wrong", "words"), LOSS, ids=[words[:30] for _, words in LOSS])
def test_mail_loss_names_what_is_wrong(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(pm.UsageError, match=words):
        pm.mail_loss(**{"model": net(), "x": X.clone(), "labels": Y, "method": "mail-at", "num_steps": 1, **wrong})


def test_float16_autocast_is_refused_and_bfloat16_is_not() -> None:
    """Its gradients are zero for a confident network: PGD broke 4% of what it breaks in float32."""
    calls: list[Callable[[], object]] = [
        lambda: pm.mail_loss(net(), X, Y, "mail-at", num_steps=1),
        lambda: pm.attack("pgd", eps=0.1, step_size=0.1, num_steps=1)(net(), X, Y),
    ]
    for call in calls:
        with (
            torch.autocast("cpu", dtype=torch.float16),
            pytest.raises(pm.UsageError, match=r"give it dtype=torch\.bfloat16"),
        ):
            call()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            call()


def test_an_evaluation_is_of_its_own_precision_wherever_it_is_called() -> None:
    torch.manual_seed(0)
    last = nn.Linear(16, 2)
    last.weight.data *= 100
    model = nn.Sequential(nn.Flatten(), last)
    x = torch.rand(64, 1, 4, 4)
    labels = model(x).argmax(1)
    plain = pm.evaluate(model, (x, labels), ["pgd-20"], eps=0.2)
    with torch.autocast("cpu", dtype=torch.float16):
        inside = pm.evaluate(model, (x, labels), ["pgd-20"], eps=0.2)
    assert inside["pgd-20"]["correct"] == plain["pgd-20"]["correct"]
    assert inside["warnings"] == plain["warnings"]


def test_training_is_of_its_own_precision_wherever_it_is_called(tmp_path: Path) -> None:
    known: dict[str, Any] = {"data": blobs(), "model": "small-cnn", "epochs": 1, "device": "cpu"}
    plain = pm.train("at", out=tmp_path / "plain", **known)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = pm.train("at", out=tmp_path / "inside", **known)
    assert inside.record["weights"] == plain.record["weights"]


def test_outside_of_autocast_nothing_keeps_its_copies_of_weights() -> None:
    """Copies that a network's own autocast makes must be forgotten at its end, or a step would see old weights."""
    with outside_autocast():
        depth = torch.autocast_increment_nesting()
        torch.autocast_decrement_nesting()
    assert depth == 1


ATTACK: list[tuple[nn.Module, torch.Tensor, torch.Tensor, str]] = [
    (net().bfloat16(), X.bfloat16(), Y, r"images are torch.bfloat16, too coarse .* pass x.float\(\)"),
    (net().double(), X.half(), Y, "images are torch.float16, too coarse"),
    (Pair(), X, Y, "the model returns tuple; return one tensor of logits"),
    (single(), X, Y, "one logit for two classes; return one a class"),
    (single(), X, Y * 0, "one logit for two classes; return one a class"),
]


@pytest.mark.parametrize("name", ["pgd", "early_stop_pgd", "apgd", "fab", "square", "lm_pgd"])
@pytest.mark.parametrize(("model", "x", "labels", "words"), ATTACK, ids=[words[:20] for *_, words in ATTACK])
def test_every_attack_refuses_what_it_cannot_attack(
    name: str, model: nn.Module, x: torch.Tensor, labels: torch.Tensor, words: str
) -> None:
    with pytest.raises(pm.UsageError, match=words):
        pm.attack(name)(model, x, labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mail_loss_computes_as_the_model_does(dtype: torch.dtype) -> None:
    """Doubles of numpy in a float32 model, and a model in doubles on float32 images."""
    torch.manual_seed(0)
    model = net()
    losses = [
        float(pm.mail_loss(model.to(own), X.to(dtype), Y, "mail-at", eps="8/255", seed=1).detach())  # type: ignore[arg-type]
        for own in (torch.float32, torch.float64)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


PIECES: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (pm.sigmoid_weight, {"margin": 0.5}, "margin takes a tensor, not float"),
    (pm.sigmoid_weight, {"margin": LOGITS[0], "bias": "inf"}, "bias takes a finite number"),
    (pm.hinge_weight, {"margin": [0.5]}, "margin takes a tensor, not list"),
    (pm.step_weight, {"margin": LOGITS[0], "alpha": None}, "alpha takes a number, not None"),
    (pm.gairat_weight, {"steps": torch.tensor([-1]), "num_steps": 10, "lam": 0}, "steps must lie between 0 and"),
    (pm.gairat_weight, {"steps": torch.tensor([11]), "num_steps": 10, "lam": 0}, "steps must lie between 0 and"),
    (pm.gairat_weight, {"steps": LOGITS[0], "num_steps": 2.5, "lam": 0}, "num_steps takes a whole number"),
    (pm.normalize_weights, {"weight": torch.tensor(1.0)}, r"weights must have shape \(B,\)"),
    (pm.normalize_weights, {"weight": LOGITS[0], "how": 5}, "how takes text, not 5"),
    (pm.normalize_weights, {"weight": torch.tensor([1.0, -1.0])}, "finite, none below zero"),
    (pm.normalize_weights, {"weight": torch.tensor([1.0, torch.inf])}, "finite, none below zero"),
    (pm.normalize_weights, {"weight": torch.zeros(0)}, "pass those of a batch"),
    (pm.load_model, {"path": "."}, r"take open_run\('\.'\)\.model"),
    (pm.load_model, {"path": "none.safetensors"}, "there is no file none.safetensors"),
    (pm.at_loss, {"logits_adv": LOGITS, "labels": [0, 1]}, "labels takes a tensor, not list"),
    (pm.at_loss, {"logits_adv": LOGITS[0], "labels": LABELS}, r"logits must be floats \(B, classes\)"),
    (pm.at_loss, {"logits_adv": LOGITS, "labels": LABELS + 1}, "labels run from 1 to 2"),
    (
        pm.trades_loss,
        {"logits_nat": LOGITS, "logits_adv": LOGITS[:1], "labels": LABELS, "beta": 1},
        "all of one shape, not torch.float32",
    ),
    (
        pm.mart_loss,
        {"logits_nat": LOGITS, "logits_adv": LOGITS, "labels": LABELS, "beta": "x"},
        "beta: 'x' is not a number",
    ),
    (pm.probabilistic_margin, {"logits": LOGITS, "labels": LABELS.float()}, "pass integer class numbers"),
    (pm.logit_margin, {"logits": LOGITS, "labels": LABELS[:1]}, "2 images but 1 labels"),
    (pm.attack, {"name": 5}, "name takes text, not 5"),
    (pm.attack, {"name": "pgd", "eps": [1]}, "eps takes a number"),
    (pm.resolve, {"data": ["digits"]}, "data is given as list: pass a name"),
    (pm.resolve, {"settings": [("lr", 0.1)]}, "settings takes names with values"),
    (pm.open_run, {"path": 5}, "path takes a path"),
    (pm.load_model, {"path": None}, "path takes a path"),
    (pm.load_model, {"path": "none.safetensors", "model": 5}, "model takes text, not 5"),
    (pm.catalogue, {"kind": 5}, "kind takes text, not 5"),
    (pm.export, {"run": 5, "out": "x"}, "run is given as int: pass its folder"),
    (pm.export, {"run": "run", "out": 5}, "out takes a path"),
    (pm.import_weights, {"weights": 5, "out": "x", "layout": "awp", "model": "m"}, "weights takes a path"),
    (pm.import_weights, {"weights": "w", "out": "", "layout": "awp", "model": "m"}, "give -o weights.safetensors"),
    (
        pm.import_weights,
        {"weights": "w", "out": "o", "layout": "awp", "model": "m", "log": 5},
        "log takes a function such as print, not 5",
    ),
]


@pytest.mark.parametrize(("function", "given", "words"), PIECES, ids=[words[:40] for *_, words in PIECES])
def test_pieces_name_the_argument(function: Callable[..., Any], given: dict[str, Any], words: str) -> None:
    with pytest.raises(pm.UsageError, match=words) as error:
        function(**given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": nn.Flatten}, "pass a network, or a function"),
        ({"x": X.numpy()}, "an attack takes tensors x and labels, not ndarray"),
        ({"labels": Y.float()}, "B integer labels, not"),
        ({"noise": 5}, "noise is given as int: pass a KeyedNoise"),
        ({"x": X * 255}, r"images in \[0, 1\]: put the normalisation inside"),
        ({"x": X * torch.nan}, "finite images; these hold NaN or infinite values: repair or drop them"),
        ({"labels": Y - 20}, "labels from 0 on"),
        ({"labels": Y == 1}, "B integer labels, not .* torch.bool"),
        ({"labels": Y + 98}, "labels go up to 99 but the model has 2 classes: relabel them as 0 to 1"),
        ({"labels": Y + 1}, "labels go up to 2 but the model has 2 classes"),
    ],
)
def test_attacks_name_what_is_wrong(given: dict[str, Any], words: str) -> None:
    attack = pm.attack("pgd", eps=0.1, step_size=0.1, num_steps=1)
    call = {"model": net(), "x": X, "labels": Y, "noise": None, **given}
    with pytest.raises(pm.UsageError, match=words):
        attack(call["model"], call["x"], call["labels"], noise=call["noise"])


def test_long_values_are_cut_and_python_speaks_of_missing_arguments() -> None:
    with pytest.raises(pm.UsageError, match=r"n takes a number, not tensor.{60,80}\.\.\.$"):
        coerce(torch.zeros(50, 50), int, "n")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'margin'"):
        pm.sigmoid_weight()  # type: ignore[call-arg]
    assert checked(pm.catalogue).__doc__ == pm.catalogue.__doc__
