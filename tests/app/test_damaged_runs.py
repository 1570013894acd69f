"""JSON of a wrong shape in a run's folder: one line that names the file, exit code 2, every file as it was."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from program import Program, program as program
from trained_run import trained as trained

from probmargin import api as pm
from probmargin.core.errors import UsageError
from probmargin.engine.shapes import misfit_audit, misfit_epoch, misfit_evaluation, misfit_record
from probmargin.evaluation.places import merge
from probmargin.experiments.records import read_records
from probmargin.reporting.folder import read_folder

TRAIN = "train --data digits --model small-cnn --device cpu --method at --epochs 2 --seed 0".split()
SHORT = "--set attack.num_steps=2 --set attack.eps=0.05".split()
LONGER = "--epochs 3 --set lr_milestones=1,2".split()
COMMANDS: dict[str, tuple[str, ...]] = {
    "evaluate": ("evaluate", "run", "--attacks", "nat", "--num-examples", "8"),
    "audit": ("audit", "run", "--num-examples", "8"),
    "report": ("report", "run", "-o", "r.html", "--images", "0"),
    "inspect": ("inspect", "run"),
    "export": ("export", "run", "--format", "safetensors", "-o", "m.safetensors", "--num-examples", "4"),
    "resume": (*TRAIN, *SHORT, "--out", "run", "--resume"),
    "fork": (*TRAIN, *SHORT, *LONGER, "--out", "other", "--fork", "run@2"),
    "watch": ("watch", "run", "--once"),
}
WRONG: list[Any] = [[], {}, 5, "x", None]


def changed(path: Path, **fields: Any) -> None:
    """Replace fields of a JSON file, or leave them out where the value is `...`."""
    plain = {**json.loads(path.read_text(encoding="utf-8")), **fields}
    kept = {name: value for name, value in plain.items() if value is not ...}
    path.write_text(json.dumps(kept), encoding="utf-8")


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_record_of_another_shape(program: Program, trained: Path, command: str, wrong: Any) -> None:
    shutil.copytree(trained, "run")
    Path("run/record.json").write_text(json.dumps(wrong), encoding="utf-8")
    program.refuses("run/record.json is damaged (", *COMMANDS[command])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("data", ...),
        ("data", [1]),
        ("model", ...),
        ("model", {}),
        ("seed", "one"),
        ("recipe", []),
        ("recipe_hash", 5),
        ("model_settings", {"num_classes": "ten", "in_channels": 1}),
        ("image_shape", 8),
        ("evaluation", {"norm": "Linf", "eps": 0.1, "nat": {"interval": 5}}),
    ],
)
def test_a_record_with_a_wrong_field(program: Program, trained: Path, field: str, value: Any) -> None:
    shutil.copytree(trained, "run")
    changed(Path("run/record.json"), **{field: value})
    for command in ("evaluate", "report", "export"):
        program.refuses(f"run/record.json is damaged ({field}", *COMMANDS[command])


def test_weights_that_do_not_fit_the_record(program: Program, trained: Path) -> None:
    shutil.copytree(trained, "run")
    changed(Path("run/record.json"), model_settings={"num_classes": 3, "in_channels": 1})
    program.refuses("do not fit small-cnn as its record.json describes it", *COMMANDS["evaluate"])


@pytest.mark.parametrize("wrong", [*WRONG, {"epochs": "two"}, {"method": "at", "attack": {"name": []}}], ids=repr)
@pytest.mark.parametrize("command", ["evaluate", "export", "fork"])
def test_a_recipe_of_another_shape(program: Program, trained: Path, command: str, wrong: Any) -> None:
    shutil.copytree(trained, "run")
    Path("run/recipe.json").write_text(json.dumps(wrong), encoding="utf-8")
    program.refuses("run/recipe.json", *COMMANDS[command])


@pytest.mark.parametrize("wrong", [*WRONG, {"norm": "Linf"}, {"norm": "Linf", "eps": "x"}], ids=repr)
def test_an_evaluation_of_another_shape(program: Program, trained: Path, wrong: Any) -> None:
    shutil.copytree(trained, "run")
    Path("run/evaluation.json").write_text(json.dumps(wrong), encoding="utf-8")
    program.refuses("run/evaluation.json is damaged", *COMMANDS["export"])
    assert program(*COMMANDS["report"]).code == 0
    assert "evaluation.json cannot be read and is left out" in Path("r.html").read_text(encoding="utf-8")
    assert program(*COMMANDS["evaluate"]).code == 0, "a new evaluation takes the place of a damaged one"
    assert not misfit_evaluation(json.loads(Path("run/evaluation.json").read_text(encoding="utf-8")))


LINES = ["[1]", "5", "null", "{}", '{"epoch": "x"}', '{"epoch": 0, "monitors": 5}', '{"epoch": 0, "validation": {}}']


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("command", ["resume", "fork", "watch"])
def test_metrics_with_a_wrong_line(program: Program, trained: Path, command: str, line: str) -> None:
    shutil.copytree(trained, "run")
    path = Path("run/metrics.jsonl")
    path.write_text(f"{line}\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    program.refuses("run/metrics.jsonl is damaged in line 1", *COMMANDS[command])
    assert read_folder("run").damaged == ("metrics.jsonl",)


def test_only_the_last_line_of_metrics_may_be_cut(trained: Path, tmp_path: Path) -> None:
    run = pm.open_run(shutil.copytree(trained, tmp_path / "run"))
    whole = run.metrics_path.read_text(encoding="utf-8")
    run.metrics_path.write_text(f'{whole}{{"epoch": 2, "lo', encoding="utf-8")
    assert len(run.metrics) == 2
    run.metrics_path.write_text(f'{{"epoch": 0, "lo\n{whole}', encoding="utf-8")
    with pytest.raises(UsageError, match=r"metrics\.jsonl is damaged in line 1 .*; repair or delete that line"):
        run.metrics  # noqa: B018


@pytest.mark.parametrize("wrong", [*WRONG, {"epoch": "x", "batch": 0, "seconds": 1, "images": 1}], ids=repr)
def test_states_of_another_shape(program: Program, trained: Path, wrong: Any) -> None:
    shutil.copytree(trained, "run")
    for path in Path("run/checkpoints").glob("state-*.json"):
        path.write_text(json.dumps(wrong), encoding="utf-8")
    for command in ("evaluate", "export", "resume"):
        program.refuses("empty its checkpoints folder", *COMMANDS[command])
    program.refuses("state-0002.json is damaged", *COMMANDS["fork"])


def test_records_that_a_table_is_made_of(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "bench.json").write_text('{"gpu": "H200"}', encoding="utf-8")
    assert len(read_records([tmp_path])) == 1, "what is no record is passed over"
    (tmp_path / "run" / "record.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UsageError, match=r"run/record\.json is damaged \(it is a list\); bring back a copy"):
        read_records([tmp_path])
    with pytest.raises(UsageError, match=r"run/record\.json is damaged"):
        pm.open_run(tmp_path / "run")


def test_shards_are_not_joined_into_a_damaged_run(program: Program, trained: Path) -> None:
    shutil.copytree(trained, "run")
    for shard in ("1/2", "2/2"):
        assert program(*COMMANDS["evaluate"], "--shard", shard).code == 0
    Path("run/record.json").write_text("[]", encoding="utf-8")
    program.refuses("run/record.json is damaged", "merge", "run")
    shutil.copy(trained / "record.json", "run/record.json")
    assert merge(Path("run"))[0]["num_examples"] == 8


def test_files_as_they_are_written_fit(program: Program, trained: Path) -> None:
    shutil.copytree(trained, "run")
    assert program("evaluate", "run", "--attacks", "nat,pgd-2", "--num-examples", "8").code == 0
    assert program(*COMMANDS["audit"]).code == 0
    found = {
        name: json.loads(Path(f"run/{name}.json").read_text("utf-8")) for name in ("record", "evaluation", "audit")
    }
    assert misfit_record(found["record"]) == ""
    assert misfit_evaluation(found["evaluation"]) == ""
    assert misfit_audit(found["audit"]) == ""
    assert all(misfit_epoch(row) == "" for row in pm.open_run("run").metrics)


def test_dynamics_that_cannot_be_read(program: Program, trained: Path) -> None:
    shutil.copytree(trained, "run")
    Path("run/dynamics.npz").write_bytes(b"PK")
    program.refuses("run/dynamics.npz cannot be read", *COMMANDS["fork"], "--dynamics")
    program.refuses("run/dynamics.npz cannot be read", *COMMANDS["inspect"])


def test_wrong_labels_that_are_not_known_are_not_taken_for_right(program: Program) -> None:
    """Without its file a run with wrong labels would be told by the labels of its data, as if none were wrong."""
    assert program(*TRAIN, *SHORT, "--label-noise", "symmetric:0.2", "--dynamics", "--out", "run").code == 0
    path = Path("run/label_noise.npz")
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    program.refuses("run/label_noise.npz is damaged (", *COMMANDS["inspect"])
    np.savez(path, index=np.arange(3), labels=np.arange(3), is_wrong=np.zeros(2, bool))
    program.refuses("is damaged (its arrays are not of one length)", *COMMANDS["inspect"])
    path.unlink()
    program.refuses("run/label_noise.npz is missing, so nobody knows which labels", *COMMANDS["inspect"])
    assert program(*COMMANDS["report"]).code == 0
    page = Path("r.html").read_text(encoding="utf-8")
    assert "label_noise.npz cannot be read and is left out." in page
    assert "Which classes gain" not in page
    path.write_bytes(whole)
    assert "Wrong labels" in program(*COMMANDS["inspect"]).out
    assert program(*COMMANDS["report"]).code == 0
    assert "were made wrong on purpose" in Path("r.html").read_text(encoding="utf-8")


def test_dynamics_whose_arrays_do_not_fit(program: Program) -> None:
    assert program(*TRAIN, *SHORT, "--dynamics", "--out", "run").code == 0
    with np.load("run/dynamics.npz") as file:
        arrays = dict(file)
    np.savez("run/dynamics.npz", **arrays | {"weight": arrays["weight"][:, :10]})
    program.refuses("run/dynamics.npz cannot be read (its arrays do not fit each other)", *COMMANDS["inspect"])
    assert program(*COMMANDS["report"]).code == 0
    assert "Margins and weights of single images were not kept" in Path("r.html").read_text(encoding="utf-8")


def test_a_fork_that_lacks_its_best_state_leaves_nothing(program: Program) -> None:
    held = (*TRAIN, "--set", "attack.num_steps=1", "--validation", "100", "--validation-every", "1")
    assert program(*held, "--out", "run", "--keep-epochs", "2").code == 0
    for path in Path("run/checkpoints").glob("best.*"):
        path.unlink()
    changed_rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    changed_rows[0]["validation"] = {"natural_accuracy": 1.0, "robust_accuracy": 1.0}
    Path("run/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed_rows), encoding="utf-8")
    for path in Path("run/checkpoints").glob("state-0001.*"):
        path.unlink()
    program.refuses("has not kept its best state, after 1 epochs", *held, *LONGER, "--out", "b", "--fork", "run@2")
