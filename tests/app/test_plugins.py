"""Components in a file of the user's own, by `probmargin --plugin FILE COMMAND`."""

import hashlib
import json
import pickle
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from program import Program, forget_components, program as program
from strategies import images, tiny_net

from probmargin import api as pm
from probmargin.core import shell
from probmargin.core.errors import UsageError
from probmargin.data.digits import load_digits
from probmargin.methods.plugins import check_plugins, load_plugin
from probmargin.methods.resolve import resolve
from probmargin.runs.run import open_run
from probmargin.training.drop_in import loss_recipe
from probmargin.training.own_parts import check_own_parts
from probmargin.training.plugins import plugin_facts

DATACLASS = "@dataclass(frozen=True, kw_only=True)\n"
MINE = f"""
from dataclasses import dataclass
from typing import ClassVar
from probmargin.margins.margin import MARGINS, Margin

@MARGINS.register("mine")
{DATACLASS}class Mine(Margin):
    '''Probability of the label, less a threshold.'''
    needs: ClassVar = frozenset(["logits_adv"])
    threshold: float = 0.5

    def __call__(self, view):
        return view.adv().detach().softmax(1).gather(1, view.labels[:, None])[:, 0] - self.threshold
"""
OWN = f"""
from dataclasses import dataclass
from probmargin.attacks.attack import ATTACKS, Attack
from probmargin.attacks.balls import Norm
from probmargin.core.batch import AttackResult

@ATTACKS.register("shift")
{DATACLASS}class Shift(Attack):
    '''All pixels brighter.'''
    norm: Norm = "Linf"
    eps: float = 8 / 255
    share: float = 1.0

    def run(self, model, x, labels, *, noise, trace):
        return AttackResult(x_adv=(x + self.share * self.eps).clamp(0, 1))
"""
OBJECTIVE = f"""
from dataclasses import dataclass
from typing import ClassVar
from torch.nn.functional import cross_entropy
from probmargin.core.batch import LossTerms
from probmargin.objectives.objective import OBJECTIVES, Objective

@OBJECTIVES.register("flat")
{DATACLASS}class Flat(Objective):
    passes: ClassVar = ("adv",)
    needs: ClassVar = frozenset(["logits_adv"])

    def __call__(self, view):
        loss = cross_entropy(view.adv(), view.labels, reduction="none")
        return LossTerms(loss, 0 * loss)
"""
WEIGHT = f"""
from dataclasses import dataclass
from probmargin.weights.weight import WEIGHTS, Weight

@WEIGHTS.register("line")
{DATACLASS}class Line(Weight):
    def __call__(self, margin):
        return 1 - 0.5 * margin
"""
MOVING = (
    WEIGHT.replace("import dataclass", "import dataclass, replace")
    .replace("    def __call__", "    slope: float = 0.5\n\n    def __call__")
    .replace("0.5 * margin", "self.slope * margin")
    + """
    def resolve(self, *, epoch, epochs, num_steps):
        return replace(self, slope=self.slope * (epoch + 1))
"""
)
"""A weight whose slope grows: 0.5 in the first epoch, 1 in the second."""
PLAIN = (
    *("train", "--data", "digits", "--model", "small-cnn", "--method", "mail-at", "--set", "attack.num_steps=1"),
    *("--device", "cpu", "--out", "run"),
)
TRAIN = (*PLAIN, "--set", "margin=mine", "--set", "margin.threshold=0.4")


def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text, encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()


def record() -> dict[str, Any]:
    return dict(json.loads(Path("run/record.json").read_text(encoding="utf-8")))


def cut(epoch: int) -> None:
    """Leave the run as it was after an epoch."""
    for path in Path("run/checkpoints").glob("state-*"):
        if int(path.stem.split("-")[1]) > epoch:
            path.unlink()


def test_a_run_with_an_own_margin_is_trained_gone_on_with_and_judged(program: Program) -> None:
    digits = write("lab/mine.py", MINE)
    plugin = ("--plugin", "lab/mine.py")
    trained = program(*plugin, *TRAIN, "--epochs", "2", "--keep-epochs", "1")
    assert trained.code == 0, trained.err
    assert "judge it with: probmargin --plugin lab/mine.py evaluate run" in trained.out
    assert record()["plugins"] == [{"file": "mine.py", "sha256": digits, "registers": {"margin": ["mine"]}}]
    assert record()["recipe"]["margin"] == {"name": "mine", "threshold": 0.4}
    assert str(Path.cwd()) not in json.dumps(record()["plugins"])

    cut(1)
    resumed = program(*plugin, *TRAIN, "--epochs", "2", "--keep-epochs", "1", "--resume")
    assert resumed.code == 0, resumed.err
    assert "not as" not in resumed.out
    assert "plugins" not in record()["resumes"][0]

    judged = program(*plugin, "evaluate", "run", "--attacks", "nat", "--device", "cpu")
    assert judged.code == 0, judged.err
    assert "mine" in program(*plugin, "list", "margins").out
    assert program(*plugin, "report", "run", "--out", "page.html").code == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert f"mine.py {digits[:16]}" in page
    assert "probmargin --plugin mine.py audit run" in page


