"""A run that branches off another ends where training from scratch ends, or is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobs import blobs
from torch import nn
from training_runs import Fit, Listener, StopAfter, fit, let_accuracy_fall, recipe, same

from probmargin.core.errors import Interrupted, UsageError
from probmargin.core.settings import AWP, EMA
from probmargin.methods.method import Method, Phase
from probmargin.runs.run import open_run
from probmargin.training.agreement import recipe_differences
from probmargin.training.fork import described, parse_fork
from probmargin.training.state import TrainState

FORKED_AT = 4


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that children branch off; copy it before writing into it."""
    return fit(tmp_path_factory.mktemp("runs") / "parent", recipe("at"), keep_epochs=(FORKED_AT,), dynamics=True)[1]


def without_rates(path: Path) -> list[dict[str, object]]:
    return [{k: v for k, v in row.items() if k != "images_per_second"} for row in open_run(path).metrics]


JUMP = Phase(from_epoch=5, start_from_epoch=4, fresh_momentum=True, set={"attack.loss": "cw"})
CHILDREN = {
    "mail-at": recipe("mail-at"),
    "gairat": recipe("gairat", attack=recipe("at").attack),
    "an earlier drop afterwards": recipe("mail-at", lr_milestones=(4,), lr_decay=0.5),
    "longer": recipe("mail-at", epochs=6, burn_in_epochs=5),
    "a restart with fresh momentum": recipe("mail-at", phases=(JUMP,)),
    "awp after its warm-up": recipe("at", awp=AWP(warmup_epochs=4)),
}


@pytest.mark.parametrize("key", CHILDREN)
def test_a_fork_equals_training_from_scratch(parent: Path, undisturbed: Fit, tmp_path: Path, key: str) -> None:
    child = CHILDREN[key]
    assert child.burn_in_epochs >= FORKED_AT or not child.is_reweighted
    forked, path = fit(tmp_path / "fork", child, fork=f"{parent}@{FORKED_AT}", dynamics=True)
    scratch, other = undisturbed(child, dynamics=True)
    assert same(scratch, forked)
    assert without_rates(path) == without_rates(other)
    record = open_run(path).record
    assert record["forked_from"] == {"run": "parent", "epoch": FORKED_AT, "recipe_hash": recipe("at").hash()}
    files = [dict(np.load(folder / "dynamics.npz")) for folder in (path, other)]
    assert files[0].keys() == files[1].keys()
    for name, values in files[0].items():
        np.testing.assert_array_equal(values, files[1][name], err_msg=name)


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_fork_killed_before_its_first_epoch_keeps_what_examples_did(
    parent: Path, undisturbed: Fit, tmp_path: Path
) -> None:
    origin = f"{parent}@{FORKED_AT}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainState, "restore", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path / "fork", recipe("mail-at"), fork=origin, dynamics=True)
    fit(tmp_path / "fork", recipe("mail-at"), resume=True, dynamics=True)
    _, whole = undisturbed(recipe("mail-at"), dynamics=True)
    found, expected = (np.load(path / "dynamics.npz") for path in (tmp_path / "fork", whole))
    np.testing.assert_array_equal(found["epochs"], expected["epochs"])
    np.testing.assert_array_equal(found["margin"], expected["margin"])


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_a_fork_is_resumed_like_any_run(parent: Path, undisturbed: Fit, tmp_path: Path, steps: int) -> None:
    origin = f"{parent}@{FORKED_AT}"
    scratch, whole = undisturbed(recipe("mail-at"))
    with pytest.raises(Interrupted):
        fit(tmp_path / "fork", recipe("mail-at"), fork=origin, reporter=StopAfter(steps))
    again = origin if steps == 2 else None
    resumed, path = fit(tmp_path / "fork", recipe("mail-at"), resume=True, fork=again)
    assert same(scratch, resumed)
    assert [row["epoch"] for row in open_run(path).metrics] == list(range(6))
    with pytest.raises(UsageError, match="forked_from"):
        fit(shutil.copytree(whole, tmp_path / "whole"), recipe("mail-at"), resume=True, fork=origin)


