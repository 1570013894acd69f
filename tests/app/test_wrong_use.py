"""What a new user may get wrong with data, settings and folders: one line that names the fix, exit code 2."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from program import Program, program as program
from trained_run import trained as trained

TRAIN = ("train", "--model", "small-cnn", "--device", "cpu", "--method", "at", "--out", "run")
DIGITS = (*TRAIN, "--data", "digits")
BY_FILE = ("train", "--model", "small-cnn", "--device", "cpu", "--data", "digits", "--out", "run")


def arrays(**changes: Any) -> None:
    draw = np.random.default_rng(0)
    content: dict[str, Any] = {
        "x_train": draw.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8),
        "y_train": np.arange(20) % 2,
        "x_test": draw.integers(0, 256, (10, 8, 8, 3), dtype=np.uint8),
        "y_test": np.arange(10) % 2,
    }
    np.savez("data.npz", **(content | changes))


def pictures(*classes: str, count: int = 4) -> None:
    for name in classes:
        folder = Path("pictures") / name
        folder.mkdir(parents=True)
        for number in range(count):
            Image.fromarray(np.full((8, 8, 3), 20 * number, dtype=np.uint8)).save(folder / f"{number}.png")


COMMANDS = [
    ("No such option: --epoch", (*DIGITS, "--epoch", "3")),
    ("No such command 'trian'", ("trian",)),
    ("Missing option '--out'", ("train", "--data", "digits")),
    ("Invalid value for '--epochs'", (*DIGITS, "--epochs", "ten")),
    ("requires an argument", ("train", "--out")),
    ("unexpected extra argument", (*DIGITS, "more")),
    ("write 8/255", (*DIGITS, "--set", "attack.eps=8")),
    ("is not a number; write 0.031 or 8/255", (*DIGITS, "--set", "attack.eps=8/255/2")),
    ("did you mean eps", (*DIGITS, "--set", "attack.epsilon=0.1")),
    ("PATH=VALUE", (*DIGITS, "--set", "attack.eps")),
    ("did you mean mail-trades", (*DIGITS, "--method", "mailtrades")),
    ("did you mean resnet18", (*DIGITS, "--model", "resnet-18")),
    ("did you mean digits", (*TRAIN, "--data", "digit")),
    ("--data-dir", (*TRAIN, "--data", "cifar10")),
    ("folder:PATH", (*TRAIN, "--data", "folder:")),
    ("it has paper", (*DIGITS, "--preset", "papers")),
    ("1 or more", (*DIGITS, "--epochs", "0")),
    ("1 or more", (*DIGITS, "--batch-size", "0")),
    ("use cpu or cuda", (*DIGITS, "--device", "tpu")),
    ("fp16 is refused", (*DIGITS, "--precision", "fp16")),
    ("ask for 1 to 1436", (*DIGITS, "--validation", "5000")),
    ("--validation N", (*DIGITS, "--early-stopping", "3")),
    ("such as pgd-20:1000", (*DIGITS, "--monitor", "pgd-20:many")),
    ("there are 360 test images", (*DIGITS, "--monitor", "pgd-20:1000")),
    ("symmetric:0.2", (*DIGITS, "--label-noise", "symmetric:2")),
    ("such as runs/a@74", (*DIGITS, "--fork", "runs/a")),
    ("there is no run at none", (*DIGITS, "--fork", "none@3")),
    ("there is no recipe file", (*BY_FILE, "--recipe", "none.json")),
    ("no checkpoint file", (*DIGITS, "--checkpoint", "none.pt")),
    ("give both", (*DIGITS, "--new-head")),
    ("takes a whole number", (*DIGITS, "--set", "attack.num_steps=2.5")),
    ("did you mean methods", ("list", "method")),
    ("greater than or equal to 0", (*DIGITS, "--seed", "-1")),
    ("Invalid value for '--seed'", (*DIGITS, "--seed", str(2**70))),
    (
        "--keep-epochs takes epochs from 1 to 1, such as 70,76, not '5'",
        (*DIGITS, "--epochs", "1", "--keep-epochs", "5"),
    ),
    ("need an attack of 2 steps", (*TRAIN, "--data", "digits", "--method", "gairat", "--set", "attack.num_steps=1")),
    (
        "unknown setting in attack 'foo'",
        (*DIGITS, "--epochs", "9", "--set", 'phases=[{"from_epoch": 8, "set": {"attack.foo": 1}}]'),
    ),
    ("such as 70,76, not '0'", (*DIGITS, "--keep-epochs", "0")),
    ("such as 70,76, not 'x'", (*DIGITS, "--keep-epochs", "x")),
    ("such as 70,76, not '1.5'", (*DIGITS, "--keep-epochs", "1.5")),
]


@pytest.mark.parametrize(("words", "arguments"), COMMANDS, ids=[words for words, _ in COMMANDS])
def test_what_is_typed_wrong(program: Program, words: str, arguments: tuple[str, ...]) -> None:
    program.refuses(words, *arguments)


ARRAYS: list[tuple[str, dict[str, Any]]] = [
    ("subtract 1", {"y_train": np.arange(20) % 2 + 1}),
    ("at least two classes", {"y_train": np.zeros(20, dtype=np.int64)}),
    ("there are 2 classes", {"y_test": np.arange(10)}),
    ("integer class numbers", {"y_train": np.linspace(0, 1, 20)}),
    ("one label for each image", {"y_train": np.arange(19) % 2}),
    ("at least one image", {"x_test": np.zeros((0, 8, 8, 3), np.uint8), "y_test": np.zeros(0, np.int64)}),
    ("divide by 255", {"x_train": np.random.default_rng(0).uniform(0, 255, (20, 8, 8, 3))}),
    ("normalisation inside the model", {"x_train": np.random.default_rng(0).normal(size=(20, 8, 8, 3))}),
    ("repair or drop them", {"x_train": np.full((20, 8, 8, 3), np.nan)}),
    ("bring both to one", {"x_test": np.zeros((10, 9, 9, 3), np.uint8)}),
    ("convert the images to RGB", {"x_train": np.zeros((20, 8, 8, 5), np.uint8)}),
    ("holds pickled objects, which are refused", {"y_train": np.array([print] * 20, dtype=object)}),
]


@pytest.mark.parametrize(("words", "changes"), ARRAYS, ids=[words for words, _ in ARRAYS])
def test_arrays_that_are_wrong(program: Program, words: str, changes: dict[str, Any]) -> None:
    arrays(**changes)
    program.refuses(words, *TRAIN, "--data", "npz:data.npz")


def test_files_that_are_wrong(program: Program) -> None:
    program.refuses("does not exist", *TRAIN, "--data", "npz:data.npz")
    arrays()
    program.refuses("leave it out", *TRAIN, "--data", "npz:data.npz", "--image-size", "16")
    Path("data.npz").write_bytes(Path("data.npz").read_bytes()[:200])
    program.refuses("save it again", *TRAIN, "--data", "npz:data.npz")
    np.savez("half.npz", x_train=np.zeros((2, 8, 8)))
    program.refuses("lacks y_train, x_test, y_test", *TRAIN, "--data", "npz:half.npz")


def test_places_of_data_without_their_kind(program: Program) -> None:
    Path("mine").mkdir()
    Path("mine.npz").write_bytes(b"")
    program.refuses("no data set: write folder:mine", *TRAIN, "--data", "mine")
    program.refuses("no data set: write npz:mine.npz", *TRAIN, "--data", "mine.npz")


def test_folders_that_are_wrong(program: Program) -> None:
    data = ("--data", "folder:pictures")
    program.refuses("is not a folder", *TRAIN, *data)
    pictures("cats")
    program.refuses("add a folder for a second class", *TRAIN, *data)
    pictures("dogs")
    program.refuses("pass at least 1", *TRAIN, *data, "--image-size", "0")
    program.refuses("pass at most 1024", *TRAIN, *data, "--image-size", "1025")
    file = Path("pictures/dogs/2.png")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    program.refuses("repair or remove it", *TRAIN, *data)
    file.write_text("not an image", encoding="utf-8")
    program.refuses("pictures/dogs/2.png", *TRAIN, *data)
    file.write_bytes(whole)
    Path("pictures/birds").mkdir()
    program.refuses("add some or remove it", *TRAIN, *data)
    Path("pictures/birds").rmdir()
    Image.fromarray(np.zeros((8, 8), dtype=np.uint16)).save(file)
    program.refuses("save it with 8 bits", *TRAIN, *data)


def test_train_and_test_folders_that_differ(program: Program) -> None:
    pictures("train/cats", "train/dogs", "test/cats")
    program.refuses("dogs", *TRAIN, "--data", "folder:pictures")
    pictures("test/dogs", "test/birds")
    program.refuses("birds", *TRAIN, "--data", "folder:pictures")
    shutil.rmtree("pictures/test")
    program.refuses("test", *TRAIN, "--data", "folder:pictures")


def test_output_folders_that_cannot_be_used(program: Program) -> None:
    Path("file").write_text("mine", encoding="utf-8")
    program.refuses("choose another --out", *DIGITS, "--out", "file/run")
    program.refuses("choose another --out", *DIGITS, "--out", "/proc/run")
    program.refuses("choose another --out", *DIGITS, "--out", "file")
    Path("notes").mkdir()
    Path("notes/recipe.json").write_text("mine", encoding="utf-8")
    program.refuses("holds recipe.json but no run", *DIGITS, "--out", "notes")
    program.refuses("holds no run to resume", *DIGITS, "--out", "notes", "--resume")


def test_a_run_does_not_move_in_with_other_files(program: Program) -> None:
    quick = ("--epochs", "1", "--set", "attack.num_steps=1", "--batch-size", "4")
    pictures("cats", "dogs")
    Path("notes").mkdir()
    Path("notes/thesis.tex").write_text("mine", encoding="utf-8")
    for out in ("notes", "."):
        program.refuses("name a new folder", *DIGITS, *quick, "--out", out)
    for out in ("pictures", "pictures/run", "notes/../pictures/cats/a/b"):
        program.refuses("lies in the data folder", *TRAIN, *quick, "--data", "folder:pictures", "--out", out)
    Path("notes/thesis.tex").rename("notes/.record.json.99.part")
    assert program(*DIGITS, *quick, "--batch-size", "500", "--out", "notes").code == 0
    Path("empty").mkdir()
    assert program(*TRAIN, *quick, "--data", "folder:pictures", "--out", "empty").code == 0


def test_output_folders_that_hold_another_run(program: Program, trained: Path) -> None:
    shutil.copytree(trained, "run")
    program.refuses("go on with --resume, or choose another --out", *DIGITS)
    program.refuses("is another run", *DIGITS, "--resume", "--seed", "5")
    same = (*BY_FILE, "--resume", "--recipe", "run/recipe.json", "--seed", "0")
    assert program(*same).code == 0
    np.savez("w.npz", a=np.zeros(1))
    program.refuses("cannot be read as weights", *same, "--checkpoint", "w.npz")


def test_recipes_that_are_wrong(program: Program) -> None:
    Path("folder").mkdir()
    program.refuses("give the recipe.json of a run", *BY_FILE, "--recipe", "folder")
    Path("a.json").write_text("{", encoding="utf-8")
    program.refuses("is not a recipe in JSON", *BY_FILE, "--recipe", "a.json")
    Path("a.json").write_text("[1]", encoding="utf-8")
    program.refuses("must hold one JSON object", *BY_FILE, "--recipe", "a.json")
    Path("a.json").write_text(json.dumps({"methods": "at"}), encoding="utf-8")
    program.refuses("did you mean method", *BY_FILE, "--recipe", "a.json")
    program.refuses("--recipe and --method both choose", *DIGITS, "--recipe", "a.json", "--method", "at")
    program.refuses("--recipe and --preset both choose", *BY_FILE, "--recipe", "a.json", "--preset", "official")


RUN_COMMANDS = ("evaluate", "merge", "audit", "report", "inspect", "watch")


@pytest.mark.parametrize("command", RUN_COMMANDS)
def test_commands_on_what_is_no_run(program: Program, command: str) -> None:
    program.refuses("none", command, "none")
    Path("empty").mkdir()
    program.refuses("empty", command, "empty")
    Path("before.json").write_text("{}", encoding="utf-8")
    words = {"merge": "before.json holds no shards", "report": "before.json holds no results"}
    program.refuses(words.get(command, "before.json is not a run's folder"), command, "before.json")


@pytest.mark.parametrize("command", ["evaluate", "audit"])
def test_runs_that_are_damaged(program: Program, trained: Path, command: str) -> None:
    shutil.copytree(trained, "run")
    for state in Path("run/checkpoints").glob("*.safetensors"):
        state.write_bytes(b"broken")
    program.refuses("holds no whole checkpoint", command, "run")
    Path("run/record.json").write_text("{", encoding="utf-8")
    program.refuses("is damaged", command, "run")


EVALUATIONS = [
    ("write 8/255", ("--eps", "8")),
    ("Invalid value for '--seed'", ("--seed", "-1")),
    ("did you mean pgd-20", ("--attacks", "pgd20")),
    ("from 1 to 360", ("--num-examples", "0")),
    ("--aa-examples must be 1 or more, not 0", ("--attacks", "aa", "--aa-examples", "0")),
    ("--aa-examples is for aa, aa-plus, aa-rand: leave it out", ("--attacks", "nat,apgd-ce", "--aa-examples", "5")),
    ("AutoAttack on the first 1,000", ("--attacks", "aa", "--protocol", "official-1000", "--aa-examples", "5")),
    ("1 images cannot be split into 2 shards", ("--attacks", "aa", "--aa-examples", "1", "--shard", "2/2")),
    ("did you mean standard", ("--protocol", "standart")),
    ("--norm", ("--norm", "L1")),
    ("is a radius in Linf: give --eps as well as --norm L2", ("--norm", "L2")),
    ("'' is not a number", ("--eps", "")),
    ("such as 2/5", ("--shard", "5/2")),
    ("choose another --out", ("--out", "/proc/results.json")),
    ("is a folder, not a file", ("--out", "run")),
    ("choose another --save-adversarial", ("--save-adversarial", "/proc/x.npz")),
    ("not both", ("--model", "small-cnn")),
    ("no attack is named", ("--attacks", "")),
    ("run was trained on 1x8x8: bring them to that", ("--data", "npz:data.npz")),
]


@pytest.mark.parametrize(("words", "arguments"), EVALUATIONS, ids=[words for words, _ in EVALUATIONS])
def test_wrong_evaluations(program: Program, trained: Path, words: str, arguments: tuple[str, ...]) -> None:
    shutil.copytree(trained, "run")
    arrays(y_train=np.arange(20) % 10, y_test=np.arange(10))
    program.refuses(words, "evaluate", "run", *arguments)


def test_wrong_exports_and_imports(program: Program, trained: Path) -> None:
    shutil.copytree(trained, "run")
    Path("m.onnx").write_text("mine", encoding="utf-8")
    program.refuses("did you mean onnx", "export", "run", "--format", "onx", "-o", "x.onnx")
    program.refuses("is there already", "export", "run", "--format", "onnx", "-o", "m.onnx")
    program.refuses("give -o m.pt2", "export", "run", "--format", "torch-export", "-o", "m.onnx")
    program.refuses("there is no run", "export", "none", "--format", "onnx", "-o", "x.onnx")
    program.refuses("Missing option", "export", "run")
    load = ("--layout", "trades", "--model", "resnet18", "-o", "w.safetensors")
    program.refuses("no checkpoint file", "import", "none.pt", *load)
    program.refuses("cannot be read as weights", "import", "m.onnx", *load)
    state = next(Path("run/checkpoints").glob("*.safetensors"))
    program.refuses("no conv1", "import", str(state), *load)


@pytest.mark.parametrize(
    "command",
    [
        ("report", "run", "--images", "0", "-o"),
        ("evaluate", "run", "--attacks", "nat", "--num-examples", "4", "--out"),
        ("evaluate", "run", "--attacks", "nat", "--num-examples", "4", "--save-adversarial"),
        ("audit", "run", "--num-examples", "4", "--out"),
        ("inspect", "run", "--json"),
    ],
    ids=lambda command: f"{command[0]} {command[-1]}",
)
def test_files_of_another_kind_are_left_alone(program: Program, trained: Path, command: tuple[str, ...]) -> None:
    shutil.copytree(trained, "run")
    shutil.copytree(trained, "other")
    Path("mine.txt").write_text("mine", encoding="utf-8")
    Path("mine.json").write_text('{"a": 1}', encoding="utf-8")
    Path("mine.html").write_text("<!doctype html><title>mine</title>", encoding="utf-8")
    arrays()
    option = command[-1]
    for name in ("mine.txt", "mine.json", "mine.html", "data.npz"):
        program.refuses(f"choose another {option}", *command, name)
    owned = ("recipe.json", "record.json", "metrics.jsonl", "evaluation.json", "audit.json", "dynamics.npz")
    for name in (*owned, "checkpoints/state-0002.json", "checkpoints/new.json"):
        program.refuses("belongs to the run in", *command, f"other/{name}")


@pytest.mark.slow
def test_files_of_the_same_kind_are_replaced(program: Program, trained: Path) -> None:
    shutil.copytree(trained, "run")
    few = ("run", "--num-examples", "4", "--device", "cpu")
    for command in (
        ("report", "run", "--images", "0", "-o", "page.html"),
        ("evaluate", *few, "--attacks", "nat", "--out", "a.json", "--save-adversarial", "x.npz"),
        ("evaluate", *few, "--attacks", "nat", "--out", "run/evaluation.json"),
        ("audit", *few, "--out", "b.json"),
        ("audit", *few, "--out", "run/audit.json"),
    ):
        for _ in range(2):
            result = program(*command)
            assert result.code == 0, result.err
    program.refuses("choose another --out", "audit", *few, "--out", "a.json")
    arrays()
    program.refuses("data.npz is there already", "evaluate", *few, "--attacks", "nat", "--out", "data.json")
    both = ("--out", "c.json", "--save-adversarial", "c.npz")
    program.refuses("puts its arrays", "evaluate", *few, "--attacks", "nat", *both)