def test_the_record_names_what_an_own_file_imports_and_what_a_phase_brings(program: Program) -> None:
    helper = write("lab/threshold.py", "HALF = 0.5\n")
    write("lab/__init__.py", "")
    mine = write("lab/mine.py", "from lab.threshold import HALF\n" + MINE.replace("= 0.5", "= HALF"))
    phases = 'phases=[{"from_epoch": 0, "set": {"margin": "mine"}}]'
    trained = program("--plugin", "lab.mine", *PLAIN, "--set", phases, "--epochs", "1")
    assert trained.code == 0, trained.err
    found = {plugin["file"]: (plugin["sha256"], plugin["registers"]) for plugin in record()["plugins"]}
    assert found["lab/mine.py"] == (mine, {"margin": ["mine"]})
    assert found["lab/threshold.py"] == (helper, {})
    assert set(found) == {"lab/mine.py", "lab/threshold.py", "lab/__init__.py"}


def test_a_module_of_a_package_is_asked_for_by_its_whole_name(program: Program) -> None:
    write("lab/threshold.py", "HALF = 0.5\n")
    write("lab/__init__.py", "")
    write("lab/mine.py", "from .threshold import HALF\n" + MINE.replace("= 0.5", "= HALF"))
    load_plugin("lab.mine")
    recipe = resolve("mail-at", settings={"margin": "mine"})
    facts = plugin_facts(recipe) | {"recipe": recipe.plain()}
    assert shell.program(facts) == ["probmargin", "--plugin", "lab.mine"]
    forget_components(Path.cwd())
    with pytest.raises(UsageError, match=r"probmargin --plugin lab\.mine COMMAND"):
        check_plugins(facts, Path("run"))


def test_a_run_without_own_components_has_no_plugins(program: Program) -> None:
    write("mine.py", MINE)
    assert program("--plugin", "mine.py", *PLAIN, "--epochs", "1").code == 0
    assert "plugins" not in record()


def test_going_on_with_a_changed_file_is_said_and_listed(program: Program) -> None:
    before = write("mine.py", MINE)
    run = ("--plugin", "mine.py", *TRAIN, "--epochs", "2", "--keep-epochs", "1")
    assert program(*run).code == 0
    cut(1)
    after = write("mine.py", MINE + "# another\n")
    resumed = program(*run, "--resume")
    assert resumed.code == 0, resumed.err
    assert "not as run began with: mine.py;" in resumed.out
    assert record()["plugins"][0]["sha256"] == before
    assert record()["resumes"][0]["plugins"][0]["sha256"] == after

    assert "not as run began with: mine.py;" in program(*run, "--out", "forked", "--fork", "run@1").out
    forked = json.loads(Path("forked/record.json").read_text(encoding="utf-8"))
    assert [plugin["sha256"] for plugin in forked["plugins"]] == [after]
    assert [plugin["sha256"] for plugin in forked["forked_from"]["plugins"]] == [before], "its first epoch is by this"
    del forked["forked_from"]["plugins"]
    for content in (None, forked):
        if content is not None:  # as earlier versions wrote it
            Path("forked/record.json").write_text(json.dumps(content), encoding="utf-8")
        again = program(*run, "--out", "forked", "--fork", "run@1", "--resume")
        assert again.code == 0, again.err


def test_another_file_with_the_same_component_is_said(program: Program) -> None:
    write("mine.py", MINE)
    write("other.py", MINE.replace("- self.threshold", "* self.threshold"))
    run = (*TRAIN, "--epochs", "2", "--keep-epochs", "1")
    assert program("--plugin", "mine.py", *run).code == 0
    cut(1)
    forget_components(Path.cwd())
    for where in (("--out", "forked", "--fork", "run@1"), ("--resume",)):
        assert "not as run began with: other.py;" in program("--plugin", "other.py", *run, *where).out


def test_a_run_that_an_own_attack_only_watched_is_read_without_it(program: Program) -> None:
    write("lab.py", OWN)
    watched = ("--monitor", "own-shift:9", "--monitor-every", "1")
    assert program("--plugin", "lab.py", *PLAIN, "--epochs", "1", *watched).code == 0
    forget_components(Path.cwd())
    judged = program("evaluate", "run", "--attacks", "nat", "--device", "cpu")
    assert judged.code == 0, judged.err


def test_a_command_without_the_file_names_it(program: Program) -> None:
    write("mine.py", MINE)
    assert program("--plugin", "mine.py", *TRAIN, "--epochs", "1", "--dynamics").code == 0
    forget_components(Path.cwd())
    words = "run was trained with margin 'mine' of mine.py, which is not loaded; give its path before the command"
    for command in (
        ("evaluate", "run", "--attacks", "nat"),
        ("inspect", "run"),
        ("audit", "run"),
        ("export", "run", "--format", "safetensors", "--out", "net.safetensors"),
        (*TRAIN, "--epochs", "1", "--resume"),
        ("train", "--data", "digits", "--recipe", "run/recipe.json", "--model", "small-cnn", "--out", "other"),
        (*TRAIN, "--out", "other", "--epochs", "1", "--fork", "run@1"),
    ):
        program.refuses(words, *command)
    program.refuses("probmargin --plugin mine.py COMMAND", "inspect", "run")