def test_a_fork_that_is_compiled_otherwise_says_so_and_its_record_too(tmp_path: Path) -> None:
    """On a CPU too: folding batch norm for the attack rounds otherwise."""
    fit(tmp_path / "parent", recipe("at"), keep_epochs=(FORKED_AT,), compile="off")
    origin = f"{tmp_path / 'parent'}@{FORKED_AT}"
    words = "was trained with --compile off: rounding differs from training from scratch with --compile default"
    said = Listener()
    fit(tmp_path / "fork", recipe("mail-at"), fork=origin, reporter=said, keep_epochs=(5,))
    assert any(words in line for line in said.said)
    record = open_run(tmp_path / "fork").record
    assert (record["compile"], record["forked_from"]["compile"]) == ("default", "off")
    fit(tmp_path / "fork", recipe("mail-at"), fork=origin, resume=True, compile="max-autotune")

    grandchild = Listener()
    fit(tmp_path / "next", recipe("mail-at"), fork=f"{tmp_path / 'fork'}@5", reporter=grandchild)
    assert any("--compile off" in line for line in grandchild.said), "part of it is"

    del record["forked_from"]["compile"]
    open_run(tmp_path / "fork").update_record(forked_from=record["forked_from"])
    fit(tmp_path / "fork", recipe("mail-at"), fork=origin, resume=True)  # a record as earlier versions wrote it

    alike = Listener()
    fit(tmp_path / "alike", recipe("mail-at"), fork=origin, reporter=alike, compile="off")
    assert not any("--compile" in line for line in alike.said)
    assert "compile" not in open_run(tmp_path / "alike").record["forked_from"]


def test_a_fork_knows_how_its_parent_was_compiled_before_it(tmp_path: Path) -> None:
    """What the parent did after the fork does not count, and a record that does not say is not asked."""
    with pytest.raises(Interrupted):
        fit(tmp_path / "parent", recipe("at"), keep_epochs=(1, 4), reporter=StopAfter(5))
    fit(tmp_path / "parent", recipe("at"), keep_epochs=(1, 4), resume=True, compile="off")
    assert open_run(tmp_path / "parent").record["resumes"] == [{"epoch": 1, "batch": 1, "compile": "off"}]
    for epochs, found in ((1, None), (4, "off")):
        fork = parse_fork(f"{tmp_path / 'parent'}@{epochs}")
        assert described(fork, {"compile": "default"}).get("compile") == found
        assert "compile" not in described(fork, {})


def network(width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 2))


def test_a_network_that_has_changed_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    """As where the user's own file was edited since."""
    _, path = fit(tmp_path / "run", recipe("at"), model=network(8), keep_epochs=(FORKED_AT,))
    kept = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    for asked in ({"resume": True}, {"fork": f"{path}@{FORKED_AT}"}):
        out = path if "resume" in asked else tmp_path / "fork"
        with pytest.raises(UsageError, match=r"another network: 1\.bias is \(8,\) there and \(12,\) here"):
            fit(out, recipe("at"), model=network(12), **asked)
    assert not (tmp_path / "fork").exists()
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == kept


def test_a_fork_killed_before_its_first_state_asks_for_its_origin_again(parent: Path, tmp_path: Path) -> None:
    origin = f"{parent}@{FORKED_AT}"
    whole, path = fit(tmp_path / "fork", recipe("mail-at"), fork=origin)
    for state in open_run(path).states():
        state.with_suffix(".json").unlink()
    with pytest.raises(UsageError, match="give --fork DIR/parent@4 again"):
        fit(path, recipe("mail-at"), resume=True)
    again, _ = fit(path, recipe("mail-at"), resume=True, fork=origin)
    assert same(whole, again)


