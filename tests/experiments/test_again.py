"""A command started again: what counts as done, what is judged for whom, and what is said of the rest."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from experiment_helpers import QUICK, TINY, use_tiny

from probmargin.core.errors import Interrupted, UsageError
from probmargin.evaluation.subject import EvaluationRequest, evaluate_subject
from probmargin.experiments import catalogue, reproduce as module, work
from probmargin.experiments.experiment import Column, Experiment, Row
from probmargin.experiments.figure1c import FIGURE1C
from probmargin.experiments.figure4 import FIGURE4
from probmargin.experiments.grid import full_recipe
from probmargin.experiments.records import failures
from probmargin.experiments.reliability import RELIABILITY
from probmargin.experiments.reproduce import dry_run, make_plan, render, reproduce
from probmargin.experiments.request import ReproduceRequest
from probmargin.experiments.study import Bench
from probmargin.experiments.table2 import TABLE2
from probmargin.reporting.cells import evaluations
from probmargin.runs.run import Run
from probmargin.training.progress import Reporter
from probmargin.training.request import TrainRequest
from probmargin.training.train import train

ID = "digits-small-cnn-at-s1"
MORE = Experiment(
    name="more",
    title="More",
    claim="It shares a run.",
    rows=(Row(id="at", method="at", settings=QUICK), Row(id="mail-at", method="mail-at", settings={"lr": 0.05})),
    columns=(Column("PGD", "pgd-2"), Column("PGD-3", "pgd-3")),
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_tiny(monkeypatch, tmp_path)
    monkeypatch.setattr(catalogue, "EXPERIMENTS", {"tiny": (TINY,), "more": (MORE,)})
    monkeypatch.setattr(catalogue, "_SINGLE", (TINY, MORE))


def request(**changes: Any) -> ReproduceRequest:
    settings: dict[str, Any] = {"name": "tiny", "scale": "smoke", "device": "cpu", "only": ("at",)}
    return ReproduceRequest(**{**settings, **changes})


def go(**changes: Any) -> tuple[list[str], list[str]]:
    said: list[str] = []
    failed = reproduce(request(**changes), said.append)
    return said, [outcome.id for outcome in failed]


def rendered(**changes: Any) -> str:
    said: list[str] = []
    render(request(**changes), said.append)
    return "\n".join(said)


def run() -> Run:
    return Run(Path("runs/reproduce") / ID)


def judge(attacks: str = "nat,pgd-2", **changes: Any) -> None:
    evaluate_subject(EvaluationRequest(run=run().path, attacks=tuple(attacks.split(",")), **changes), lambda _: None)


def cut_short() -> None:
    """Leave the run as one that was stopped after its first epoch."""
    for path in run().states():
        if path.name == "state-0002":
            path.with_suffix(".json").unlink()
    record = run().record
    for key in ("train_seconds", "weights", "evaluation", "evaluations"):
        record.pop(key, None)
    run().record_path.write_text(json.dumps(record), encoding="utf-8")
    Path(f"runs/reproduce/records/{ID}.json").unlink()


def test_a_half_trained_run_that_was_judged_is_neither_done_nor_in_the_table() -> None:
    go()
    whole = run().record
    cut_short()
    judge()
    half = run().record["evaluation"]
    assert half["weights"] != whole["evaluation"]["weights"]
    assert [entry.state for entry in make_plan(request())] == ["half done: 1 of 2 epochs"]
    text = rendered()
    assert f"`at`: record {ID} refused: training is not finished" in text
    assert "| `at` | - |" in text

    said, failed = go()
    assert failed == []
    assert f"{ID}: done" in said
    found = run().record
    assert found["weights"] == found["evaluation"]["weights"] == whole["evaluation"]["weights"]
    assert found["evaluation"]["pgd-2"]["correct"] == whole["evaluation"]["pgd-2"]["correct"]
    assert half["weights"] not in json.dumps(found)
    assert json.loads(Path(f"runs/reproduce/records/{ID}.json").read_text(encoding="utf-8")) == found


def test_numbers_of_before_the_training_ended_do_not_count() -> None:
    go()
    cut_short()
    judge()
    (entry,) = make_plan(request())
    task = entry.task
    train(
        task.recipe, work._load(task.data, None), TrainRequest(out=run().path, model=task.model, resume=True), quiet()
    )
    assert task.is_trained
    assert not task.is_judged
    assert "so it was judged before its training ended" in rendered()


def quiet() -> Reporter:
    return Reporter(quiet=True)


@pytest.mark.parametrize(
    "later", [{"eps": "0.1"}, {"num_examples": 20}, {"seed": 3}, {"protocol": "standard"}, {"search_precision": "tf32"}]
)
def test_a_later_look_does_not_blank_a_row(later: dict[str, Any]) -> None:
    go()
    before = rendered()
    judge("nat", **later)
    assert rendered() == before
    for copy in Path("runs/reproduce/records").glob("*.json"):
        copy.unlink()
    assert rendered() == before
    (entry,) = make_plan(request())
    assert entry.is_done
    assert len(run().record["evaluations"]) == 1
    judge("nat")
    assert run().record["evaluation"]["eps"] == 0.15
    assert {"nat", "pgd-2"} <= run().record["evaluation"].keys()
    assert rendered() == before


def test_a_run_is_judged_for_every_experiment_that_shares_it() -> None:
    (entry,) = make_plan(request())
    assert [column.attack for column in entry.task.columns] == ["nat", "pgd-2", "pgd-3"]
    (other,) = make_plan(request(name="more"))
    assert [column.attack for column in other.task.columns] == ["pgd-2", "pgd-3", "nat"]
    (apart,) = make_plan(request(only=("mail-at",)))
    assert [column.attack for column in apart.task.columns] == ["nat", "pgd-2"], "another recipe of the same name"
    go(keep_records=Path("results"))
    (found,) = make_plan(request(name="more", out=Path("elsewhere")))
    assert found.is_done


def test_the_tables_of_the_paper_share_their_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    for name, row in (("table1", "gairat"), ("table2", "gairat"), ("table6", "mail-trades")):
        entry = next(entry for entry in make_plan(request(name=name, scale="full", only=(row,), trials=1)))
        assert {column.attack for column in entry.task.columns} == {"nat", "pgd-100", "apgd-ce", "cw", "aa"}
    row = "mail-trades-official-2021"
    (entry,) = make_plan(request(name="table2", scale="full", only=(row,), trials=1))
    assert [column.protocol for column in entry.task.columns if column.attack == "aa"] == ["standard", "official-1000"]


def test_a_record_that_lacks_columns_is_named_where_its_run_is_not_here() -> None:
    go(keep_records=Path("results"))
    path = Path(f"results/{ID}.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    del record["evaluation"]["pgd-2"]
    path.write_text(json.dumps(record), encoding="utf-8")
    (entry,) = make_plan(request(out=Path("elsewhere")))
    assert entry.state == f"to do: record {ID} lacks PGD, and its run is not here"


def test_a_damaged_record_is_said_in_the_table_and_in_the_plan() -> None:
    go(keep_records=Path("results"))
    path = Path(f"results/{ID}.json")
    path.write_text(path.read_text(encoding="utf-8")[:300], encoding="utf-8")
    text = rendered(out=Path("elsewhere"))
    assert f"{path} is damaged" in text.splitlines()[0]
    assert f"- `at`: {ID} failed: {path} is damaged" in text
    said: list[str] = []
    dry_run(request(out=Path("elsewhere")), said.append)
    assert said[0].startswith(f"{path} is damaged")


def test_a_warm_started_run_in_the_folder_is_not_taken() -> None:
    (entry,) = make_plan(request())
    task = entry.task
    data = work._load(task.data, None)
    first, _ = train(task.recipe, data, TrainRequest(out=Path("first"), model=task.model, device="cpu"), quiet())
    weights = first.checkpoints_path / "state-0002.safetensors"
    asked = TrainRequest(out=task.run.path, model=task.model, device="cpu", checkpoint=weights)
    train(task.recipe, data, asked, quiet())
    judge()
    (entry,) = make_plan(request())
    assert not entry.is_done
    said, failed = go()
    assert failed == [ID]
    assert "is not the run that is wanted: it started from the weights of another training (--checkpoint)" in said[1]
    assert f"record {ID} refused: it started from the weights" in said[-1]

    # Nor is what branches off from it.
    asked = TrainRequest(out=Path("fork"), model=task.model, device="cpu", fork=f"{task.run.path}@1")
    child, _ = train(task.recipe, data, asked, quiet())
    assert child.record["forked_from"]["checkpoint"] == run().record["checkpoint"]
    (entry,) = make_plan(request(only=("mail-at",)))
    assert entry.task.parent is None


def test_the_half_whose_data_is_there_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROBMARGIN_DATA", raising=False)
    tasks = [replace(make_plan(request())[0].task, id=f"{name}-s1", data=name) for name in ("svhn", "digits")]
    begun: list[str] = []
    monkeypatch.setattr(module, "run_in_turn", lambda tasks, *_: begun.extend(task.id for task in tasks))
    said: list[str] = []
    failed = module._carry_out(tasks, request(data_dir=Path("empty")), said.append, keep=False)
    assert begun == ["digits-s1"]
    assert [outcome.id for outcome in failed] == ["svhn-s1"]
    assert len(said) == 1
    assert said[0].startswith("left out, 1 run on svhn: ")
    assert failures(Path("runs/reproduce"))["svhn-s1"].startswith("no data: ")
    with pytest.raises(UsageError, match="svhn"):
        module._carry_out(tasks[:1], request(data_dir=Path("empty")), said.append, keep=False)


def test_a_record_of_before_is_kept_when_that_is_asked_for_later() -> None:
    go()
    assert go(keep_records=Path("kept"))[1] == []
    copy = Path(f"kept/{ID}.json")
    assert json.loads(copy.read_text(encoding="utf-8")) == run().record
    assert Path(f"kept/{ID}.metrics.jsonl").exists()
    copy.write_text(copy.read_text(encoding="utf-8").rstrip(), encoding="utf-8")
    before = copy.read_bytes()
    go(keep_records=Path("kept"))
    assert copy.read_bytes() == before, "what is kept is left as it is"


def test_what_was_judged_later_reaches_the_record_that_is_kept() -> None:
    go(keep_records=Path("kept"))
    copy = Path(f"kept/{ID}.json")
    judge("nat,pgd-1", protocol="standard")
    assert "pgd-1" not in copy.read_text(encoding="utf-8")
    go(keep_records=Path("kept"))
    kept = json.loads(copy.read_text(encoding="utf-8"))
    assert any("pgd-1" in entry for entry in evaluations(kept))


def test_curves_that_a_kill_left_out_are_kept_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "keep_curves", killed)
        with pytest.raises(Interrupted):
            go(keep_records=Path("kept"))
    curves = Path(f"kept/{ID}.metrics.jsonl")
    assert Path(f"kept/{ID}.json").exists()
    assert not curves.exists()
    assert go(keep_records=Path("kept"))[1] == []
    assert curves.read_bytes() == run().metrics_path.read_bytes()


def test_curves_of_another_training_are_not_put_beside_a_kept_record() -> None:
    go(keep_records=Path("kept"))
    curves = Path(f"kept/{ID}.metrics.jsonl")
    before = curves.read_bytes()
    run().metrics_path.write_text("{}\n", encoding="utf-8")
    half = {key: value for key, value in run().record.items() if key not in ("train_seconds", "evaluation")}
    run().record_path.write_text(json.dumps({**half, "weights": "others"}), encoding="utf-8")
    assert go(keep_records=Path("kept"))[1] == []
    assert curves.read_bytes() == before


def test_curves_are_kept_with_records_and_figures_find_them() -> None:
    go(keep_records=Path("results"))
    kept = Path(f"results/{ID}.metrics.jsonl")
    assert kept.read_text(encoding="utf-8") == run().metrics_path.read_text(encoding="utf-8")
    assert not Path(f"runs/reproduce/records/{ID}.metrics.jsonl").exists()

    lines = [{"epoch": epoch, "monitors": {"pgd-20": 0.5, "cw": 0.4 + 0.01 * epoch}} for epoch in range(3)]
    for name in FIGURE1C.rows:
        row = next(row for row in TABLE2.rows if row.id == name)
        base = Path(f"results/cifar10-resnet18-{name}-s1")
        record = {"id": base.name, "recipe": full_recipe(TABLE2, row).plain(), "seed": 1, "data": "cifar10"}
        record |= {"model": "resnet18", "train_seconds": 1.0, "monitors": {"counts": {"pgd-20": 100, "cw": 100}}}
        base.with_suffix(".json").write_text(json.dumps(record), encoding="utf-8")
        base.with_suffix(".metrics.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    bench = Bench(scale="full", out=Path("runs"), execute=lambda _: [], say=lambda _: None)
    assert FIGURE1C.tasks(bench) == []
    found = FIGURE1C.measure(bench)
    assert found["ends"]["gairat"] == {"pgd-20": 0.5, "cw": pytest.approx(0.42)}
    with pytest.raises(UsageError, match="only record and curves are kept, in results, and not its weights"):
        bench.run("at").load_model()
    # What needs weights trains again where curves alone are kept.
    assert [task.id for task in FIGURE4.tasks(bench)] == ["cifar10-resnet18-at-s1"]
    assert {task.recipe.method for task in RELIABILITY.tasks(bench)} == set(RELIABILITY.rows)