def test_a_command_without_several_files_names_them_together(program: Program) -> None:
    write("mine.py", MINE)
    write("line.py", WEIGHT)
    plugins = ("--plugin", "mine.py", "--plugin", "line.py")
    assert program(*plugins, *TRAIN, "--set", "weight=line", "--epochs", "1").code == 0
    forget_components(Path.cwd())
    words = "weight 'line' of line.py and margin 'mine' of mine.py, which are not loaded; give their paths before"
    program.refuses(words, "evaluate", "run", "--attacks", "nat")
    program.refuses("probmargin --plugin line.py --plugin mine.py COMMAND", "evaluate", "run", "--attacks", "nat")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("absent.py", None, "there is no plugin file absent.py; check its path"),
        ("lab/absent", None, "there is no plugin file lab/absent; check its path"),
        ("", None, "--plugin is empty: give the path of a .py file"),
        ("absent", None, "there is no plugin absent; give the path of a .py file"),
        ("empty.py", "", "plugin empty.py registers nothing; put a line such as @MARGINS.register('NAME')"),
        ("broken.py", "1 / 0", "plugin broken.py cannot be imported: ZeroDivisionError: division by zero"),
        ("ends.py", "raise SystemExit(3)", "plugin ends.py cannot be imported: SystemExit: 3"),
        ("wrong.py", "def", "plugin wrong.py cannot be imported: SyntaxError: invalid syntax"),
        ("needy.py", "import no_such_module", "No module named 'no_such_module'"),
        (
            "taken.py",
            MINE.replace('"mine"', '"pm_adv"'),
            "margin 'pm_adv' is already taken by PMAdv; choose another name",
        ),
        (
            "bare.py",
            MINE.replace(DATACLASS, ""),
            "bare.py: margin 'mine' is no dataclass; write @dataclass(frozen=True",
        ),
        (
            "thawed.py",
            MINE.replace("frozen=True, ", ""),
            "thawed.py: margin 'mine' is no frozen dataclass, and may not keep a state of its own; write @data",
        ),
        (
            "heir.py",
            MINE
            + MINE[MINE.index("@MARGINS") :]
            .replace('"mine"', '"heir"')
            .replace(DATACLASS, "")
            .replace("Mine(Margin)", "Heir(Mine)"),
            "heir.py: margin 'heir' is no dataclass; write @dataclass(frozen",
        ),
        (
            "alone.py",
            MINE.replace("(Margin)", ""),
            "alone.py: margin 'mine' is no Margin; write class Mine(Margin), with Margin from probmargin.margins",
        ),
        (
            "mute.py",
            MINE.replace("needs: ", "wants: "),
            "mute.py: margin 'mine' does not say what it needs; write needs = frozenset(",
        ),
        (
            "idle.py",
            OWN.replace("def run", "def walk"),
            "idle.py: attack 'shift' has no run; write it in class Shift, as probmargin.attacks.attack asks",
        ),
        (
            "blind.py",
            OBJECTIVE.replace("passes: ", "images: "),
            "blind.py: objective 'flat' does not say which images it passes; write passes = ('adv',)",
        ),
        ("json.py", MINE, "plugin json.py: another module is named json; give the file another name"),
        ("my-margin.py", MINE, "plugin my-margin.py cannot be imported under this name; give it one such as"),
    ],
)
def test_a_file_that_cannot_serve_gets_one_line(program: Program, name: str, text: str | None, words: str) -> None:
    if text is not None:
        write(name, text)
    program.refuses(words, "--plugin", name, "list")


def test_the_option_stands_before_the_command_and_not_before_studies(program: Program) -> None:
    write("mine.py", MINE)
    program.refuses("write probmargin --plugin FILE evaluate ...", "evaluate", "run", "--plugin", "mine.py")
    for command in ("demo", "reproduce"):
        program.refuses(f"{command} trains recipes of the package alone", "--plugin", "mine.py", command)
    assert "--plugin" in program("--help").out


def test_one_file_is_one_module_by_path_and_by_name_and_its_recipes_can_be_sent(program: Program) -> None:
    write("mine.py", MINE)
    assert program("--plugin", "mine.py", "--plugin", "./mine.py", "--plugin", "mine", "list").code == 0
    recipe = resolve("mail-at", settings={"margin": "mine"})
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    assert str(Path.cwd()) == sys.path[-1], "where a process that is started looks for the module"


