"""Every format gives the model back, with its card; a file that does not is not left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from blobs import blobs
from needs import package
from safetensors import safe_open
from safetensors.torch import save_file
from strategies import tiny_net
from torch import nn

from probmargin import api as pm
from probmargin.core.errors import Failure, UsageError
from probmargin.core.types import Classifier
from probmargin.data.digits import load_digits
from probmargin.evaluation.run_audit import audit_subject
from probmargin.evaluation.subject import EvaluationRequest, evaluate_subject
from probmargin.export import formats
from probmargin.export.card import _pictures, _table, markdown
from probmargin.export.check import check_file
from probmargin.export.robustbench import claims
from probmargin.export.subject import Exported
from probmargin.methods.resolve import resolve
from probmargin.runs.run import open_run
from probmargin.training.progress import Reporter
from probmargin.training.request import TrainRequest
from probmargin.training.train import train
from probmargin.training.validation import ball_of

NAMES = {"safetensors": "m.safetensors", "torch-export": "m.pt2", "onnx": "m.onnx", "robustbench": "bundle"}
EACH = [
    pytest.param(name, marks=[package("onnxruntime", "onnx"), package("onnxscript", "onnx")] if name == "onnx" else [])
    for name in NAMES
]


@pytest.fixture(scope="session")
def normalised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with mean and deviation inside its model."""
    recipe = resolve("at", data="digits", epochs=1, settings={"attack.num_steps": "1", "attack.eps": "0.05"})
    folder = tmp_path_factory.mktemp("normalised") / "run"
    request = TrainRequest(out=folder, model="small-cnn", seed=0, device="cpu", normalize=True)
    train(recipe, load_digits(), request, Reporter(quiet=True))
    return folder


def read_back(format: str, out: Path) -> Classifier:
    """The exported model, by what its users have: not by our own readers."""
    if format == "safetensors":
        return pm.load_model(out)
    if format == "torch-export":
        return torch.export.load(out).module()
    if format == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
        assert session.get_inputs()[0].shape == ["batch", 1, 8, 8]
        return lambda x: torch.from_numpy(session.run(["logits"], {"images": x.numpy()})[0])
    namespace: dict[str, Any] = {"__file__": str(out / "model.py")}
    exec(compile((out / "model.py").read_text(encoding="utf-8"), "model.py", "exec"), namespace)
    model: Classifier = namespace["load_model"](str(out / "weights.pt"))
    return model


@pytest.mark.parametrize("format", EACH)
def test_a_file_is_the_model_with_its_normalisation_at_any_batch_size(
    normalised: Path, tmp_path: Path, format: str
) -> None:
    said: list[str] = []
    out = pm.export(
        normalised, tmp_path / NAMES[format], format=format, licence="MIT", num_examples=20, log=said.append
    )
    original, loaded = open_run(normalised).model, read_back(format, out)
    assert isinstance(original[0], nn.Module)  # type: ignore[index]
    x = load_digits().test.floats()
    with torch.no_grad():
        for count in (1, 2, 7):
            torch.testing.assert_close(loaded(x[:count]), original(x[:count]), rtol=1e-4, atol=1e-4)
    assert said[0].startswith("read again: natural ")
    assert ("PGD-20" in said[0]) == (format != "onnx")
    assert not list(tmp_path.glob(".*"))
    card = json.loads(
        (out / "card.json" if format == "robustbench" else tmp_path / f"{out.name}.card.json").read_text()
    )
    text = (out / "README.md" if format == "robustbench" else tmp_path / f"{out.name}.card.md").read_text()
    assert card["licence"] == "MIT"
    assert card["recipe"]["method"] == "at"
    assert card["training"]["data"] == "digits"
    assert card["model"]["normalisation"]["mean"] == pytest.approx(load_digits().mean_std()[0])
    assert card["accuracy"] == []
    assert f"robust accuracy: probmargin evaluate {normalised} --attacks nat,pgd-20,aa" in card["not_measured"]
    assert "Not measured: robust accuracy" in text
    assert "against Linf perturbations of 0.05" in text
    assert card["date"] in text
    assert f"```python\n{card['use']}\n```" in text
    used: dict[str, Any] = {"images": x[:2].numpy()} if format == "onnx" else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(out if format == "robustbench" else tmp_path)
        patch.syspath_prepend(str(out))
        patch.delitem(sys.modules, "model", raising=False)
        exec(card["use"], used)
        patch.delitem(sys.modules, "model", raising=False)
    with torch.no_grad():
        logits = torch.from_numpy(used["logits"]) if format == "onnx" else used["model"](x[:2])
        torch.testing.assert_close(logits, original(x[:2]), rtol=1e-4, atol=1e-4)