def test_epochs_under_phases_are_compared_as_they_are_trained() -> None:
    """FAT's friendly steps change on the way: the same recipe agrees with itself, a shifted one does not."""
    fat = recipe("fat", epochs=30)
    assert recipe_differences(fat, fat, 30, 4) == []
    later = replace(fat, phases=tuple(replace(p, from_epoch=p.from_epoch + 1) for p in fat.phases))
    first = min(p.from_epoch for p in fat.phases if p.from_epoch > 0)
    assert recipe_differences(fat, later, first, 4) == [] or "tau" in recipe_differences(fat, later, first, 4)[0]
    assert "attack.tau" in recipe_differences(fat, later, 30, 4)[0]


@pytest.mark.parametrize(
    ("child", "words"),
    [
        (recipe("mail-at", burn_in_epochs=2), r"in epoch 2 margin\.name is 'none' there and 'pm_adv' here"),
        (recipe("trades"), r"in epoch 0 .*attack\.loss is 'ce' there and 'kl' here"),
        (recipe("mail-at", lr=0.1), r"in epoch 0 lr is 0\.05 there and 0\.1 here"),
        (recipe("mail-at", lr_milestones=(2, 5)), r"in epoch 2 lr is 0\.05 there and 0\.005"),
        (recipe("mail-at", weight_decay=0.1), r"weight_decay is 0\.0035 there and 0\.1 here"),
        (recipe("mail-at", momentum=0.5), r"momentum is 0\.9 there and 0\.5 here"),
        (recipe("mail-at", batch_size=8), "batch_size is 16 there and 8 here"),
        (recipe("mail-at", ema=EMA()), r"ema is None there and \{'decay': 0\.995\} here"),
        (recipe("at", awp=AWP(warmup_epochs=3)), "in epoch 3 awp is None there"),
        (recipe("mail-at", phases=(replace(JUMP, start_from_epoch=3),)), "epoch 3 is trained there alone"),
        (recipe("at", epochs=4, burn_in_epochs=4, lr_milestones=()), "nothing is left to train after 4 of 4 epochs"),
    ],
)
def test_a_fork_that_would_not_equal_scratch_is_refused_by_name(
    undisturbed: Fit, tmp_path: Path, child: Method, words: str
) -> None:
    _, parent = undisturbed(recipe("at", lr_milestones=(4, 5)), keep_epochs=(FORKED_AT,))
    with pytest.raises(UsageError, match=words):
        fit(tmp_path / "fork", child, fork=f"{parent}@{FORKED_AT}")
    assert not (tmp_path / "fork").exists()


def test_other_data_seeds_and_models_are_refused(parent: Path, tmp_path: Path) -> None:
    parent = Path(shutil.copytree(parent, tmp_path / "parent"))
    origin, out = f"{parent}@{FORKED_AT}", tmp_path / "fork"
    with pytest.raises(UsageError, match="seed is 1 there and 2 here"):
        fit(out, recipe(), fork=origin, seed=2)
    with pytest.raises(UsageError, match="data_fingerprint"):
        fit(out, recipe(), fork=origin, data=blobs(seed=1))
    with pytest.raises(UsageError, match="model is 'small-cnn' there and 'preact-resnet18' here"):
        fit(out, recipe(), fork=origin, model="preact-resnet18")
    with pytest.raises(UsageError, match="validation is None there and 8 here"):
        fit(out, recipe(), fork=origin, validation=8)
    with pytest.raises(UsageError, match=r"label_noise is None there and 'symmetric:0\.1' here"):
        fit(out, recipe(), fork=origin, label_noise="symmetric:0.1")
    with pytest.raises(UsageError, match=r"kept its state after 1 epochs .*--keep-epochs 1"):
        fit(out, recipe(), fork=f"{parent}@1")
    with pytest.raises(UsageError, match="RUN@EPOCH"):
        fit(out, recipe(), fork=str(parent))
    with pytest.raises(UsageError, match="there is no run at"):
        fit(out, recipe(), fork="nowhere@4")
    with pytest.raises(UsageError, match="give one"):
        fit(out, recipe(), fork=origin, checkpoint=parent / "checkpoints" / "state-0004.safetensors")
    damaged = parent / "checkpoints" / "state-0004.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x00")
    with pytest.raises(UsageError, match="damaged"):
        fit(out, recipe(), fork=origin)
    assert not out.exists()