@pytest.mark.parametrize(
    ("text", "setting", "words"),
    [
        (MINE.replace("[:, 0]", ""), "margin=mine", "margin 'mine' returns shape (8, 1) for 8 examples: return one"),
        (MINE.replace("return", "_ ="), "margin=mine", "margin 'mine' returns NoneType for 8 examples: return one"),
        (
            MINE.replace("adv()", "nat()"),
            "margin=mine",
            "margin 'mine' fails: ValueError: this component reads logits_nat",
        ),
        (MINE.replace(".detach()", ".div(0)"), "margin=mine", "margin 'mine' gives a value that is not a number"),
        (WEIGHT.replace("1 -", "-1 -"), "weight=line", ": return 0 or more, as values.clamp(min=0) does"),
        (WEIGHT.replace("margin\n", "margin.mean()\n"), "weight=line", "weight 'line' returns shape () for 8 examples"),
        (OBJECTIVE.replace('"none"', '"mean"'), "objective=flat", "objective 'flat' returns shape () for 8 examples"),
        (OBJECTIVE.replace("LossTerms(loss, ", "(loss, "), "objective=flat", "return LossTerms(weighted, plain)"),
        (
            OBJECTIVE.replace("view.adv(),", "view.adv().detach(),"),
            "objective=flat",
            "a loss without a gradient: ",
        ),
        (
            OBJECTIVE.replace("LossTerms(loss, 0 * loss)", "LossTerms(0 * loss.detach(), loss)"),
            "objective=flat",
            "objective 'flat' gives a weighted part without a gradient, so that weights do nothing",
        ),
        (
            MOVING.replace("epochs, num_steps", "epochs"),
            "weight=line",
            "weight 'line' fails in resolve(epoch=0, ...): TypeError: Line.resolve() got an unexpected",
        ),
        (
            MOVING.replace("return replace", "replace"),
            "weight=line",
            "weight 'line': resolve returns NoneType: return a weight, such as replace(self, ...)",
        ),
        (
            MOVING.replace("self.slope * margin", "margin / (self.slope - 0.5)"),
            "weight=line",
            "weight 'line' gives a value that is not a number",
        ),
        (
            OBJECTIVE.replace("view.adv(),", "view.adv() / 0,"),
            "objective=flat",
            "objective 'flat' gives a value that is",
        ),
        (OWN.replace("1.0", "2.0"), "attack=shift", "attack 'shift' leaves its ball, Linf 0.15, or [0, 1] on"),
        (
            OWN.replace("+ self", "+ oops"),
            "attack=shift",
            "attack 'shift' fails: NameError: name 'oops' is not defined",
        ),
        (
            OWN.replace("clamp(0, 1)", "mean(0)"),
            "attack=shift",
            "attack Shift returns (1, 8, 8) for images (8, 1, 8, 8)",
        ),
        (OWN.replace("AttackResult(x_adv=", "("), "attack=shift", "attack Shift returns Tensor: return AttackResult"),
        (
            OWN.replace("return", "x += self.eps / 2\n        return"),
            "attack=shift",
            "attack Shift changes clean images or labels in place: write x = x + step for x += step",
        ),
        (
            OWN.replace("return", "x.data.add_(self.eps)\n        return"),
            "attack=shift",
            "attack Shift changes clean images or labels in place",
        ),
        (
            OWN.replace("return", "labels.zero_()\n        return"),
            "attack=shift",
            "attack Shift changes clean images or labels in place",
        ),
        (
            MINE.replace("return", "view.adv().data.zero_()\n        return"),
            "margin=mine",
            "margin 'mine' changes in place what it is given",
        ),
        (
            MINE.replace("return", "view.labels.zero_()\n        return"),
            "margin=mine",
            "margin 'mine' changes in place what it is given",
        ),
        (
            MINE.replace("return", "z = view.adv().detach()\n        z /= 5\n        return"),
            "margin=mine",
            "margin 'mine' changes in place what it is given, which the loss reads too: write z = z / 5 for z /= 5",
        ),
        (
            WEIGHT.replace("return", "margin.neg_()\n        return"),
            "weight=line",
            "weight 'line' changes in place what it is given",
        ),
    ],
)
def test_a_component_that_breaks_its_promise_ends_the_run_before_it_begins(
    program: Program, text: str, setting: str, words: str
) -> None:
    write("lab.py", text)
    asked = ("--plugin", "lab.py", *PLAIN[:-6], *PLAIN[-4:], "--epochs", "2", "--set", "burn_in_epochs=0")
    for dry in ((), ("--dry-run",)):
        program.refuses(words, *asked, "--set", setting, *dry)
    assert not Path("run/record.json").exists()


@pytest.mark.parametrize(
    "text",
    [
        OBJECTIVE.replace("view.adv(),", "view.adv().sub_(1.0),"),
        OBJECTIVE.replace("view.adv()", "view.nat()")
        .replace('("adv",)', '("nat",)')
        .replace("logits_adv", "logits_nat"),
    ],
)
def test_an_objective_that_trains_passes_the_trial(program: Program, text: str) -> None:
    """One that changes logits in place, and one that looks at clean images alone."""
    write("lab.py", text)
    asked = ("--plugin", "lab.py", *PLAIN, "--epochs", "1", "--set", "margin=none", "--set", "weight=uniform")
    found = program(*asked, "--set", "objective=flat")
    assert found.code == 0, found.err


SCALED = WEIGHT.replace("    def __call__", "    scale: float = 1.0\n\n    def __call__").replace(
    "return ", "return self.scale * "
)


def test_a_loss_of_ones_own_loop_refuses_parts_that_write_or_give_what_is_no_weight(program: Program) -> None:
    x, labels = images(0, 8)
    before, writing = x.clone(), OWN.replace("return", "x += self.eps / 2\n        return")
    write("shifting.py", writing)
    load_plugin("shifting.py")
    with pytest.raises(UsageError, match="attack Shift changes clean images or labels in place"):
        pm.attack("shift", eps=0.1)(tiny_net(), x, labels)
    write("asking.py", OWN.replace("shift", "asking").replace("return", "model(x)\n        return"))
    load_plugin("asking.py")
    found = pm.attack("asking", eps=0.1)(lambda x: x.sub_(0.5).flatten(1), before.clone(), labels)
    assert found.x_adv.shape == x.shape, "it is the model that writes"
    write("line.py", SCALED)
    write("margin.py", MINE.replace("return", "view.adv().detach().zero_()\n        return"))
    for name in ("line.py", "margin.py"):
        load_plugin(name)
    for settings, words in (
        ({"margin": "mine"}, "margin 'mine' changes in place"),
        ({"weight": {"name": "line", "scale": -1.0}}, "weight 'line' gives -"),
        ({"weight": {"name": "line", "scale": 1e300}}, "weight 'line' gives a value that is not a number"),
        ({"attack": "shift"}, "attack Shift changes clean images or labels in place"),
    ):
        method = pm.resolve("mail-at", settings=settings)
        with pytest.raises(UsageError, match=words):
            pm.mail_loss(tiny_net(), before.clone(), labels, method, seed=1)
    pm.mail_loss(tiny_net(), before, labels, pm.resolve("mail-at", settings={"weight": "line"}), seed=1).backward()