def test_a_card_gives_commands_that_work_for_what_came_from_python(trained: Path, tmp_path: Path) -> None:
    digits = load_digits()
    data = tuple((part.floats().numpy(), part.labels.numpy()) for part in (digits.train, digits.test))
    run = open_run(shutil.copytree(trained, tmp_path / "run"))
    missing, normalised = {}, {}
    evaluate_subject(EvaluationRequest(run=run.path, attacks=("nat",), num_examples=4, device="cpu"), print)
    found = json.loads(run.evaluation_path.read_text(encoding="utf-8"))
    run.evaluation_path.write_text(json.dumps(found | {"weights": "others"}), encoding="utf-8")
    said: list[str] = []
    for name, record in (("arrays", {"data": "arrays"}), ("object", {"data": "arrays", "model_settings": None})):
        run.update_record(**record)
        given: Any = pm.Run(run.path, open_run(trained).model) if name == "object" else run
        out = tmp_path / f"{name}.safetensors"
        pm.export(given, out, num_examples=4, data=data, log=said.append)  # type: ignore[arg-type]
        card = json.loads((tmp_path / f"{name}.safetensors.card.json").read_text())
        missing[name], normalised[name] = card["not_measured"], card["model"]["normalisation"]
    assert normalised == {"arrays": "none", "object": "what the network's own code does; give it images in [0, 1]"}
    assert missing["arrays"][0].endswith(f"probmargin evaluate {run.path} --data npz:FILE --attacks nat")
    norm, eps = ball_of(run.recipe)
    assert (norm, eps) != ("Linf", 8 / 255), "what pm.evaluate takes unless told"
    asked = f'"nat", norm="{norm}", eps={eps:g}'
    assert missing["object"][0].endswith(f"pm.evaluate(model, (x, y), {asked}) in Python")
    options = f"--model package.module:factory, --checkpoint, --data, --norm {norm} and --eps {eps:g}"
    assert missing["object"][-1] == f"signs of masked gradients: probmargin audit with {options}"
    assert not any("probmargin" in line for line in missing["object"][:-1])
    left_out = [line for line in said if "is of another state and is left out" in line]
    assert left_out[0].endswith(f"judge it with: probmargin evaluate {run.path} --data npz:FILE")
    assert left_out[1].endswith("left out")


def test_a_card_says_how_pictures_become_its_input(trained: Path, tmp_path: Path) -> None:
    """A crop, or a resize without antialiasing, gives a deployed model other images than it was measured on."""
    run = open_run(shutil.copytree(trained, tmp_path / "run"))
    digits = load_digits()
    for data, is_said in (("digits", False), ("folder:shapes", True)):
        run.update_record(data=data)
        out = tmp_path / f"{is_said}.safetensors"
        pm.export(run, out, num_examples=4, data=digits)
        text = Path(f"{out}.card.md").read_text(encoding="utf-8")
        assert ("- Pictures in files: turned" in text) == is_said
        assert ("grey, " in text and "squashed to 8x8 by Pillow's BILINEAR" in text) == is_said


def test_a_card_tells_width_from_height_and_colour_from_grey() -> None:
    subject: Any = SimpleNamespace(record={"data": "folder:shapes"}, x=torch.zeros(1, 3, 6, 9))
    said = _pictures(subject)
    assert said is not None
    assert "says, RGB, what" in said
    assert "squashed to 9x6 by" in said