@pytest.mark.parametrize("every", [None, 2])
def test_the_best_so_far_of_a_fork_is_that_of_scratch(
    tmp_path: Path, every: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a child's burn-in ends its parent may have looked at held-out images where the child would not."""
    let_accuracy_fall(monkeypatch)
    held: dict[str, Any] = {"validation": 20, "validation_every": every}
    fit(tmp_path / "parent", recipe("at"), keep_epochs=(2, FORKED_AT), **held)
    fit(tmp_path / "fork", recipe("mail-at"), fork=f"{tmp_path / 'parent'}@{FORKED_AT}", **held)
    fit(tmp_path / "scratch", recipe("mail-at"), **held)
    assert without_rates(tmp_path / "fork") == without_rates(tmp_path / "scratch")
    bests = [json.loads((tmp_path / run / "checkpoints" / "best.json").read_text()) for run in ("fork", "scratch")]
    assert bests[0]["best"] == bests[1]["best"]
    assert bests[0]["sha256"] == bests[1]["sha256"]


def test_a_fork_where_patience_would_have_run_out_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look is the best here, so that patience p ends a run after epoch 1 + p."""
    let_accuracy_fall(monkeypatch)
    held: dict[str, Any] = {"validation": 20, "validation_every": 1}
    _, parent = fit(tmp_path / "parent", recipe("at"), keep_epochs=(2, FORKED_AT), **held)
    words = (
        "with --early-stopping 2 training from scratch ends after epoch 3, so nothing is left to train after 4; "
        "fork .*parent at an epoch before 3, or give --early-stopping 4$"
    )
    with pytest.raises(UsageError, match=words):
        fit(tmp_path / "fork", recipe("at"), fork=f"{parent}@{FORKED_AT}", early_stopping=2, **held)
    with pytest.raises(UsageError, match="--early-stopping 3 training from scratch ends after epoch 4"):
        fit(tmp_path / "fork", recipe("at"), fork=f"{parent}@{FORKED_AT}", early_stopping=3, **held)
    assert not (tmp_path / "fork").exists()
    for number, (epochs, patience) in enumerate(((FORKED_AT, 4), (2, 2))):
        named = {"fork": tmp_path / f"fork-{number}", "scratch": tmp_path / f"scratch-{number}"}
        fit(named["fork"], recipe("at"), fork=f"{parent}@{epochs}", early_stopping=patience, **held)
        fit(named["scratch"], recipe("at"), early_stopping=patience, **held)
        assert without_rates(named["fork"]) == without_rates(named["scratch"])
        assert len(without_rates(named["fork"])) == 1 + patience


def without_times(path: Path) -> dict[str, Any]:
    return {key: value for key, value in json.loads(path.read_text()).items() if key != "seconds"}


def test_a_fork_keeps_the_states_that_scratch_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child looks at held-out images every second epoch, its parent at every one."""
    let_accuracy_fall(monkeypatch)
    mail = recipe("mail-at", burn_in_epochs=1)
    _, parent = fit(tmp_path / "parent", mail, keep_epochs=(2, 3, 5), validation=20, validation_every=1)
    listener = Listener()
    asked: dict[str, Any] = {"keep_epochs": (2, 3), "validation": 20, "validation_every": 2}
    child = replace(mail, lr_milestones=(4,))
    fit(tmp_path / "fork", child, fork=f"{parent}@5", reporter=listener, **asked)
    fit(tmp_path / "scratch", child, **asked)
    folders = [tmp_path / name / "checkpoints" for name in ("fork", "scratch")]
    found = [{path.name: without_times(path) for path in folder.glob("*.json")} for folder in folders]
    assert found[0] == found[1]
    assert {"state-0001.json", "state-0002.json", "state-0003.json", "best.json"} < found[0].keys()
    assert not [line for line in listener.said if "not kept" in line]


def test_a_state_that_the_parent_has_not_kept_is_named(parent: Path, tmp_path: Path) -> None:
    listener = Listener()
    fit(tmp_path / "fork", recipe("at"), fork=f"{parent}@{FORKED_AT}", keep_epochs=(2, 5), reporter=listener)
    assert f"{parent} has not kept its state after 2 epochs: it is not kept here" in listener.said
    assert not (tmp_path / "fork" / "checkpoints" / "state-0002.json").exists()


@pytest.mark.parametrize("monitor", [None, "pgd-20:16,cw:16", "pgd-20:8"])
def test_a_fork_has_the_numbers_of_its_own_monitors_alone(
    undisturbed: Fit, tmp_path: Path, monitor: str | None
) -> None:
    _, parent = undisturbed(recipe("at"), keep_epochs=(FORKED_AT,), monitor="pgd-20:16", monitor_every=1)
    asked: dict[str, Any] = {"monitor": monitor, "monitor_every": 2}
    fit(tmp_path / "fork", recipe("at"), fork=f"{parent}@{FORKED_AT}", **asked)
    fit(tmp_path / "scratch", recipe("at"), **asked)
    rows, whole = (without_rates(tmp_path / name) for name in ("fork", "scratch"))
    assert rows[FORKED_AT:] == whole[FORKED_AT:]
    inherited = {"pgd-20"} if "pgd-20:16" in (monitor or "") else set()
    for row, expected in zip(rows[:FORKED_AT], whole, strict=False):
        numbers: Any = expected.pop("monitors", {})
        known = {name: value for name, value in numbers.items() if name in inherited}
        assert row == expected | ({"monitors": known} if known else {})


def test_numbers_of_a_monitor_that_a_resume_has_changed_are_left_out(tmp_path: Path) -> None:
    out = tmp_path / "parent"
    with pytest.raises(Interrupted):
        fit(out, recipe("at"), reporter=StopAfter(6), monitor="pgd-20:8,cw:8", monitor_every=1)
    fit(out, recipe("at"), resume=True, keep_epochs=(FORKED_AT,), monitor="pgd-20:16,cw:8", monitor_every=1)
    fork = f"{out}@{FORKED_AT}"
    _, path = fit(tmp_path / "fork", recipe("at"), fork=fork, monitor="pgd-20:16,cw:8", monitor_every=1)
    looks = [sorted(row["monitors"]) for row in open_run(path).metrics]
    assert looks == [["cw"]] * FORKED_AT + [["cw", "pgd-20"]] * 2


def test_the_record_tells_a_forks_own_seconds_from_the_whole(parent: Path, tmp_path: Path) -> None:
    facts = json.loads((parent / "checkpoints" / f"state-{FORKED_AT:04d}.json").read_text())
    with pytest.raises(Interrupted):
        fit(tmp_path / "fork", recipe("mail-at"), fork=f"{parent}@{FORKED_AT}", reporter=StopAfter(3))
    _, path = fit(tmp_path / "fork", recipe("mail-at"), resume=True)
    record = open_run(path).record
    assert record["train_seconds_before_fork"] == round(facts["seconds"], 3) > 0
    assert record["train_seconds_after_fork"] > 0
    parts = record["train_seconds_before_fork"] + record["train_seconds_after_fork"]
    assert record["train_seconds"] == pytest.approx(parts, abs=0.002)
    assert not [name for name in open_run(parent).record if name.endswith("_fork")]
