"""Advice that is given can be followed: each test does what the line it got says."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from program import Program, program as program
from torch import nn
from trained_run import trained as trained

import probmargin as pm
from probmargin.api import load_data
from probmargin.attacks.apgd import APGD
from probmargin.attacks.pgd import PGD
from probmargin.core.errors import Interrupted, UsageError
from probmargin.evaluation.run_data import data_of
from probmargin.experiments import demo, local, reproduce
from probmargin.methods.plain import from_plain, with_settings
from probmargin.methods.resolve import METHODS, resolve
from probmargin.models.build import build_model
from probmargin.runs.run import open_run
from probmargin.training.drop_in import loss_recipe
from probmargin.training.refusals import check_every_epoch
from probmargin.training.remarks import idle_weights, late_phases, other_scale, rate_of_sgd, short_reach, wide_steps
from probmargin.training.validation import ball_of

OWN_MARGIN = ("margin=pm_adv", "weight=sigmoid", "attack=pgd")
QUICK = ("--epochs", "2", "--set", "attack.num_steps=1", "--device", "cpu", "--model", "small-cnn")


def pictures(root: Path, *classes: str, size: int = 8, count: int = 5) -> None:
    draw = np.random.default_rng(0)
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = draw.integers(0, 60, (size, size), dtype=np.uint8) + np.uint8(60 * label)
            Image.fromarray(pixels).save(root / name / f"{number}.png")


def advised(text: str, after: str) -> list[str]:
    """The words of a command that a line shows, as a shell would split them."""
    return shlex.split(text.rpartition(after)[2].splitlines()[0])


@pytest.fixture
def spaced(program: Program, trained: Path) -> Path:
    """A run in a folder with a blank and a quote in its name."""
    return Path(shutil.copytree(trained, "it's my run"))


def test_a_command_that_train_shows_can_be_pasted(program: Program) -> None:
    pictures(Path("my pictures"), "cat", "dog")
    said = program("train", "--data", "folder:my pictures", "--method", "at", "--out", "my runs/a", *QUICK).out
    words = advised(said, "judge it with: probmargin ")
    assert words == ["evaluate", "my runs/a"]
    assert program(*words, "--attacks", "nat").code == 0


def test_a_run_whose_pictures_stayed_in_files_is_judged_like_any_other(program: Program) -> None:
    pictures(Path("pics"), "cat", "dog")
    asked = ("--data", "folder:pics", "--method", "mail-at", "--out", "run", "--dynamics", *QUICK)
    trained = program("train", *asked, "--placement", "files")
    assert trained.code == 0
    assert "training pictures: they are read, unless they were and are unchanged" in trained.out
    judged = program("evaluate", "run", "--attacks", "nat")
    assert judged.code == 0, judged.err
    seen = program("inspect", "run", "--json", "seen.json").out
    assert "not known" not in seen
    for example in json.loads(Path("seen.json").read_text())["weight"]["largest"]:
        shown = np.array(Image.open(Path("pics", example["file"])))
        data = load_data("folder:pics").train
        (place,) = (data.index == example["index"]).nonzero()[0].tolist()
        assert np.array_equal(shown, data.images[place, 0].numpy()), "the file of that example"
        assert example["file"] in seen
    program.refuses("add it", "report", "run", "-o", "page")
    program("report", "run", "-o", "page.html")
    assert f'title="{example["file"]}">{Path(example["file"]).name}</span>' in Path("page.html").read_text()
    assert program("train", *asked, "--placement", "host", "--resume").code == 0


def test_the_run_that_inspect_asks_for_is_the_same_run(program: Program, trained: Path) -> None:
    pictures(Path("pics"), "cat", "dog")
    program("export", str(trained), "--format", "safetensors", "-o", "first.safetensors")
    asked = ("--data", "folder:pics", "--method", "mail-at", "--out", "run", "--normalize", "--validation", "2", *QUICK)
    began = program(
        "train", *asked, "--checkpoint", "first.safetensors", "--new-head", "--label-noise", "symmetric:0.5"
    )
    assert began.code == 0, began.err
    words = advised(program("inspect", "run").err, "with probmargin ")
    assert program(*words, "--device", "cpu").code == 0
    records = [json.loads(Path(name, "record.json").read_text()) for name in ("run", "run-dynamics")]
    assert records[0]["weights"] == records[1]["weights"]
    assert program("inspect", "run-dynamics").code == 0


def test_a_run_that_goes_on_names_its_data(program: Program) -> None:
    pictures(Path("pics"), "cat", "dog")
    asked = ("--method", "at", "--out", "run", *QUICK)
    assert program("train", "--data", "folder:pics", *asked).code == 0
    program.refuses("run was trained on folder:pics, and no --data is given", "train", *asked, "--resume")


def test_a_command_for_shards_can_be_pasted(program: Program, spaced: Path) -> None:
    refused = program("merge", str(spaced)).err
    words = advised(refused, "make them with: probmargin ")
    assert words[:4] == ["evaluate", str(spaced), "--shard", "1/2,"]


def test_a_command_for_dynamics_can_be_pasted(program: Program, spaced: Path) -> None:
    words = advised(program("inspect", str(spaced)).err, "with probmargin ")
    assert words[-3:] == ["--out", f"{spaced}-dynamics", "--dynamics"]
    assert program(*words, "--device", "cpu").code == 0
    assert program("inspect", f"{spaced}-dynamics").code == 0


def test_that_command_keeps_the_size_of_pictures(program: Program) -> None:
    pictures(Path("pictures"), "cat", "dog", size=20)
    made = ("train", "--data", "folder:pictures", "--image-size", "12", "--method", "at", "--out", "run", *QUICK)
    assert program(*made).code == 0
    words = advised(program("inspect", "run").err, "with probmargin ")
    assert words[words.index("--image-size") + 1] == "12"


def test_commands_on_a_card_and_after_an_import_can_be_pasted(program: Program, spaced: Path) -> None:
    assert program("export", str(spaced), "--format", "safetensors", "-o", "my m.safetensors").code == 0
    card = json.loads(Path("my m.safetensors.card.json").read_text(encoding="utf-8"))
    words = advised(card["not_measured"][0], "test set: probmargin ")
    assert words == ["evaluate", str(spaced), "--attacks", "nat"]
    assert program(*words).code == 0
    torch.save(build_model("resnet18", num_classes=10, in_channels=3).state_dict(), "theirs.pt")
    took = ("import", "theirs.pt", "--layout", "awp", "--model", "resnet18", "-o", "my w.safetensors")
    said = program(*took)
    assert advised(said.out, "judge it with: probmargin ")[3:5] == ["--checkpoint", "my w.safetensors"], said


def test_other_data_for_a_changed_folder_can_be_pasted(program: Program) -> None:
    pictures(Path("my pictures"), "cat", "dog")
    program("train", "--data", "folder:my pictures", "--method", "at", "--out", "run", *QUICK)
    shutil.copy("my pictures/cat/0.png", "my pictures/cat/new.png")
    words = advised(program("evaluate", "run", "--attacks", "nat").err, "as other data with ")
    assert words == ["--data", "folder:my pictures", "--out", "FILE"]
    assert program("evaluate", "run", "--attacks", "nat", *words).code == 0


def test_a_runs_folder_as_a_checkpoint(program: Program, spaced: Path) -> None:
    told = ("--model", "small-cnn", "--data", "digits", "--checkpoint")
    for command in (("evaluate", "--attacks", "nat"), ("audit", "--num-examples", "8"), ("train", "--out", "new")):
        program.refuses(f"{spaced} is a run's folder", *command, *told, str(spaced))
    words = advised(program("evaluate", *told, str(spaced)).err, "weights, ")
    assert program("evaluate", "--attacks", "nat", *told[:-1], *words).code == 0
    Path("empty").mkdir()
    program.refuses("there is no checkpoint file empty", "evaluate", *told, "empty")


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "model.", "net.module."])
def test_weights_of_compiled_models_simply_load(program: Program, spaced: Path, prefix: str) -> None:
    model = open_run(spaced).model
    torch.save({f"{prefix}{name}": tensor for name, tensor in model.state_dict().items()}, "compiled.pt")
    told = ("--model", "small-cnn", "--data", "digits", "--attacks", "nat", "--device", "cpu")
    result = program("evaluate", *told, "--checkpoint", "compiled.pt")
    assert result.code == 0, result.err
    own = program("evaluate", str(spaced), "--attacks", "nat", "--device", "cpu")
    assert result.out.split("nat: ")[1].split(" (")[0] == own.out.split("nat: ")[1].split(" (")[0]


def test_what_torch_compile_saves_has_the_name_that_is_taken_off() -> None:
    compiled = torch.compile(nn.Sequential(nn.Linear(2, 2)), backend="eager")
    assert isinstance(compiled, nn.Module)
    assert list(compiled.state_dict()) == ["_orig_mod.0.weight", "_orig_mod.0.bias"]


def test_no_new_head_where_nothing_trains_it(program: Program, spaced: Path) -> None:
    pictures(Path("pictures"), "cat", "dog")
    program("export", str(spaced), "--format", "safetensors", "-o", "m.safetensors")
    told = ("--model", "small-cnn", "--data", "folder:pictures", "--checkpoint", "m.safetensors")
    for command in ("evaluate", "audit"):
        program.refuses("is for another number of classes", command, *told)
        assert "--new-head" not in program(command, *told).err
    assert program("train", "--method", "at", "--out", "new", *told, "--new-head", *QUICK[:-2]).code == 0


def test_forks_that_cannot_be(program: Program, trained: Path) -> None:
    told = ("train", "--out", "new", "--data", "digits", "--method", "at", "--seed", "0", "--model", "small-cnn")
    same = ("--device", "cpu", "--set", "attack.eps=0.05", "--set", "attack.num_steps=2", "--epochs", "2")
    shutil.copytree(trained, "run")
    Path("run/checkpoints/state-0001.json").unlink()
    program.refuses("leave out --fork, or name an epoch from 1 on", *told, *same, "--fork", "run@0")
    program.refuses("--fork takes RUN@EPOCH", *told, *same, "--fork", "run@\u00b2")
    program.refuses("(it has 2); fork it at one it has, or train it", *told, *same, "--fork", "run@1")
    again = [word if word != "new" else "again" for word in told]
    assert program(*again, *same, "--keep-epochs", "1").code == 0
    assert program(*told, *same, "--fork", "again@1").code == 0


def test_pictures_of_another_size_for_a_model_from_elsewhere(program: Program) -> None:
    pictures(Path("pictures"), "cat", "dog", size=20)
    made = ("--data", "folder:pictures", "--image-size", "12", "--model", "small-cnn")
    assert program("train", *made, "--method", "at", "--out", "run", *QUICK[:-2]).code == 0
    assert program("export", "run", "--format", "safetensors", "-o", "m.safetensors").code == 0
    told = (*made, "--checkpoint", "m.safetensors", "--device", "cpu")
    judged = program("evaluate", *told, "--attacks", "nat", "--out", "o.json")
    assert judged.code == 0, judged.err
    own = program("evaluate", "run", "--attacks", "nat", "--device", "cpu")
    assert judged.out.split("nat: ")[1].split(" (")[0] == own.out.split("nat: ")[1].split(" (")[0]
    assert '"data_fingerprint": "' + open_run("run").record["data_fingerprint"] in Path("o.json").read_text()
    assert program("audit", *told, "--num-examples", "2").code == 0
    for command in ("evaluate", "audit"):
        program.refuses("leave out --image-size", command, "run", "--image-size", "12")


def test_classes_that_stand_for_something_else(program: Program) -> None:
    pictures(Path("own"), "cat", "dog")
    pictures(Path("other"), "cat", "eel")
    program("train", "--data", "folder:own", "--method", "at", "--out", "run", *QUICK)
    asked = ("evaluate", "run", "--attacks", "nat", "--out", "o.json", "--data")
    words = "folder:other has a class 'eel', which run does not know; name its classes as the run does (cat, dog)"
    program.refuses(words, *asked, "folder:other")
    program.refuses("folder:other has a class 'eel'", "audit", "run", "--out", "a.json", "--data", "folder:other")
    pixels, labels = np.full((4, 1, 8, 8), 9, np.uint8), np.array([0, 1, 0, 1])
    arrays: dict[str, Any] = {"x_train": pixels, "y_train": labels, "x_test": pixels, "y_test": labels}
    np.savez("odd.npz", **arrays, classes=np.array(["dog", "eel"]))
    program.refuses("npz:odd.npz has a class 'eel'", *asked, "npz:odd.npz")
    np.savez("same.npz", **arrays, classes=np.array(["cat", "dog"]))
    np.savez("numbered.npz", **arrays)
    for name in ("same", "numbered"):
        assert program(*asked, f"npz:{name}.npz").code == 0
    turned = {**arrays, "y_test": 1 - labels, "y_train": 1 - labels}
    np.savez("turned.npz", **turned, classes=np.array(["dog", "cat"]))
    found = data_of(open_run("run"), "npz:turned.npz")
    assert found.test.labels.tolist() == found.train.labels.tolist() == labels.tolist(), "by name, not by number"
    assert found.classes == ("cat", "dog")
    assert program(*asked, "npz:turned.npz").code == 0
    Path("other/eel").rename("other/dog")
    assert program(*asked, "folder:other").code == 0


def test_a_run_without_a_whole_state_is_trained_again(program: Program) -> None:
    told = ("train", "--data", "digits", "--method", "at", "--out", "run", *QUICK)
    assert program(*told).code == 0
    weights = open_run("run").model.state_dict()
    states = sorted(Path("run/checkpoints").glob("*.safetensors"))
    for path in states:
        path.write_bytes(path.read_bytes()[:100])
    words = "differs); empty its checkpoints folder and train it with --resume"
    for command in (("evaluate", "run"), (*told, "--resume")):
        program.refuses(words, *command)
        assert "the state before it is used" not in program(*command).err
    shutil.rmtree("run/checkpoints")
    Path("run/checkpoints").mkdir()
    assert program(*told, "--resume").code == 0
    again = open_run("run").model.state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())


def test_data_with_another_number_of_classes(program: Program, spaced: Path) -> None:
    pictures(Path("pictures"), "cat", "dog")
    asked = ("evaluate", str(spaced), "--data", "folder:pictures", "--out", "o.json")
    program.refuses("folder:pictures has 2 classes and it's my run 10; give data with the run's own", *asked)


@pytest.mark.parametrize(("steps", "eps"), [("2", "0.07"), ("3", "18/255"), ("7", "0.3"), ("1", "0.15")])
def test_an_attack_that_does_not_reach_its_ball_does_by_the_step_that_is_named(steps: str, eps: str) -> None:
    settings = {"attack.num_steps": steps, "attack.eps": eps, "attack.step_size": "0.01"}
    line = short_reach(resolve("at", data="digits", settings=settings))
    assert line is not None
    settings["attack.step_size"] = line.rpartition("attack.step_size=")[2]
    assert short_reach(resolve("at", data="digits", settings=settings)) is None


def test_a_run_is_judged_watched_and_audited_at_the_radius_that_its_phases_end_with(program: Program) -> None:
    phases = '[{"from_epoch": 1, "set": {"attack.eps": "50/255", "attack.step_size": 0.2}}]'
    asked = ("train", "--data", "digits", "--method", "at", "--out", "run", *QUICK, "--set", "attack.step_size=0.1")
    trained = program(*asked, "--set", "attack.eps=0.05", "--set", f"phases={phases}", "--monitor", "fgsm:40")
    assert trained.code == 0, trained.err
    for command in (("evaluate", "run", "--attacks", "nat,fgsm", "--num-examples", "40"), ("audit", "run")):
        assert "Linf eps 50/255, " in program(*command).out
    told = json.loads(Path("run/evaluation.json").read_text(encoding="utf-8"))
    last = json.loads(Path("run/metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert last["monitors"]["fgsm"] == told["fgsm"]["robust_accuracy"]
    assert ball_of(open_run("run").recipe) == ("Linf", 50 / 255)
    assert program("report", "run", "-o", "r.html").code == 0
    page = Path("r.html").read_text(encoding="utf-8")
    assert "and trained for" not in page
    assert "Linf eps 0.05, Linf eps 50/255 at the end" in page


def test_an_attack_that_falls_short_in_a_later_phase_is_named() -> None:
    phases = '[{"from_epoch": 4, "set": {"attack.eps": 0.2, "attack.num_steps": 3}}]'
    line = short_reach(resolve("at", data="digits", epochs=6, settings={"phases": phases}))
    assert line is not None
    assert line.startswith("the attack from epoch 5 on goes 3 steps of 0.03, to 0.09 and not to its eps 0.2")
    assert line.endswith("in the phase, such as attack.step_size=0.06667")


def test_steps_that_are_longer_than_the_ball_are_named() -> None:
    line = wide_steps(resolve("at", settings={"attack.eps": "1/255"}))
    assert line is not None
    assert line.endswith("lower attack.step_size with it, such as --set attack.step_size=0.0009804")
    assert wide_steps(resolve("at", settings={"attack.eps": "2/255"})) is None
    assert wide_steps(resolve("standard")) is None


def test_a_phase_after_the_end_is_named() -> None:
    def line(*epochs: int) -> str | None:
        phases = [{"from_epoch": epoch, "set": {"weight.slope": 1.0}} for epoch in epochs]
        return late_phases(resolve("mail-at", data="digits", epochs=4, settings={"phases": phases}))

    assert line(3) is None
    said = line(3, 50, 60)
    assert said is not None
    assert said.startswith(
        "what the recipe changes from epoch 50 on changes nothing, since training ends after 4 epochs"
    )


def test_a_weight_that_reads_another_scale_than_its_margin_has_is_named() -> None:
    for weight in ("gairat_tanh", "gairat_sigmoid", "gairat_discrete"):
        line = other_scale(resolve("mail-at", data="digits", settings={"weight": weight}))
        assert f"the weight {weight} reads attack steps survived, and the margin pm_adv" in (line or "")
    for weight in ("sigmoid", "hinge", "hinge_as_printed", "step"):
        line = other_scale(resolve("mail-at", data="digits", settings={"margin": "lps", "weight": weight}))
        assert "the margin lps counts attack steps" in (line or "")
    among = {"margin": "lps", "weight.bias": 5.0}
    assert other_scale(resolve("mail-at", data="digits", settings=among)) is None
    bare = {"margin": "none", "weight": "gairat_tanh"}
    assert other_scale(resolve("mail-at", data="digits", settings=bare)) is None, "that is said already"
    for name, presets in METHODS.items():
        for preset in presets:
            assert other_scale(resolve(name, preset=preset)) is None, (name, preset)


def test_another_norm_asks_for_its_radius(program: Program) -> None:
    asked = ("train", "--data", "digits", "--model", "small-cnn", "--method", "mail-at", "--out", "run")
    program.refuses(
        "attack.eps 0.15 is a radius in Linf: give attack.eps and attack.step_size too, such as 0.5 and 0.1",
        *asked,
        *("--set", "attack.norm=L2"),
    )
    settings: dict[str, Any] = {"attack.norm": "L2", "attack.eps": "0.5", "attack.step_size": 0.1}
    assert resolve("mail-at", settings=settings).attack == PGD(norm="L2", eps=0.5, step_size=0.1)
    in_l2 = resolve("mail-at", settings=settings)
    phase = {"from_epoch": 3, "set": {"attack.norm": "Linf"}}
    changing = with_settings(in_l2, {"phases": [phase]})
    with pytest.raises(UsageError, match=r"attack\.eps 0\.5 is a radius in L2"):
        check_every_epoch(changing)
    assert changing.final_attack == PGD(norm="Linf", eps=0.5, step_size=0.1), "a run of before can be judged"
    whole = {"name": "pgd", "norm": "L2", "eps": 0.5, "step_size": 0.1}
    assert resolve("mail-at", settings={"attack": whole}).attack == PGD(norm="L2", eps=0.5, step_size=0.1)
    for head, method, change in (
        ("attack", "mail-at", {"attack": {"name": "pgd", "norm": "L2"}}),
        ("attack", "standard", {"attack": "pgd", "attack.norm": "L2"}),
        ("second_attack", "gair-trades", {"second_attack.norm": "L2"}),
    ):
        with pytest.raises(UsageError, match=rf"{head}\.eps \S+ is a radius in Linf"):
            resolve(method, preset="official" if head == "second_attack" else "paper", settings=change)
    with pytest.raises(UsageError, match="linf") as wrong:
        resolve("mail-at", settings={"attack.norm": "linf"})
    assert "radius" not in str(wrong.value)
    assert resolve("mail-at", settings={"attack.norm": "Linf"}).attack == resolve("mail-at").attack
    with pytest.raises(UsageError, match="eps 8/255 is a radius in Linf: pass eps as well as norm='L2'"):
        pm.attack("apgd", norm="L2")
    assert pm.attack("apgd", norm="L2", eps=0.5) == APGD(norm="L2", eps=0.5)


@pytest.mark.parametrize(("method", "settings"), [("mail-at", ("objective=standard",)), ("standard", OWN_MARGIN)])
def test_a_margin_of_attacked_images_without_any_is_refused_before_training(
    program: Program, method: str, settings: tuple[str, ...]
) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    asked = ("train", "--data", "digits", "--model", "small-cnn", "--method", method, *words, "--out", "run")
    program.refuses("the margin pm_adv reads attacked images, and the objective standard has none", *asked)
    assert not Path("run").exists()
    read = resolve(method, data="digits", settings=dict(setting.split("=") for setting in settings))
    assert from_plain(read.plain()) == read, "a run of before can be read"
    with pytest.raises(UsageError, match="reads attacked images"):
        loss_recipe(read, False)
    check_every_epoch(resolve("standard", settings={"attack": "pgd", "margin": "pm_adv", "passes": "nat,adv"}))


def test_a_rate_of_sgd_is_not_left_to_adamw_in_silence(program: Program) -> None:
    settings: dict[str, Any] = {"optimizer": "adamw", "lr": 0.01}
    assert "wants --set lr=0.001 or less" in (rate_of_sgd(resolve("at", settings=settings)) or "")
    assert rate_of_sgd(resolve("at", settings=settings | {"lr": 0.002})) is None
    assert rate_of_sgd(resolve("at", settings={"lr": 0.1})) is None
    asked = (
        "train",
        "--data",
        "digits",
        "--model",
        "small-cnn",
        "--method",
        "standard",
        "--epochs",
        "1",
        "--out",
        "run",
    )
    said = program(*asked, "--set", "optimizer=adamw", "--dry-run")
    assert "lr 0.1 is a rate for sgd" in said.out


@pytest.mark.parametrize(
    ("method", "settings", "fix"),
    [
        ("at", {"weight": "sigmoid"}, "the weight sigmoid has no margin to go by .*--set margin=pm_adv"),
        ("fat", {"weight": "sigmoid"}, "the weight sigmoid has no margin to go by"),
        ("trades", {"margin": "pm_adv"}, "the margin pm_adv changes nothing.*--set weight=sigmoid"),
        ("mail-at", {"margin": "none"}, "the weight sigmoid has no margin to go by"),
        ("mail-at", {"weight": "uniform"}, "the margin pm_adv changes nothing"),
    ],
)
def test_half_of_a_reweighting_is_said_to_do_nothing(method: str, settings: dict[str, str], fix: str) -> None:
    line = idle_weights(resolve(method, data="digits", settings=settings))
    assert line is not None
    assert re.search(fix, line)


def test_a_whole_reweighting_is_not_remarked_on() -> None:
    settings = {"margin": "pm_adv", "weight": "sigmoid"}
    assert idle_weights(resolve("at", data="digits", settings=settings)) is None
    later = '[{"from_epoch": 5, "set": {"margin": "pm_adv"}}]'
    assert idle_weights(resolve("at", data="digits", settings={"weight": "sigmoid", "phases": later})) is None
    for name, presets in METHODS.items():
        for preset in presets:
            assert idle_weights(resolve(name, preset=preset)) is None, (name, preset)


def test_curves_that_nobody_asked_for(program: Program) -> None:
    asked = ("train", "--data", "digits", "--model", "small-cnn", "--monitor-every", "5", "--out", "run")
    program.refuses("--monitor-every is for curves on test images: give --monitor", *asked)
    assert not Path("run").exists()


def test_a_model_named_by_its_file(program: Program, tmp_path: Path) -> None:
    net = "from torch import nn\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    folders = (Path("nets"), Path("my nets"), tmp_path.parent / "elsewhere nets")
    for number, folder in enumerate(folders):
        folder.mkdir(exist_ok=True)
        (folder / f"net{number}.py").write_text(net, encoding="utf-8")
    told = ("evaluate", "--data", "digits", "--attacks", "nat", "--model")
    for name in ("nets/net0.py:build", "./nets/net0.py", str(tmp_path / "nets" / "net0.py:build")):
        program.refuses("is a file; write it as a module, --model nets.net0:build, not", *told, name)
    assert program(*told, "nets.net0:build").code == 0
    for number, folder in enumerate(folders[1:], start=1):
        words = advised(program(*told, f"{folder}/net{number}.py").err.replace(", not as a file", ""), "as a module, ")
        assert words == ["--model", f"net{number}:build", "in", "the", "folder", str(folder.resolve())]
        program.monkeypatch.chdir(words[-1])
        assert program(*told, words[1]).code == 0
        program.monkeypatch.chdir(tmp_path)


def test_data_that_is_not_there_is_refused_once(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "attempt", lambda *_: pytest.fail("a run was begun"))
    only = ("reproduce", "table2", "--only", "at", "--trials", "1")
    program.refuses("cifar10 needs a folder with its files: pass --data-dir DIR", *only)
    Path("data").mkdir()
    words = "neither cifar-10-batches-py/ nor cifar-10-python.tar.gz is in data"
    program.refuses(words, *only, "--data-dir", "data")
    asked = []
    monkeypatch.setattr(reproduce, "load", lambda *where, download: asked.append((*where, download)))
    monkeypatch.setattr(reproduce, "_start", lambda *_: None)
    program(*only, "--data-dir", "data", "--download")
    assert asked == [("cifar10", Path("data"), True)]


@pytest.mark.parametrize("stop", [Interrupted("state saved; go on with --resume"), KeyboardInterrupt()])
def test_an_interrupted_reproduction_goes_on_by_the_same_command(
    program: Program, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    def interrupted(*_: object) -> None:
        raise stop

    monkeypatch.setattr(local, "attempt", interrupted)
    result = program("reproduce", "table2", "--scale", "smoke", "--device", "cpu")
    assert result.code == 130
    assert result.err == f"probmargin: {local.AGAIN}\n"


def test_an_interrupted_demo_is_started_again(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise Interrupted("interrupted; state saved; go on with --resume")

    monkeypatch.setattr(demo, "demo_run", interrupted)
    result = program("demo")
    assert (result.code, result.err) == (130, "probmargin: interrupted; start the demo again, it takes a minute\n")


def test_every_format_is_written_to_a_name_with_a_blank(program: Program, spaced: Path) -> None:
    """Where the command is run, as one types it: no path from the root."""
    for kind, name in (("safetensors", "my m.safetensors"), ("torch-export", "my m.pt2"), ("robustbench", "my bundle")):
        result = program("export", str(spaced), "--format", kind, "-o", name, "--num-examples", "8")
        assert result.code == 0, result.err
        assert Path(name).exists()