def test_a_phase_that_ends_attacks_names_no_component() -> None:
    phases = [{"from_epoch": 1, "set": {"objective": "standard", "attack": "none", "second_attack": None}}]
    recipe = pm.resolve("at", epochs=2, settings={"phases": phases}).plain()
    check_plugins({"recipe": recipe}, Path("run"))
    with pytest.raises(UsageError, match="run was trained with attack 'nobodys', which is not known here"):
        check_plugins({"recipe": {**recipe, "attack": {"name": "nobodys"}}}, Path("run"))


def test_a_component_of_no_file_is_told_of_and_asked_for(program: Program) -> None:
    exec(compile(WEIGHT.replace('"line"', '"typed"'), "<stdin>", "exec"), {"__name__": "typed_by_hand"})
    said = "no file holds weight 'typed': the record cannot name its code, and no other process can judge the run"
    start = (*PLAIN[:-6], *PLAIN[-4:], "--epochs", "1", "--set", "weight=typed", "--set", "burn_in_epochs=0")
    found = program(*start)
    assert found.code == 0, found.err
    assert said in found.out
    assert program("evaluate", "run", "--num-examples", "8", "--attacks", "nat").code == 0
    forget_components(Path.cwd())
    words = (
        "run was trained with weight 'typed', which is not known here and of no file, as one of a notebook: write it"
    )
    program.refuses(words, "evaluate", "run", "--num-examples", "8", "--attacks", "nat")


NORMALIZER = f"""
from dataclasses import dataclass
from probmargin.weights.weight import NORMALIZERS, Normalizer

@NORMALIZERS.register("centred")
{DATACLASS}class Centred(Normalizer):
    def __call__(self, weight, *, reduce):
        return weight - weight.mean()
"""
START = ("--plugin", "lab.py", *PLAIN[:5], *PLAIN[-4:], "--epochs", "1")


@pytest.mark.parametrize(
    ("text", "asked", "words"),
    [
        (NORMALIZER, ("mail-at", "normalizer=centred"), "normalizer 'centred' gives -"),
        (
            OWN.replace("share: float", "records_steps = True\n    num_steps: int = 4\n    share: float"),
            ("gairat", "attack=shift"),
            "attack 'shift' returns no trace, which the margin reads",
        ),
        (OWN.replace("1.0", "2.0"), ("gair-trades", "second_attack=shift"), "attack 'shift' leaves its ball"),
        (
            OBJECTIVE.replace("0 * loss", "0 * loss[:, None]"),
            ("mail-at", "objective=flat"),
            "objective 'flat' returns shape (8, 1) for 8 examples",
        ),
        (OWN.replace("norm: Norm", "norm: ClassVar"), ("at", "attack=shift"), "attack 'shift' has no field norm"),
    ],
)
def test_normalizers_traces_second_attacks_and_plain_terms_keep_their_promise_too(
    program: Program, text: str, asked: tuple[str, str], words: str
) -> None:
    write("lab.py", text.replace("import dataclass\n", "import dataclass\nfrom typing import ClassVar\n", 1))
    preset = ("--preset", "official") if asked[0] == "gair-trades" else ()
    settings = ("--set", "burn_in_epochs=0", "--set", asked[1])
    program.refuses(words, *START, "--method", asked[0], *preset, *settings)


def test_a_negative_weight_is_named_with_its_own_margin(program: Program) -> None:
    write("lab.py", WEIGHT.replace("1 -", "-1 -"))
    err = program(*START, "--method", "mail-at", "--set", "burn_in_epochs=0", "--set", "weight=line").err
    found = re.search(r"gives (\S+) to an example of margin (\S+):", err)
    assert found is not None, err
    weight, margin = map(float, found.groups())
    assert weight == pytest.approx(-1 - 0.5 * margin, abs=2e-3)


def test_a_component_that_a_phase_takes_away_is_tried_too(program: Program) -> None:
    write("lab.py", MINE.replace("[:, 0]", ""))
    phases = 'phases=[{"from_epoch": 1, "set": {"margin": "pm_adv"}}]'
    asked = (*TRAIN, "--epochs", "2", "--set", "burn_in_epochs=0", "--set", phases)
    program.refuses("margin 'mine' returns shape (8, 1)", "--plugin", "lab.py", *asked)


def ranked(text: str) -> str:
    """The weight by an example's place in its batch."""
    return text.replace("1 - 0.5 * margin", "1 - margin.argsort().argsort().to(margin.dtype) / len(margin)")


@pytest.mark.parametrize(
    ("method", "kind", "text", "is_refused"),
    [
        ("mail-at", "weight", WEIGHT, False),
        ("mail-at", "weight", WEIGHT.replace("1 - 0.5 * margin", "margin.clone().uniform_()"), False),
        ("mail-at", "weight", ranked(WEIGHT), True),
        ("gairat", "weight", ranked(WEIGHT), True),
        ("mail-at", "margin", MINE, False),
        ("mail-at", "margin", MINE.replace("- self.threshold", "- view.adv().detach().softmax(1).amax()"), True),
    ],
)
def test_a_value_by_the_whole_batch_is_refused_where_processes_share_it(
    program: Program, method: str, kind: str, text: str, is_refused: bool
) -> None:
    write("own.py", text)
    load_plugin("own.py")
    name, data = {"weight": "line", "margin": "mine"}[kind], load_digits()
    recipe = resolve(method, settings={kind: name, "attack.num_steps": 2, "burn_in_epochs": 0})
    check_own_parts(recipe, tiny_net(classes=10), data.train)
    words = f"{kind} '{name}' gives an example a value by the others in its batch, of which each of 2 processes"
    with pytest.raises(UsageError, match=words) if is_refused else nullcontext():
        check_own_parts(recipe, tiny_net(classes=10), data.train, 2)


