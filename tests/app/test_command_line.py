"""The command line: what it prints, how it ends, and that wrong use gets one line."""

import errno
import importlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from program import Program, program as program
from safetensors.torch import save_file

from probmargin.attacks.pgd import PGD
from probmargin.core.errors import UsageError
from probmargin.engine.checkpoints import load_weights
from probmargin.models.build import build_model
from probmargin.runs.run import open_run

TRAIN = ("train", "--data", "digits", "--model", "small-cnn", "--device", "cpu")


def test_help_is_quick() -> None:
    command = [sys.executable, "-m", "probmargin", "--help"]
    times = [1.0]
    while min(times) >= 0.5 and len(times) < 10:  # other work on the machine may slow a few down
        began = time.perf_counter()
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        times.append(time.perf_counter() - began)
    assert "train" in result.stdout
    assert min(times) < 0.5


OPTIONS = {
    "train": "--out --method --data --data-dir --download --image-size --model --preset --epochs --batch-size --seed "
    "--set --recipe --device --precision --compile --resume --normalize --checkpoint --new-head --fork --keep-epochs "
    "--validation --validation-every --early-stopping --monitor --monitor-every --dynamics --label-noise --sync-bn "
    "--placement --dry-run --help",
    "evaluate": "--attacks --model --checkpoint --data --data-dir --download --image-size --num-examples --aa-examples "
    "--norm --eps --protocol --seed --device --batch-size --search-precision --shard --save-adversarial --out --fresh "
    "--help",
    "merge": "--help",
    "audit": "--surrogate --model --checkpoint --data --data-dir --download --image-size --num-examples --norm --eps "
    "--seed --device --out --help",
    "reproduce": "--trials --seeds --only --data-dir --download --scale --executor --address --gpus-per-run --dry-run "
    "--render --out --keep-records --aa-examples --device --help",
    "report": "--out --data-dir --images --device --help",
    "compare": "--format --out --help",
    "watch": "--every --once --help",
    "inspect": "--top --json --measure-lps --data-dir --device --help",
    "demo": "--out --seed --help",
    "list": "--help",
    "export": "--format --out --checkpoint --results --data --data-dir --licence --license --num-examples --help",
    "import": "--layout --model --out --mean --std --partial --help",
}


@pytest.mark.parametrize("command", OPTIONS)
def test_the_options_are_pinned(program: Program, command: str) -> None:
    result = program(command, "--help")
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", result.out)) == set(OPTIONS[command].split())


TYPED = {
    "probmargin.training.train.train": [
        "train --out run --method at --data digits --model small-cnn --epochs 4 --seed 7 --device cpu --precision tf32 "
        "--compile off --resume --normalize --checkpoint w.pt --new-head --keep-epochs 2,3 --validation 90 "
        "--validation-every 3 --early-stopping 2 --monitor nat:9 --monitor-every 4 --dynamics --label-noise pair:0.2 "
        "--sync-bn --placement host",
        "train --out run --method at --data digits --fork other@2",
    ],
    "probmargin.evaluation.subject.evaluate_subject": [
        "evaluate run --attacks nat,fgsm --model wrn-10-1 --checkpoint w.pt --data digits --data-dir there --download "
        "--image-size 9 --num-examples 8 --aa-examples 7 --norm L2 --eps 0.25 --protocol standard --seed 6 "
        "--device cpu --batch-size 5 --search-precision tf32 --shard 2/3 --save-adversarial a.npz --out b.json --fresh"
    ],
    "probmargin.evaluation.run_audit.audit_subject": [
        "audit run --model wrn-10-1 --checkpoint w.pt --data digits --data-dir there --download --image-size 9 "
        "--num-examples 8 --norm L2 --eps 0.25 --seed 6 --device cpu --out b.json"
    ],
    "probmargin.experiments.reproduce.reproduce": [
        "reproduce table2 --trials 4 --seeds 2,3 --only at,mart --data-dir there --download --scale smoke "
        "--executor ray --address auto --gpus-per-run 0.5 --out runs --keep-records kept --aa-examples 8 --device cpu"
    ],
    "probmargin.experiments.report.write_report": [
        "report one two --out page.html --data-dir there --images 3 --device cpu",
    ],
    "probmargin.experiments.comparison.compare_runs": ["compare one two --format csv --out table.csv"],
    "probmargin.experiments.inspect.inspect_run": ["inspect run --top 3 --measure-lps 4 --data-dir there --device cpu"],
    "probmargin.export.export.export": [
        "export run --format onnx --out m.onnx --checkpoint w.pt --results b.json --data digits --data-dir there "
        "--licence MIT --num-examples 8"
    ],
    "probmargin.export.importing.import_weights": [
        "import w.pt --layout awp --model resnet18 --out w.safetensors --mean 0.5,0.25 --std 0.75,0.125 --partial"
    ],
}
"""By the function that a command hands its request to: every option, each with another value than its default."""