def test_a_card_carries_what_was_measured(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    request = EvaluationRequest(run=run, attacks=("nat", "pgd-5"), num_examples=40, device="cpu")
    results, _ = evaluate_subject(request, log=lambda line: None)
    pm.export(run, tmp_path / "m.safetensors", num_examples=10)
    card = json.loads((tmp_path / "m.safetensors.card.json").read_text())
    rows = {row["attack"]: row for row in card["accuracy"]}
    assert rows["nat"]["accuracy"] == results["nat"]["accuracy"]
    assert rows["pgd-5"]["interval"] == results["pgd-5"]["interval"]
    assert (rows["pgd-5"]["norm"], rows["pgd-5"]["eps"], rows["pgd-5"]["num_examples"]) == ("Linf", 0.05, 40)
    assert card["not_measured"] == [
        f"robust accuracy under AutoAttack: probmargin evaluate {run} --attacks nat,aa",
        f"signs of masked gradients: probmargin audit {run}",
    ]
    assert f"| pgd-5 | {results['pgd-5']['robust_accuracy']:.2%} |" in (tmp_path / "m.safetensors.card.md").read_text()
    # An evaluation of other weights says nothing about these.
    stale = json.loads((run / "evaluation.json").read_text()) | {"weights": "0" * 16}
    (run / "evaluation.json").write_text(json.dumps(stale))
    said: list[str] = []
    pm.export(run, tmp_path / "n.safetensors", num_examples=10, log=said.append)
    assert json.loads((tmp_path / "n.safetensors.card.json").read_text())["accuracy"] == []
    assert any("another state" in line for line in said)


def test_a_card_says_of_how_many_test_images_only_the_first_were_judged() -> None:
    row = {"attack": "nat", "accuracy": 0.5, "interval": [0.4, 0.6], "num_examples": 100, "norm": None, "eps": None}
    lines = _table([{**row, "test_images": there} for there in (360, 100, None)])[2:5]
    assert [line.split(" | ")[3] for line in lines] == ["first 100 of 360", "100", "100"]


def test_results_that_name_no_weights_are_of_the_last_state(trained: Path, tmp_path: Path) -> None:
    run = open_run(shutil.copytree(trained, tmp_path / "run"))
    evaluate_subject(EvaluationRequest(run=run.path, attacks=("nat",), num_examples=4, device="cpu"), print)
    old = json.loads(run.evaluation_path.read_text(encoding="utf-8"))
    del old["weights"]
    run.evaluation_path.write_text(json.dumps(old), encoding="utf-8")
    run.audit_path.write_text(json.dumps({"verdict": "pass", "checks": []}), encoding="utf-8")
    last, first = run.states()[-1].with_suffix(".safetensors"), run.states()[0].with_suffix(".safetensors")
    assert last != first
    rows = {}
    for name, state in (("last", None), ("earlier", first)):
        pm.export(run, tmp_path / f"{name}.safetensors", num_examples=4, checkpoint=state)
        card = json.loads((tmp_path / f"{name}.safetensors.card.json").read_text(encoding="utf-8"))
        rows[name] = [row["attack"] for row in card["accuracy"]]
        assert not card.get("audit"), "an audit of no named weights is of none"
    assert rows == {"last": ["nat"], "earlier": []}


def test_a_card_carries_the_audit_of_its_weights(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    found, _ = audit_subject(EvaluationRequest(run=run, num_examples=20, device="cpu"), None, lambda line: None)
    verdicts = {"restarts": "warn", "noise": "warn", "transfer": "not run"}
    for check in found["checks"]:
        check["verdict"] = verdicts.get(check["name"], "pass")
    count = len(found["checks"]) - 1

    def exported(name: str) -> tuple[dict[str, Any], str]:
        (run / "audit.json").write_text(json.dumps(found))
        out = pm.export(run, tmp_path / f"{name}.safetensors", num_examples=10)
        return json.loads(Path(f"{out}.card.json").read_text()), Path(f"{out}.card.md").read_text()

    card, text = exported("warns")
    assert card["audit"]["verdict"] == found["verdict"]
    assert card["audit"]["checks"]["restarts"] == "warn"
    assert not any("masked" in line for line in card["not_measured"])
    line = f"- Audit, on the first 20 test images at Linf 0.05: {count - 2} of {count} checks pass"
    assert f"{line}; part of this robustness may not be real, as restarts, noise show\n" in text
    for check in found["checks"]:
        check["verdict"] = "not run" if check["name"] == "transfer" else "pass"
    assert f"Linf 0.05: {count} of {count} checks pass\n" in exported("passes")[1]
    found["weights"] = "0" * 16
    card, text = exported("another")
    assert card["audit"] is None
    assert "Audit" not in text
    assert f"signs of masked gradients: probmargin audit {run}" in card["not_measured"]


def test_a_card_names_the_epoch_of_the_state_that_was_taken(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    last = open_run(run).states()[-1].with_suffix(".safetensors")
    for suffix in (".json", ".safetensors"):
        shutil.copy(last.with_suffix(suffix), last.with_name(f"state-0003{suffix}"))
    # As if a third epoch had been trained, whose state was damaged afterwards.
    last.with_name("state-0003.safetensors").write_bytes(b"damaged")
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(open_run(run).metrics[-1] | {"epoch": 2}) + "\n")
    pm.export(run, tmp_path / "m.safetensors", num_examples=4)
    assert json.loads((tmp_path / "m.safetensors.card.json").read_text())["training"]["epochs"] == 2
    assert "Epochs: 2 of 2" in (tmp_path / "m.safetensors.card.md").read_text()


@pytest.mark.parametrize("format", EACH)
def test_what_a_killed_export_left_goes_with_the_next(trained: Path, tmp_path: Path, format: str) -> None:
    """Of this name alone, and not what another process may still be writing."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    name = NAMES[format]
    stays = [f".{name}.{os.getppid()}.part", f".other{name}.{dead.pid}.part", f".{name}.mine.part"]
    for left in (*stays, f".{name}.{dead.pid}.part", f".{name}.{os.getpid()}.part", f".{name}.{10**20}.part"):
        (tmp_path / left).mkdir()
        (tmp_path / left / name).write_bytes(b"half")
    pm.export(trained, tmp_path / name, format=format, num_examples=4)
    assert sorted(path.name for path in tmp_path.glob(".*")) == sorted(stays)


KILLED = """
import os, signal, sys
from probmargin import api as pm
from probmargin.export import formats
write, *rest = formats.FILES["safetensors"]
def die(subject, path):
    write(subject, path)
    os.kill(os.getpid(), signal.SIGKILL)
formats.FILES["safetensors"] = (die, *rest)
pm.export(sys.argv[1], sys.argv[2], num_examples=4)
"""


def test_an_export_after_one_that_was_killed(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(trained), str(out)], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(list(tmp_path.iterdir())) == 1
    pm.export(trained, out, num_examples=4)
    cards = [f"{out.name}.card.json", f"{out.name}.card.md"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [out.name, *cards]


def other(subject: Exported, change: float) -> Classifier:
    return lambda x: subject.model(x) + change


@pytest.mark.parametrize(
    ("reader", "words"),
    [
        (lambda path, subject: other(subject, 0.5), "logits differ by 0.5"),
        (lambda path, subject: other(subject, float("nan")), "logits differ by nan"),
        (lambda path, subject: lambda x: subject.model(x)[:, :9], "shape"),
        # The same logits with the gradient's sign turned: only an attack sees it.
        (lambda path, subject: lambda x: subject.model(2 * x.detach() - x), "under pgd-20 is"),
    ],
)
def test_a_file_that_is_not_the_model_is_an_error_and_goes(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Any, words: str
) -> None:
    write, _, suffix = formats.FILES["safetensors"]
    monkeypatch.setitem(formats.FILES, "safetensors", (write, reader, suffix))
    with pytest.raises(Failure, match=words):
        pm.export(trained, tmp_path / "m.safetensors", num_examples=100)
    assert list(tmp_path.iterdir()) == []


class Company(torch.nn.Module):
    """Its answer for an image depends on the images beside it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) - x.mean()


@pytest.mark.parametrize(
    ("size", "where"), [(1, "for a batch of 1"), (3, "for a batch of 3"), (8, "for the test images")]
)
def test_a_file_that_differs_at_one_size_of_batch_is_not_the_model(size: int, where: str) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    subject: Any = SimpleNamespace(model=model, x=torch.rand(8, 1, 2, 2), labels=torch.zeros(8, dtype=torch.long))

    def loaded(x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(x)
        return logits + 0.1 if len(x) == size else logits

    with pytest.raises(Failure, match=f"its logits differ by 0.1 {where}"):
        check_file(subject, loaded, has_gradients=False)
    assert check_file(subject, model, has_gradients=False).largest_logit_difference == 0
    subject.x = torch.cat([subject.x] * 10)
    subject.labels = subject.labels.repeat(10)
    subject.model = Company()
    assert check_file(subject, subject.model, has_gradients=False).largest_logit_difference == 0


def test_wrong_exports(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("mine", encoding="utf-8")
    (tmp_path / "n.safetensors.card.md").write_text("mine", encoding="utf-8")

    def wrong(out: str, words: str, format: str = "safetensors", run: Path = trained, **more: Any) -> None:
        with pytest.raises(UsageError, match=words):
            pm.export(run, tmp_path / out, format=format, **more)

    wrong("m.safetensors", "did you mean onnx", format="onxx")
    wrong("m.pt", r"give -o .*m\.safetensors")
    wrong("b.zip", "is a folder", format="robustbench")
    wrong("m.onnx", "is there already", format="onnx")
    wrong("n.safetensors", r"n\.safetensors\.card\.md is there already")
    wrong("m.safetensors", "there is no run", run=tmp_path / "none")
    wrong("m.safetensors", "from 1 to 360", num_examples=1000)
    wrong("m.safetensors", "from 1 to 360", num_examples=0)
    wrong("m.onnx/m.safetensors", "cannot write to")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "n.safetensors.card.md"]


BARE = """
import sys
sys.modules["probmargin"] = None   # the bundle must do without
sys.path.insert(0, {folder!r})
import torch
from model import load_model
x = torch.linspace(0, 1, 2 * {values}).view(2, *{shape})
print(load_model({weights!r})(x).tolist())
"""


def logits_alone(bundle: Path, shape: tuple[int, ...]) -> torch.Tensor:
    """What the bundle gives in a process that has torch and nothing of ours."""
    values = int(torch.Size(shape).numel())
    script = BARE.format(folder=str(bundle), weights=str(bundle / "weights.pt"), values=values, shape=shape)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=bundle)
    return torch.tensor(json.loads(done.stdout))


def test_a_bundle_needs_torch_alone_and_its_claims_are_measured(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    request = EvaluationRequest(run=run, attacks=("nat",), device="cpu")
    results, _ = evaluate_subject(request, log=lambda line: None)
    bundle = pm.export(run, tmp_path / "bundle", format="robustbench", num_examples=10)
    files = ["README.md", "card.json", "model.py", "model_info.json", "weights.pt"]
    assert sorted(path.name for path in bundle.iterdir()) == files
    x = torch.linspace(0, 1, 128).view(2, 1, 8, 8)
    torch.testing.assert_close(logits_alone(bundle, (1, 8, 8)), open_run(run).model(x), rtol=1e-4, atol=1e-4)
    claims = json.loads((bundle / "model_info.json").read_text())
    assert claims["clean_acc"] == f"{100 * results['nat']['accuracy']:.2f}"
    assert claims["autoattack_acc"] is None
    assert claims["reported"] is None
    assert claims["number_forward_passes"] == 1
    assert "0.05, not 8/255" in claims["footnote"]


def test_a_bundle_claims_what_was_measured_on_every_test_image(trained: Path) -> None:
    run, empty = open_run(trained), torch.zeros(0)

    def claimed(count: int) -> dict[str, Any]:
        found = {
            "norm": "Linf",
            "eps": 8 / 255,
            "nat": {"num_examples": count, "accuracy": 0.75},
            "aa": {"num_examples": count, "robust_accuracy": 0.25, "is_standard": True},
        }
        return claims(Exported(run, run.record, run.recipe, run.model, load_digits(), empty, empty, found, None, 2))

    part, whole = claimed(100), claimed(360)
    assert (part["clean_acc"], part["autoattack_acc"], part["reported"]) == (None, None, None)
    assert part["footnote"] == "AutoAttack on 100 images: 25.00."
    assert (whole["clean_acc"], whole["autoattack_acc"], whole["reported"]) == ("75.00", "25.00", "25.00")
    assert whole["footnote"] is None


@pytest.mark.parametrize("name", ["resnet18", "preact-resnet18", "wrn-10-1"])
def test_source_files_of_the_other_networks(trained: Path, name: str) -> None:
    from probmargin.export.source import model_source
    from probmargin.models.build import build_model

    settings = {"num_classes": 3, "in_channels": 1}
    model = build_model(name, num_classes=3, in_channels=1, seed=0).eval()
    run = open_run(trained)
    record = {**run.record, "model": name, "model_settings": settings}
    empty = torch.zeros(0)
    text = model_source(Exported(run, record, run.recipe, model, load_digits(), empty, empty, None, None, 2))
    namespace: dict[str, Any] = {"__file__": "model.py"}
    exec(compile(text, "model.py", "exec"), namespace)
    again = namespace["load_model"](None)
    again.load_state_dict(model.state_dict())
    x = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(again(x), model(x))
    assert "probmargin import" not in text
    assert "from probmargin" not in text


OWN = """
from torch import nn
{extra}
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    def forward(self, x):
        return self.layers(x)
def build(num_classes):
    return Net(num_classes)
"""


def own_run(folder: Path, monkeypatch: pytest.MonkeyPatch, model: str, source: str, **asked: Any) -> None:
    """A short run, in `folder`, of a network that a user wrote."""
    (folder / f"{model.partition(':')[0]}.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    recipe = resolve("standard", data="digits", epochs=1)
    request = TrainRequest(out=folder / "run", model=model, device="cpu", **{"normalize": True} | asked)
    train(recipe, load_digits(), request, Reporter(quiet=True))


DRAWN = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.mixed = torch.randn(64, 64) / 8
    def forward(self, x):
        return self.linear(x.flatten(1) @ self.mixed)
"""


def test_a_file_says_its_seed_by_which_its_network_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this network draws beside its weights is no part of them."""
    own_run(tmp_path, monkeypatch, "owndrawn:Net", DRAWN, seed=7)
    out = pm.export("run", tmp_path / "m.safetensors", num_examples=4)
    with safe_open(out, framework="pt") as file:
        facts = json.loads(file.metadata()["probmargin"])
    assert (facts["seed"], facts["recipe_hash"]) == (7, open_run("run").record["recipe_hash"])
    x = load_digits().test.floats()[:5]
    torch.testing.assert_close(pm.load_model(out, "owndrawn:Net")(x), open_run("run").model(x))


NAMES_OF_OURS = """
def load_model(num_classes): return Net(num_classes)
class Normalize(nn.Module):
    pass
"""


@pytest.mark.parametrize(
    ("model", "source"),
    [
        ("ownbare:build", OWN.format(extra="")),
        ("ownfuture:build", '"""Mine."""\nfrom __future__ import annotations\n' + OWN.format(extra="")),
        ("ownnames:load_model", OWN.format(extra="") + NAMES_OF_OURS),
        ("ownnumpy:build", OWN.format(extra="import numpy")),
    ],
)
def test_own_models_in_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, source: str) -> None:
    own_run(tmp_path, monkeypatch, model, source)
    if "numpy" in model:
        with pytest.raises(UsageError, match="imports numpy"):
            pm.export("run", "bundle", format="robustbench")
        assert not (tmp_path / "bundle").exists()
        return
    bundle = pm.export("run", tmp_path / "bundle", format="robustbench", num_examples=10)
    x = torch.linspace(0, 1, 128).view(2, 1, 8, 8)
    torch.testing.assert_close(logits_alone(bundle, (1, 8, 8)), open_run("run").model(x), rtol=1e-4, atol=1e-4)
    assert (bundle / "network.py").read_text(encoding="utf-8") == source


NORMALISED = """
{imports}
from torch import nn
def build(num_classes):
    return nn.Sequential({name}([0.3], [0.4]), nn.Flatten(), nn.Linear(64, num_classes))
"""


@pytest.mark.parametrize(
    ("imports", "name", "taken"),
    [
        ("import probmargin as pm", "pm.Normalize", True),
        ("import probmargin", "probmargin.Normalize", True),
        ("from probmargin import Normalize as Norm", "Norm", True),
        ("import probmargin as pm\npm.attack", "pm.Normalize", False),
        ("import probmargin as pm\nother = pm", "other.Normalize", False),
        ("from probmargin import Normalize, attack", "Normalize", False),
        ("from probmargin.models.layers import Normalize", "Normalize", False),
        ("import probmargin.models.layers as pm", "pm.Normalize", False),
        ("def late():\n    import probmargin as pm\n    return pm.Normalize", "late()", False),
        ("from probmargin.models.layers import Normalize\nimport numpy", "Normalize", False),
    ],
)
def test_a_bundle_brings_the_normalisation_that_an_own_network_begins_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imports: str, name: str, taken: bool
) -> None:
    module = f"ownnorm{abs(hash(imports))}"
    own_run(tmp_path, monkeypatch, f"{module}:build", NORMALISED.format(imports=imports, name=name), normalize=False)
    if not taken:
        with pytest.raises(
            UsageError, match=r"imports (numpy, )?probmargin, and the bundle's model file may need torch"
        ):
            pm.export("run", "bundle", format="robustbench")
        return
    bundle = pm.export("run", tmp_path / "bundle", format="robustbench", num_examples=10)
    x = torch.linspace(0, 1, 128).view(2, 1, 8, 8)
    torch.testing.assert_close(logits_alone(bundle, (1, 8, 8)), open_run("run").model(x), rtol=1e-4, atol=1e-4)
    assert sys.modules["probmargin"].__name__ == "probmargin"
    assert hasattr(sys.modules["probmargin"], "attack"), "the whole package is there again"


ONCE = """
import os
if "OWN_ONCE" in os.environ:
    {deed}
os.environ["OWN_ONCE"] = "1"
"""


@pytest.mark.parametrize("deed", ["raise RuntimeError('a second time')", "raise SystemExit(3)"])
def test_a_bundle_that_cannot_be_read_is_one_line_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    monkeypatch.setenv("OWN_ONCE", "")
    monkeypatch.delenv("OWN_ONCE")
    module = f"ownonce{len(deed)}"
    own_run(tmp_path, monkeypatch, f"{module}:build", OWN.format(extra=ONCE.format(deed=deed)))
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(Failure, match=r"^the written bundle cannot be read: .*network\.py, line \d+\); try another"):
        pm.export("run", "bundle", format="robustbench", num_examples=4)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_model_given_as_an_object(tmp_path: Path) -> None:
    data = blobs()
    run = pm.train("at", model=tiny_net(classes=2), data=data, out=tmp_path / "run", epochs=1, device="cpu")
    out = pm.export(run, tmp_path / "m.pt2", format="torch-export", data=data, num_examples=16)
    x = data.test.floats()[:5]
    torch.testing.assert_close(torch.export.load(out).module()(x), run.model(x), rtol=1e-4, atol=1e-4)
    pm.export(run, tmp_path / "m.safetensors", data=data, num_examples=16)
    with pytest.raises(UsageError, match="does not say how its model is built"):
        pm.load_model(tmp_path / "m.safetensors")
    with pytest.raises(UsageError, match="no source file"):
        pm.export(run, tmp_path / "bundle", format="robustbench", data=data, num_examples=16)


def test_the_function_export_is_not_hidden_by_the_folder() -> None:
    script = "import probmargin as pm; import probmargin.export.card; pm.UsageError; print(callable(pm.export))"
    for code in (script, "import probmargin as pm; pm.train; print(callable(pm.export))"):
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True\n"


def test_a_file_has_nothing_imported_that_the_caller_did_not_name(tmp_path: Path) -> None:
    def write(facts: object) -> Path:
        save_file({"a": torch.zeros(1)}, tmp_path / "m.safetensors", {"probmargin": json.dumps(facts)})
        return tmp_path / "m.safetensors"

    settings = {"num_classes": 3, "in_channels": 3}
    with pytest.raises(UsageError, match=r"asks for the network 'os:abort', which is not one of ours"):
        pm.load_model(write({"model": "os:abort", "settings": settings}))
    with pytest.raises(UsageError, match="not one of ours"):
        pm.load_model(write({"model": 3, "settings": settings}))
    with pytest.raises(UsageError, match="does not fit the network it names"):
        pm.load_model(write({"model": "small-cnn", "settings": settings}))
    with pytest.raises(UsageError, match="does not fit the network it names"):
        pm.load_model(write({"model": "small-cnn", "settings": {"classes": 3}}))
    for seed in ("7", 2**70, [7]):
        with pytest.raises(UsageError, match="does not fit the network it names"):
            pm.load_model(write({"model": "small-cnn", "settings": settings, "seed": seed}))


def test_a_model_that_asks_for_the_length_of_its_batch_is_exported(tmp_path: Path) -> None:
    """As class tokens of transformers do; torch.export takes that for a fixed size unless it reads the code."""

    class Token(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.token = nn.Linear(17, 2), nn.Parameter(torch.ones(1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.linear(torch.cat([x.flatten(1), self.token.expand(len(x), -1)], dim=1))
            return logits

    data = blobs()
    run = pm.train("standard", model=Token(), data=data, out=tmp_path / "run", epochs=1, device="cpu")
    out = pm.export(run, tmp_path / "m.pt2", format="torch-export", data=data, num_examples=4)
    x = data.test.floats()[:5]
    torch.testing.assert_close(torch.export.load(out).module()(x), run.model(x))


def test_a_card_says_under_which_conditions_a_model_was_trained(tmp_path: Path) -> None:
    data = blobs()
    recipe: dict[str, Any] = {
        "epochs": 1,
        "settings": {"ema.decay": 0.5},
        "validation": 10,
        "label_noise": "symmetric:0.2",
    }
    run = pm.train("standard", model=tiny_net(classes=2), data=data, out=tmp_path / "run", device="cpu", **recipe)
    out = pm.export(run, tmp_path / "m.safetensors", data=data, num_examples=4)
    card, text = (Path(f"{out}.card.{kind}").read_text(encoding="utf-8") for kind in ("json", "md"))
    images = len(data.train) - 10
    assert json.loads(card)["training"]["images"] == images
    assert f"({images:,} images)" in text
    assert "- Labels made wrong on purpose: symmetric:0.2" in text
    assert "- Held out of training, to choose a state: 10 images" in text
    assert "- The weights are a moving average over training (decay 0.5)" in text


def test_a_model_that_branches_on_its_data_cannot_be_exported(tmp_path: Path) -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.linear(x.flatten(1))
            return logits if float(logits.detach().sum()) > 0 else logits + 1

    data = blobs()
    run = pm.train("standard", model=Branching(), data=data, out=tmp_path / "run", epochs=1, device="cpu")
    with pytest.raises(UsageError, match="cannot follow Branching"):
        pm.export(run, tmp_path / "m.pt2", format="torch-export", data=data, num_examples=4)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_text_of_users_stays_text_in_a_card(trained: Path, tmp_path: Path) -> None:
    pm.export(trained, tmp_path / "m.safetensors", licence="<script>[x](y)|`a`", num_examples=4)
    text = (tmp_path / "m.safetensors.card.md").read_text(encoding="utf-8")
    assert r"\<script\>\[x\](y)\|\`a\`" in text
    card = json.loads((tmp_path / "m.safetensors.card.json").read_text(encoding="utf-8"))
    assert markdown(card) == text


def test_files_of_another_kind_name_their_reader(tmp_path: Path) -> None:
    for name, reader in (("m.onnx", "onnxruntime"), ("m.pt2", "torch.export.load")):
        (tmp_path / name).write_bytes(b"\0" * 64)
        with pytest.raises(pm.UsageError, match=f"use {reader}"):
            pm.load_model(tmp_path / name)


def test_what_onnx_has_no_word_for_is_said(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("conversion failed") from ValueError("no  word for\naten.odd")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(UsageError, match=r"\(no word for aten\.odd\); use --format torch-export or safetensors"):
        pm.export(trained, tmp_path / "m.onnx", format="onnx", num_examples=5)
    assert not (tmp_path / "m.onnx").exists()


def test_a_method_of_ones_own_is_not_published_under_anothers_name(trained: Path, tmp_path: Path) -> None:
    run = open_run(shutil.copytree(trained, tmp_path / "run"))
    out = tmp_path / "a.safetensors"
    pm.export(run, out, num_examples=4)
    assert f"by `{run.recipe.method}` (paper)" in Path(f"{out}.card.md").read_text(encoding="utf-8")
    changed = resolve(run.recipe, settings={"normalizer": "sum_one", "objective": "trades", "passes": "nat,adv"})
    run.recipe_path.write_text(json.dumps(changed.plain()), encoding="utf-8")
    other = tmp_path / "b.safetensors"
    pm.export(run, other, num_examples=4)
    words = f"by `{run.recipe.method} with normalizer sum_one and objective trades` (paper)"
    assert words in Path(f"{other}.card.md").read_text(encoding="utf-8")