@pytest.mark.slow
def test_two_processes_refuse_a_weight_by_the_whole_batch(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(ranked(WEIGHT), encoding="utf-8")
    head = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--"]
    command = [*head, "probmargin", "--plugin", "own.py", *PLAIN, "--set", "weight=line", "--epochs", "1"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=120)
    assert "weight 'line' gives an example a value by the others in its batch" in found.stderr
    assert not (tmp_path / "run").exists()


def test_an_attack_with_slots_serves(program: Program) -> None:
    write("lab.py", OWN.replace("kw_only=True", "kw_only=True, slots=True"))
    trained = program(*START, "--method", "at", "--set", "attack=shift")
    assert trained.code == 0, trained.err


def test_components_of_later_phases_are_tried_before_the_run_begins(program: Program) -> None:
    write("lab.py", MINE.replace("[:, 0]", ""))
    phases = 'phases=[{"from_epoch": 1, "set": {"margin": "mine"}}]'
    program.refuses(
        "margin 'mine' returns shape (8, 1)", "--plugin", "lab.py", *PLAIN, "--epochs", "2", "--set", phases
    )


def test_a_weight_that_is_no_number_while_training_is_named_and_not_the_rate(program: Program) -> None:
    write("lab.py", WEIGHT.replace("1 - 0.5 * margin", "(0.2 - margin).sqrt()"))
    asked = ("--plugin", "lab.py", *PLAIN, "--epochs", "5", "--set", "burn_in_epochs=0", "--set", "weight=line")
    found = program(*asked)
    assert (found.code, "the weight line gave values that are not numbers in epoch" in found.err) == (1, True)


def test_fields_of_another_formula_are_not_those_of_ones_own(program: Program) -> None:
    """MAIL-AT's sigmoid has a slope of 10, and so would a weight of another kind; an attack keeps its sizes."""
    write("lab.py", MOVING + OWN)
    load_plugin("lab.py")
    weight: Any = resolve("mail-at", settings={"weight": "line"}).weight
    assert weight.slope == 0.5
    assert resolve("mail-at", settings={"weight": "hinge"}).weight.slope == 10.0  # type: ignore[attr-defined]
    for order in (("weight", "weight.slope"), ("weight.slope", "weight")):
        asked = {"weight": "line", "weight.slope": 3}
        weight = resolve("mail-at", settings={key: asked[key] for key in order}).weight
        assert weight.slope == 3.0, "in whatever order it was asked for"
    again: Any = resolve(resolve("mail-at", settings=asked), settings={"weight": "line"}).weight
    assert again.slope == 3.0, "the same component stays as it is"
    attack: Any = resolve("mail-at", data="digits", settings={"attack": "shift"}).attack
    assert attack.eps == 0.15


def test_a_field_without_a_default_may_be_given_beside_its_component(program: Program) -> None:
    """As the package's own components have them."""
    write("lab.py", MOVING.replace("slope: float = 0.5", "slope: float\n    share: float"))
    load_plugin("lab.py")
    asked = {"weight": "line", "weight.slope": "3", "weight.share": "0.5"}
    weight: Any = resolve("mail-at", settings=asked).weight
    assert (weight.slope, weight.share) == (3.0, 0.5)
    assert resolve("at", settings=asked).weight == weight


def test_the_loss_of_ones_own_loop_follows_a_schedule(program: Program) -> None:
    write("lab.py", MOVING)
    load_plugin("lab.py")
    recipe = resolve("mail-at", epochs=4, settings={"weight": "line", "burn_in_epochs": 1})
    x, labels = images(1, 6, size=8)

    def loss(**when: Any) -> float:
        return float(pm.mail_loss(tiny_net(1), x, labels, recipe, seed=0, **when).detach())

    slopes = [getattr(loss_recipe(recipe, True, epoch).weight, "slope", None) for epoch in range(4)]
    assert slopes == [None, 1.0, 1.5, 2.0]
    assert loss(epoch=3) == loss() != loss(epoch=1)
    assert loss(epoch=0) == loss(weighted=False) == loss(epoch=2, weighted=False)
    with pytest.raises(UsageError, match=r"epoch 4 is none of the recipe's, 0 to 3: give one of them"):
        loss(epoch=4)


def test_a_weight_that_falls_below_zero_while_training_stops_the_run(program: Program) -> None:
    """An untrained network's margins are near zero, so a trial on it sees nothing."""
    write("lab.py", WEIGHT.replace("1 - 0.5 *", "0.2 -"))
    asked = ("--plugin", "lab.py", *PLAIN, "--epochs", "5", "--set", "burn_in_epochs=0", "--set", "weight=line")
    found = program(*asked)
    assert (found.code, "weight 'line' was below zero in epoch" in found.err) == (1, True), found.err
    phases = 'phases=[{"from_epoch": 1, "set": {"weight": "line"}}]'
    later = ("--plugin", "lab.py", *PLAIN, "--out", "later", "--epochs", "5", "--set", "burn_in_epochs=0")
    assert "weight 'line' was below zero in epoch" in program(*later, "--set", phases).err
    write("lab.py", WEIGHT)
    forget_components(Path.cwd())
    del sys.modules["lab"]
    assert program(*asked, "--out", "other").code == 0


def test_the_loss_for_ones_own_loop_takes_one_value_an_example(program: Program) -> None:
    """A column of margins against a row of losses would give a table, and its mean a loss that weighs nobody."""
    write("lab.py", MINE.replace("[:, 0]", "") + OBJECTIVE.replace('"none"', '"mean"'))
    load_plugin("lab.py")
    x, labels = images(1, 6, size=8)
    for setting, kind in (({"margin": "mine", "normalizer": "fixed"}, "margin"), ({"objective": "flat"}, "objective")):
        with pytest.raises(UsageError, match=f"{kind} .* for 6 examples: return one value each"):
            pm.mail_loss(tiny_net(1), x, labels, resolve("mail-at", settings=setting))


def test_plain_terms_of_ones_own_loop_are_one_value_an_example(program: Program) -> None:
    write("lab.py", OBJECTIVE.replace("0 * loss", "0 * loss[:, None]"))
    load_plugin("lab.py")
    with pytest.raises(UsageError, match=r"objective 'flat' returns shape \(6, 1\) for 6 examples"):
        pm.mail_loss(tiny_net(1), *images(1, 6, size=8), resolve("mail-at", settings={"objective": "flat"}))


JUDGE = ("evaluate", "run", "--num-examples", "9", "--device", "cpu", "--eps", "0.2")


def test_an_own_attack_judges_by_its_name_and_its_result_tells_what_it_was(program: Program) -> None:
    digits = write("lab.py", OWN)
    plugin = ("--plugin", "lab.py")
    assert program(*PLAIN, "--epochs", "1").code == 0
    assert "own-shift" in program(*plugin, "list", "attacks").out
    judged = program(*plugin, *JUDGE, "--attacks", "nat,own-shift")
    assert judged.code == 0, judged.err
    assert f"own-shift (not an attack of probmargin, lab.py {digits[:16]}): " in judged.out
    entry = record()["evaluation"]["own-shift"]
    files = [{"file": "lab.py", "sha256": digits}]
    assert entry["attack"] == {"name": "shift", "norm": "Linf", "eps": 0.2, "share": 1.0, "files": files}
    assert (entry["is_standard"], entry["label"]) == (False, f"not an attack of probmargin, lab.py {digits[:16]}")
    assert "warnings" not in entry

    test = load_digits().test.take(range(9))
    with torch.no_grad():
        right = open_run("run").model((test.floats() + 0.2).clamp(0, 1)).argmax(1) == test.labels
    assert entry["correct"] == "".join(str(int(one)) for one in right)
    assert program("report", "run", "--out", "page.html").code == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert "own-shift" in page
    assert "OWN-SHIFT" not in page


def test_what_an_own_attack_found_is_not_taken_for_that_of_another_content(program: Program) -> None:
    write("lab.py", OWN)
    assert program(*PLAIN, "--epochs", "1").code == 0
    judge = ("--plugin", "lab.py", *JUDGE, "--num-examples", "100", "--attacks", "nat,own-shift")
    assert program(*judge).code == 0
    before = record()["evaluation"]
    assert before["own-shift"]["correct"] != before["nat"]["correct"]
    forget_components(Path.cwd())
    del sys.modules["lab"]
    after = write("lab.py", OWN.replace("self.share * self.eps", "0 * self.eps"))
    assert program(*judge).code == 0
    found = record()["evaluation"]
    assert found["own-shift"]["attack"]["files"][0]["sha256"] == after
    assert found["own-shift"]["correct"] == found["nat"]["correct"], "it does nothing any more"


@pytest.mark.parametrize("way", [("1.0", "2.0"), ("(x + self.share * self.eps).clamp(0, 1)", "(x - self.eps)")])
def test_an_own_attack_that_leaves_its_ball_breaks_nothing_and_is_told_of(
    program: Program, way: tuple[str, str]
) -> None:
    write("lab.py", OWN.replace(*way))
    load_plugin("lab.py")
    x, labels = images(1, 12, size=8)
    result = pm.evaluate(tiny_net(6), (0.2 * x, labels), ["nat", "own-shift"], eps=0.3)
    assert result["own-shift"]["correct"] == result["nat"]["correct"] != "1" * 12, "as if there were no attack"
    assert result["worst_case"]["robust_accuracy"] == result["nat"]["accuracy"]
    assert result["margins"]["worst_case"] == result["margins"]["clean"]
    assert result["warnings"] == ["own-shift left the ball or [0, 1] on 12 images, which count unattacked"]
    assert pm.evaluate(tiny_net(6), (0.2 * x, labels), ["pgd-2"], eps=0.3)["warnings"] == []


def test_what_left_the_ball_is_told_again_where_it_is_read_back(program: Program) -> None:
    digits = write("lab.py", OWN.replace("1.0", "2.0"))
    assert program(*PLAIN, "--epochs", "1").code == 0
    for _ in range(2):
        judged = program("--plugin", "lab.py", *JUDGE, "--attacks", "own-shift")
        assert "warning: own-shift left the ball or [0, 1] on 9 images" in judged.out
    assert program("report", "run", "--out", "page.html").code == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert program("export", "run", "--format", "safetensors", "--out", "net.safetensors").code == 0
    card = Path("net.safetensors.card.md").read_text(encoding="utf-8").replace("\\", "")
    for text in (page, card):
        assert f"own-shift: not an attack of probmargin, lab.py {digits[:16]}" in text
        assert "own-shift left the ball or [0, 1] on 9 images, which count unattacked" in text


def test_shards_of_an_own_attack_add_up_what_left_the_ball(program: Program) -> None:
    write("lab.py", OWN.replace("1.0", "2.0"))
    assert program(*PLAIN, "--epochs", "1").code == 0
    for shard in ("1/2", "2/2"):
        assert program("--plugin", "lab.py", *JUDGE, "--attacks", "own-shift", "--shard", shard).code == 0
    assert program("merge", "run").code == 0
    found = record()["evaluation"]
    assert found["warnings"] == ["own-shift left the ball or [0, 1] on 9 images, which count unattacked"]


def test_steps_are_not_measured_by_an_attack_that_records_none(program: Program) -> None:
    write("lab.py", OWN)
    asked = ("--plugin", "lab.py", *PLAIN[:-6], *PLAIN[-4:], "--set", "attack=shift", "--epochs", "1", "--dynamics")
    assert program(*asked).code == 0
    seen = program("--plugin", "lab.py", "inspect", "run")
    assert "this run's attack records no steps, so there is no LPS" in seen.out
    assert "--measure-lps" not in seen.out
    words = "--measure-lps needs an attack that records its steps, as pgd does, and run was trained with shift"
    program.refuses(words, "--plugin", "lab.py", "inspect", "run", "--measure-lps", "50")


def test_a_monitor_of_ones_own_that_leaves_its_ball_counts_as_no_attack(program: Program) -> None:
    write("lab.py", OWN.replace("self.share * self.eps", "1"))
    monitors = ("--monitor", "nat:99,own-shift:99", "--monitor-every", "1")
    assert program("--plugin", "lab.py", *PLAIN, "--epochs", "1", *monitors).code == 0
    row = json.loads(Path("run/metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert row["monitors"]["own-shift"] == row["monitors"]["nat"] > 0.2


def test_an_own_attack_monitors_a_run_whose_record_names_its_file(program: Program) -> None:
    before = write("lab.py", OWN)
    run = (*PLAIN, "--epochs", "2", "--keep-epochs", "1")
    watched = ("--plugin", "lab.py", *run, "--monitor", "own-shift:9", "--monitor-every", "1")
    assert program(*run).code == 0
    cut(1)
    assert program(*watched, "--resume").code == 0
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [set(row.get("monitors", {})) for row in rows] == [set(), {"own-shift"}]
    named = [{"file": "lab.py", "sha256": before, "registers": {"attack": ["shift"]}}]
    assert record()["resumes"][0]["plugins"] == named, "it began without"
    assert program(*watched, "--out", "other").code == 0
    assert json.loads(Path("other/record.json").read_text(encoding="utf-8"))["plugins"] == named


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MINE, "no loaded file registers an attack 'shift' (loaded: none); give its file before the command"),
        (OWN.replace('"shift"', '"shifted"'), "(loaded: own-shifted); give its file before the command"),
        (
            OWN.replace("eps: float = 8 / 255", "pass"),
            "attack 'shift' has no field eps; write norm and eps as fields of Shift, as PGD has them",
        ),
        (OWN.replace("= 1.0", ""), "attack 'shift' has no value of share; give it a default in class Shift"),
    ],
)
def test_an_attack_that_cannot_judge_gets_one_line(program: Program, text: str, words: str) -> None:
    write("lab.py", text)
    asked = ("--model", "small-cnn", "--data", "digits", "--num-examples", "4")
    program.refuses(words, "--plugin", "lab.py", "evaluate", *asked, "--attacks", "own-shift")
    program.refuses(words, "--plugin", "lab.py", *PLAIN, "--monitor", "own-shift:4")