ELSEWHERE = {
    "train": "--method --preset --epochs --batch-size --set --recipe --data --data-dir --download --image-size "
    "--dry-run",
    "audit": "--surrogate",
    "reproduce": "--dry-run --render",
    "inspect": "--json",
    "export": "--license",
}
"""Options that are no field of a request."""


def noted(monkeypatch: pytest.MonkeyPatch, function: str) -> list[Any]:
    """What a function is called with, in the place of what it would do."""
    given: list[Any] = []

    def note(*arguments: Any, **_: Any) -> None:
        given[:] = arguments
        raise UsageError("noted")

    module, _, name = function.rpartition(".")
    monkeypatch.setattr(importlib.import_module(module), name, note)
    return given


def as_typed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize("function", TYPED)
def test_what_is_typed_is_what_is_asked_for(program: Program, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    """An option that its command forgets would have its default, whatever is typed."""
    given, covered = noted(monkeypatch, function), set()
    for line in TYPED[function]:
        command, *names = line.partition(" --")[0].split()
        program.refuses("noted", *line.split())
        (request,) = (one for one in given if type(one).__name__.endswith("Request"))
        others = set(ELSEWHERE.get(command, "").split())
        found = dict(re.findall(r"(--\S+)(?: (?!--)(\S+))?", line))
        covered |= {*found} | others
        known = {field.name: field for field in fields(request)}
        for option in {*found} - others:
            field = known[option.removeprefix("--").replace("-", "_")]
            assert as_typed(getattr(request, field.name)) == (found[option] or "True"), option
            assert field.default is MISSING or field.default != getattr(request, field.name), option
        if names:
            assert as_typed(getattr(request, next(iter(known)))) == ",".join(names)
    assert covered == set(OPTIONS[command].split()) - {"--help"}


def test_recipe_and_data_are_those_that_are_typed(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    given, asked = noted(monkeypatch, "probmargin.training.train.train"), []
    monkeypatch.setattr("probmargin.api.load_data", lambda *names, **options: asked.append((*names, options)))
    data = ("--data", "digits", "--data-dir", "there", "--download", "--image-size", "9", "--placement", "files")
    recipe = ("--method", "mart", "--preset", "official", "--epochs", "4", "--batch-size", "32", "--set", "lr=0.25")
    program.refuses("noted", "train", "--out", "run", *data, *recipe)
    found = given[0]
    assert (found.method, found.preset, found.epochs, found.batch_size, found.lr) == ("mart", "official", 4, 32, 0.25)
    assert asked == [("digits", Path("there"), {"download": True, "image_size": 9, "in_files": True})]


def test_the_surrogate_of_an_audit_is_the_one_that_is_typed(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    given = noted(monkeypatch, "probmargin.evaluation.run_audit.audit_subject")
    program.refuses("noted", "audit", "run", "--surrogate", "other")
    assert given[1] == Path("other")


def test_the_demo_trains_with_the_seed_that_is_typed(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    given = noted(monkeypatch, "probmargin.experiments.demo.train")
    program.refuses("noted", "demo", "--out", "there", "--seed", "7")
    request = given[2]
    assert (request.seed, request.out) == (7, Path("there/at"))


def test_no_summary_of_a_command_is_cut_off(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "..." not in program("--help").out.partition("Commands:")[2]


def test_list_names_everything(program: Program) -> None:
    everything = program("list").out
    for word in ("mail-trades", "pm_adv", "gairat_tanh", "pgd-20", "lm_pgd", "resnet18", "cifar100", "official-2021"):
        assert word in everything
    assert program("list", "margins").out.splitlines()[0] == "margins"
    wrong = program("list", "margin")
    assert wrong.code == 2
    assert "did you mean margins" in wrong.err


def test_train_evaluate_resume(program: Program, tmp_path: Path) -> None:
    arguments = (*TRAIN, "--method", "mail-at", "--epochs", "2", "--out", "run", "--set", "attack.num_steps=2")
    first = program(*arguments)
    assert first.code == 0
    assert "epoch 2/2" in first.out
    assert "probmargin evaluate run" in first.out
    again = program(*arguments)
    assert again.code == 2
    assert "--resume" in again.err
    resumed = program(*arguments, "--resume")
    assert resumed.code == 0
    assert "is finished" in resumed.out
    other = program(*arguments, "--resume", "--set", "lr=0.3")
    assert other.code == 2
    assert "lr is 0.1 there and 0.3 here" in other.err
    judged = program("evaluate", "run", "--attacks", "nat,pgd-5", "--num-examples", "50")
    assert judged.code == 0
    results = json.loads((tmp_path / "run" / "evaluation.json").read_text(encoding="utf-8"))
    assert results["eps"] == 0.15
    assert results["num_examples"] == 50
    assert open_run("run").record["evaluation"]["nat"] == results["nat"]


def test_evaluate_in_shards_merge_and_audit(program: Program, tmp_path: Path) -> None:
    program(*TRAIN, "--method", "at", "--epochs", "1", "--out", "run", "--set", "attack.num_steps=1")
    asked = ("evaluate", "run", "--attacks", "nat,pgd-2,apgd-ce", "--num-examples", "12", "--eps", "0.05")
    assert program("merge", "run").code == 2
    for shard in ("1/2", "2/2"):
        result = program(*asked, "--shard", shard)
        assert result.code == 0, result.err
        assert f"shard {shard}" in result.out
    merged = program("merge", "run")
    assert merged.code == 0
    assert "worst case over pgd-2, apgd-ce: " in merged.out
    whole = program(*asked, "--save-adversarial", "worst.npz", "--out", "copy.json")
    assert "robust accuracy after APGD-CE: " in whole.out
    assert "worst.npz, read again: " in whole.out
    worst = [line for line in whole.out.splitlines() if line.startswith("worst case")]
    assert worst == [line for line in merged.out.splitlines() if line.startswith("worst case")]
    stored, apart = (json.loads(Path(file).read_text("utf-8")) for file in ("run/evaluation.json", "copy.json"))
    assert stored["worst_case"] == apart["worst_case"]
    assert ("adversarial" in stored, "adversarial" in apart) == (False, True), "the run's own stay as they are"
    audited = program("audit", "run", "--num-examples", "6")
    assert audited.code == 0
    assert "zero_gradients" in audited.out
    assert json.loads((tmp_path / "run" / "audit.json").read_text(encoding="utf-8"))["num_examples"] == 6


def test_autoattack_on_the_first_images_is_labelled_so(program: Program) -> None:
    program(*TRAIN, "--method", "at", "--epochs", "1", "--out", "run", "--set", "attack.num_steps=1")
    asked = ("evaluate", "run", "--attacks", "nat,pgd-2,aa", "--num-examples", "9", "--eps", "0.3")
    result = program(*asked, "--aa-examples", "4")
    assert result.code == 0, result.err
    assert re.search(r"^aa \(first 4\): \S+% of 4 \(", result.out, re.MULTILINE)
    assert re.search(r"^pgd-2: \S+% of 9 \(", result.out, re.MULTILINE)
    assert re.search(r"^worst case over pgd-2, aa: \S+% of the first 4 \[", result.out, re.MULTILINE)
    record = open_run("run").record["evaluation"]
    counts = {name: (record[name]["num_examples"], record[name].get("first")) for name in ("nat", "pgd-2", "aa")}
    assert counts == {"nat": (9, None), "pgd-2": (9, None), "aa": (4, 4)}
    assert program("report", "run", "--out", "page.html").code == 0
    assert Path("page.html").read_text(encoding="utf-8").count(", first 4 images") == 2, "AutoAttack and the worst case"
    more = program(*asked, "--aa-examples", "10")
    assert "--aa-examples 10 is more than there are: AutoAttack looks at all 9 images" in more.out
    assert "first" not in open_run("run").record["evaluation"]["aa"]


def test_a_recipe_file_repeats_a_run(program: Program) -> None:
    program(*TRAIN, "--method", "gairat", "--epochs", "2", "--out", "a", "--set", "attack.num_steps=2")
    result = program(*TRAIN, "--recipe", "a/recipe.json", "--out", "b")
    assert result.code == 0
    weights = [open_run(path).model.state_dict()["head.1.weight"] for path in ("a", "b")]
    assert torch.equal(weights[0], weights[1])


def test_a_model_that_was_not_trained_here(program: Program, tmp_path: Path) -> None:
    (tmp_path / "ownnet.py").write_text(
        "import torch\n"
        "def build(num_classes, in_channels):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))\n",
        encoding="utf-8",
    )
    state = {"1.weight": torch.randn(10, 64), "1.bias": torch.zeros(10)}
    save_file(state, "w.safetensors")
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}, "w.pt")
    outputs = []
    for weights in ("w.safetensors", "w.pt"):
        arguments = ("--model", "ownnet:build", "--checkpoint", weights, "--data", "digits")
        result = program("evaluate", *arguments, "--attacks", "nat", "--eps", "0.1")
        assert result.code == 0, result.err
        outputs.append(result.out.split("(")[0])
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(("first", "second"), [("model", "ema"), ("state_dict", "ema_state_dict")])
def test_of_two_networks_in_a_file_it_is_said_which_is_taken(program: Program, first: str, second: str) -> None:
    model = build_model("small-cnn", num_classes=10, in_channels=1)
    own, average = model.state_dict(), {"module." + name: tensor * 0 for name, tensor in model.state_dict().items()}
    optimizer = {"state": {0: {"momentum_buffer": torch.zeros(3)}}, "param_groups": []}
    torch.save({second: average, "optimizer": optimizer, first: own, "epoch": 3}, "both.pt")
    torch.save({"optimizer": optimizer, first: own}, "one.pt")
    line = f"both.pt holds weights under {first}, {second}, and {first} is taken: for others save them alone, "
    fix = f"torch.save(torch.load('both.pt')['{second}'], 'other.pt')"
    judge = ("evaluate", "--model", "small-cnn", "--data", "digits", "--attacks", "nat", "--num-examples", "9")
    for command in (judge, (*TRAIN, "--method", "standard", "--epochs", "1", "--out", "run", "--dry-run")):
        said = program(*command, "--checkpoint", "both.pt")
        assert said.code == 0, said.err
        assert line + fix + "\n" in said.out
        assert "holds weights under" not in program(*command, "--checkpoint", "one.pt").out
    torch.save(torch.load("both.pt")[second], "other.pt")
    assert not any(bool(tensor.any()) for tensor in load_weights(Path("other.pt")).values())


def test_bf16_on_a_cpu_is_said_not_to_be(program: Program) -> None:
    result = program(*TRAIN, "--epochs", "1", "--out", "run", "--precision", "bf16", "--method", "standard")
    assert result.code == 0
    assert "float32, not bf16" in result.out


def folder(root: Path, *classes: str) -> str:
    for name in classes:
        (root / "pictures" / name).mkdir(parents=True)
        for number in range(10):
            pixels = np.full((8, 8, 3), 20 * number, dtype=np.uint8)
            Image.fromarray(pixels).save(root / "pictures" / name / f"{number}.png")
    return f"folder:{root / 'pictures'}"


def arrays(root: Path, **changes: Any) -> str:
    draw = np.random.default_rng(0)
    content: dict[str, Any] = {
        "x_train": draw.random((20, 1, 8, 8)).astype(np.float32),
        "y_train": np.arange(20) % 2,
        "x_test": draw.random((10, 1, 8, 8)).astype(np.float32),
        "y_test": np.arange(10) % 2,
    }
    np.savez(root / "data.npz", **(content | changes))
    return f"npz:{root / 'data.npz'}"


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("open('proof', 'w').close()",)


def cifar(root: Path, content: bytes | None) -> str:
    target = root / "cifar-10-batches-py"
    target.mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"):
        if content is not None:
            (target / name).write_bytes(content)
    return "cifar10"


GREY = np.random.default_rng(1)


@pytest.mark.parametrize(
    ("prepare", "arguments", "words"),
    [
        (lambda root: "digits", ("--method", "mail-trade"), "did you mean mail-trades"),
        (lambda root: "digits", ("--set", "attack.eps=8"), "(0, 1]"),
        (lambda root: "digits", ("--set", "attack.eps=0"), "above 0, not 0"),
        (lambda root: "digits", ("--epochs", "0"), "1 or more"),
        (lambda root: "digits", ("--batch-size", "0"), "1 or more"),
        (lambda root: "digits", ("--precision", "fp16"), "fp16 is refused"),
        (lambda root: "digits", ("--device", "cuda"), "--device cpu"),
        (lambda root: "digits", ("--model", "resnet17"), "did you mean resnet18"),
        (lambda root: "digits", ("--preset", "offical"), "it has paper"),
        (lambda root: "digits", ("--keep-epochs", "a,b"), "such as 70,76"),
        (lambda root: "digit", (), "did you mean digits"),
        (lambda root: "cifar10", (), "--data-dir"),
        (lambda root: cifar(root, None), ("--data-dir", "."), "neither cifar-10-batches-py/"),
        (lambda root: cifar(root, pickle.dumps({b"data": 1})[:-4]), ("--data-dir", "."), "truncated or damaged"),
        (lambda root: cifar(root, pickle.dumps(Evil(), protocol=2)), ("--data-dir", "."), "tries to run code"),
        (lambda root: f"folder:{root / 'none'}", (), "none"),
        (lambda root: folder(root, "cats"), (), "one class"),
        (lambda root: f"npz:{root / 'none.npz'}", (), "none.npz"),
        (lambda root: arrays(root, y_train=np.arange(20) - 1), (), "labels"),
        (lambda root: arrays(root, y_test=np.arange(10)), (), "labels"),
        (lambda root: arrays(root, x_train=np.full((20, 1, 8, 8), np.nan)), (), "NaN"),
        (lambda root: arrays(root, x_train=GREY.normal(size=(20, 1, 8, 8))), (), "inside the model"),
        (lambda root: arrays(root, x_train=GREY.random((20, 1, 8, 8)) * 255), (), "255"),
        (lambda root: arrays(root, x_train=GREY.random((20, 5, 8, 9))), (), "C must be 1 (grey) or 3 (RGB)"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    program: Program, tmp_path: Path, prepare: object, arguments: tuple[str, ...], words: str
) -> None:
    assert callable(prepare)
    data = prepare(tmp_path)
    result = program("train", "--model", "small-cnn", "--data", data, "--out", "run", *arguments)
    assert result.code == 2, result.out + result.err
    assert words in result.err
    assert result.err.startswith("probmargin: ")
    assert len(result.err.strip().splitlines()) == 1
    assert "Traceback" not in result.err
    assert not (tmp_path / "proof").exists()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("runs/none",), "there is no run at"),
        ((".",), "is not a run's folder"),
        ((), "give a run's folder"),
        (("--model", "small-cnn", "--data", "digits", "--checkpoint", "none.pt"), "no checkpoint file"),
        (("--model", "small-cnn", "--data", "digits", "--attacks", "pgd20"), "did you mean pgd-20"),
        (("--model", "small-cnn", "--data", "digits", "--eps", "8"), "(0, 1]"),
        (("--model", "small-cnn", "--data", "digits", "--norm", "L1"), "--norm"),
        (("--model", "small-cnn", "--data", "digits", "--norm", "L2"), "eps 0.03137 is a radius in Linf"),
        (("--model", "small-cnn", "--data", "digits", "--protocol", "standart"), "did you mean standard"),
        (("--model", "small-cnn", "--data", "digits", "--num-examples", "9999"), "from 1 to 360"),
        (("--model", "small-cnn", "--data", "digits", "--shard", "3/2"), "such as 2/5"),
        (("--model", "small-cnn", "--data", "digits", "--shard", "1/2"), "need a place"),
        (("--model", "small-cnn", "--data", "digits", "--attacks", ","), "no attack is named"),
        (("--model", "small-cnn", "--data", "digits", "--protocol", "standard", "--eps", "0.1"), "leave out"),
    ],
)
def test_wrong_evaluations(program: Program, arguments: tuple[str, ...], words: str) -> None:
    result = program("evaluate", *arguments)
    assert result.code == 2
    assert words in result.err


def test_an_interrupted_command_ends_with_130(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "probmargin", *TRAIN, "--method", "at", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # the first epoch is done
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in err
    assert open_run(tmp_path / "run").states()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_evaluation_says_whether_it_can_go_on(
    program: Program, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    judge = ("evaluate", "--model", "small-cnn", "--data", "digits", "--num-examples", "9")

    def stopped(*_: object, **__: object) -> None:
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(PGD, "run", stopped)
        kept = program(*judge, "--attacks", "nat,pgd-2", "--out", "a.json")
        anew = program(*judge, "--attacks", "nat,pgd-2", "--out", "a.json", "--fresh")
        lost = program(*judge, "--attacks", "nat,pgd-2")
    assert (kept.code, lost.code) == (130, 130)
    assert kept.err.strip() == "probmargin: interrupted; what is judged is stored; go on with the same command"
    assert anew.err.strip() == f"{kept.err.strip()}, without --fresh", "which would begin anew"
    assert lost.err.strip() == "probmargin: interrupted; nothing is kept: give --out FILE.json, and it can go on"
    assert program(*judge, "--attacks", "nat,pgd-2", "--out", "a.json").code == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_full_disk_is_one_line_and_exit_code_1(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "run/recipe.json")

    monkeypatch.setattr(os, "fsync", full)
    result = program(*TRAIN, "--epochs", "1", "--out", "run")
    assert result.code == 1
    words = "No space left on device: run/recipe.json; make room and start again, with --resume"
    assert result.err.strip() == f"probmargin: {words}"
    words = words.removesuffix(", with --resume")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert program(*TRAIN, "--epochs", "1", "--out", "other").code == 0
    monkeypatch.setattr(os, "fsync", full)
    for command in (("evaluate", "other", "--attacks", "nat"), ("report", "other", "-o", "page.html")):
        assert program(*command).err.strip() == f"probmargin: {words}", "what is no training has no --resume"


def test_two_things_at_once_are_refused(program: Program) -> None:
    program.refuses("give one of the two", "reproduce", "table2", "--dry-run", "--render")
    program.refuses("leave one of the two out", "reproduce", "table2", "--seeds", "1", "--render")
    program.refuses("such as 2,3, not 'two'", "reproduce", "table2", "--seeds", "1,two")


def test_a_finished_run_is_said_once_and_left_as_it_is(program: Program) -> None:
    arguments = ["train", "--data", "digits", "--model", "small-cnn", "--method", "at", "--out", "run"]
    arguments += ["--epochs", "2", "--set", "attack.num_steps=1", "--set", "attack.step_size=0.15", "--device", "cpu"]
    assert program(*arguments).code == 0
    events = list(Path("run").glob("events.*"))
    assert len(events) == 1
    again = program(*arguments, "--resume")
    assert again.code == 0
    assert again.out.strip() == "run is finished: it has trained for 2 epochs"
    assert list(Path("run").glob("events.*")) == events