def test_an_own_attack_that_fails_is_named_with_its_place(program: Program) -> None:
    write("lab.py", OWN.replace("+ self", "+ oops"))
    asked = ("evaluate", "--model", "small-cnn", "--data", "digits", "--num-examples", "4", "--attacks", "own-shift")
    program.refuses("attack 'shift' fails: NameError: name 'oops' is not defined (", "--plugin", "lab.py", *asked)


def test_an_own_attack_that_runs_out_of_memory_gets_fewer_images(program: Program) -> None:
    body = "if len(x) > 4: raise torch.OutOfMemoryError('full')\n        return AttackResult"
    write("lab.py", "import torch\n" + OWN.replace("return AttackResult", body))
    asked = ("evaluate", "--model", "small-cnn", "--data", "digits", "--num-examples", "12", "--device", "cpu")
    judged = program("--plugin", "lab.py", *asked, "--attacks", "own-shift")
    assert judged.code == 0, judged.err


def test_the_prefix_is_named_to_who_leaves_it_out(program: Program) -> None:
    write("lab.py", OWN)
    asked = ("evaluate", "--model", "small-cnn", "--data", "digits", "--attacks", "shift")
    program.refuses("unknown attack 'shift'; did you mean own-shift?", "--plugin", "lab.py", *asked)


def test_an_own_attack_that_cannot_name_a_result_is_refused(program: Program) -> None:
    write("lab.py", OWN.replace('"shift"', '"../shift"'))
    load_plugin("lab.py")
    with pytest.raises(UsageError, match="give it a name of letters, digits, _ and -"):
        pm.evaluate(tiny_net(1), images(1, 4, size=8), ["own-../shift"])
