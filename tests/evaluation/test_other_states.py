"""A state of a run that is not its last, such as the best on held-out images, is judged, audited and exported."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from probmargin import api as pm
from probmargin.cli.judge import evaluate
from probmargin.core.errors import UsageError
from probmargin.data.digits import load_digits
from probmargin.engine import checkpoints
from probmargin.evaluation.parts import weights_hash
from probmargin.evaluation.run_audit import audit_subject
from probmargin.evaluation.subject import EvaluationRequest, evaluate_subject
from probmargin.runs.run import Run, open_run
from probmargin.training.progress import chosen_line


def silent(_: str) -> None:
    pass


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A run that has kept the state after its first epoch as the best."""
    path = shutil.copytree(trained, tmp_path / "run")
    for suffix in (".json", ".safetensors"):
        shutil.copy(path / "checkpoints" / f"state-0001{suffix}", path / "checkpoints" / f"best{suffix}")
    return path


@pytest.fixture
def best(run: Path) -> Path:
    return run / "checkpoints" / "best.safetensors"


def asked(run: Path, **more: object) -> EvaluationRequest:
    return EvaluationRequest(run=run, attacks=("nat",), device="cpu", **more)  # type: ignore[arg-type]


def test_another_state_is_judged_and_the_runs_own_results_stay(run: Path, best: Path, tmp_path: Path) -> None:
    last, _ = evaluate_subject(asked(run), silent)
    before = {path.name: path.read_bytes() for path in run.glob("*.json")}
    out = run / "best.evaluation.json"
    found, path = evaluate_subject(asked(run, checkpoint=best, out=out), silent)
    assert path == out
    model = Run(run).rebuild(checkpoints.load(best).part("model"))
    test = load_digits().test
    with torch.no_grad():
        share = (model(test.floats()).argmax(1) == test.labels).double().mean()
    assert found["nat"]["accuracy"] == pytest.approx(float(share))
    assert found["weights"] == weights_hash(model) != last["weights"]
    assert found["eps"] == last["eps"], "the run's own radius"
    assert {path.name: path.read_bytes() for path in run.glob("*.json") if path != out} == before


def test_another_state_is_audited(run: Path, best: Path, tmp_path: Path) -> None:
    request = asked(run, checkpoint=best, out=tmp_path / "audit.json", num_examples=5)
    result, _ = audit_subject(request, None, silent)
    assert result["weights"] == weights_hash(Run(run).load_model(best)[0])
    assert not (run / "audit.json").exists()


@pytest.mark.parametrize("out", [None, "evaluation.json", "audit.json"])
def test_results_of_another_state_do_not_take_the_place_of_the_runs(run: Path, best: Path, out: str | None) -> None:
    request = asked(run, checkpoint=best, out=run / out if out else None)
    with pytest.raises(UsageError, match="are of its last state: give an --out FILE"):
        _ = audit_subject(request, None, silent) if out == "audit.json" else evaluate_subject(request, silent)


def test_weights_of_another_run_are_no_state_of_this_one(run: Path, trained: Path, tmp_path: Path) -> None:
    other = trained / "checkpoints" / "state-0001.safetensors"
    with pytest.raises(UsageError, match=r"is no state of .* which has best, state-0001, state-0002; name a file"):
        evaluate_subject(asked(run, checkpoint=other, out=tmp_path / "a.json"), silent)


def test_a_damaged_state_is_refused(run: Path, best: Path, tmp_path: Path) -> None:
    best.write_bytes(best.read_bytes()[:-1])
    with pytest.raises(UsageError, match="checksum differs"):
        evaluate_subject(asked(run, checkpoint=best, out=tmp_path / "a.json"), silent)


def test_another_state_is_exported_with_its_own_epochs(run: Path, best: Path, tmp_path: Path) -> None:
    evaluate_subject(asked(run), silent)
    said: list[str] = []
    out = pm.export(run, tmp_path / "best.safetensors", checkpoint=best, num_examples=5, log=said.append)
    assert weights_hash(pm.load_model(out)) == weights_hash(Run(run).load_model(best)[0])
    card = json.loads((tmp_path / "best.safetensors.card.json").read_text(encoding="utf-8"))
    assert card["training"]["epochs"] == 1
    assert card["accuracy"] == [], "what was measured is of the last state"
    assert f"evaluate {run} --checkpoint {best} --out FILE.json --attacks" in card["not_measured"][0]
    assert card["not_measured"][0].endswith("then export with --results FILE.json")
    assert not any("audit" in line for line in card["not_measured"]), "an audit of the run is of its last state"
    assert any("of another state" in line for line in said)
    assert not any("judge it with" in line for line in said), "that would judge the last state again"


def test_results_of_another_state_enter_its_card(run: Path, best: Path, tmp_path: Path) -> None:
    file = tmp_path / "best.json"
    found, _ = evaluate_subject(asked(run, checkpoint=best, out=file), silent)
    out = pm.export(run, tmp_path / "best.safetensors", checkpoint=best, results=file, num_examples=5)
    card = json.loads(Path(f"{out}.card.json").read_text(encoding="utf-8"))
    assert [(row["attack"], row["accuracy"]) for row in card["accuracy"]] == [("nat", found["nat"]["accuracy"])]
    assert [line.split(":")[0] for line in card["not_measured"]] == ["robust accuracy"]


def test_results_of_other_weights_or_images_do_not_enter_a_card(run: Path, best: Path, tmp_path: Path) -> None:
    file, target = tmp_path / "best.json", tmp_path / "net.safetensors"
    found, _ = evaluate_subject(asked(run, checkpoint=best, out=file), silent)
    with pytest.raises(UsageError, match="is of other weights; evaluate the state that is exported, by --checkpoint"):
        pm.export(run, target, results=file)
    with pytest.raises(UsageError, match=r"there are no results .*absent\.json; write them with: probmargin evaluate"):
        pm.export(run, target, checkpoint=best, results=tmp_path / "absent.json")
    file.write_text(json.dumps(found | {"data_fingerprint": "0" * 16}), encoding="utf-8")
    with pytest.raises(UsageError, match="is of other images than the run's; evaluate it without --data"):
        pm.export(run, target, checkpoint=best, results=file)
    assert not target.exists()


def test_results_that_do_not_name_their_weights_are_not_of_another_state(run: Path, best: Path, tmp_path: Path) -> None:
    evaluate_subject(asked(run), silent)
    path = run / "evaluation.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    del found["weights"]
    path.write_text(json.dumps(found), encoding="utf-8")
    for state, count in ((best, 0), (None, 1)):
        out = pm.export(run, tmp_path / f"{count}.safetensors", checkpoint=state, num_examples=5)
        card = json.loads(Path(f"{out}.card.json").read_text(encoding="utf-8"))
        assert len(card["accuracy"]) == count


def test_the_end_of_training_names_the_best_state_and_what_commands_take(run: Path) -> None:
    looks = ({"epoch": 3, "robust_accuracy": 0.5}, {"epoch": 4, "robust_accuracy": 0.4})
    line = chosen_line(Run(run), 20, *looks)
    assert line.endswith(f"commands take the last, the best with --checkpoint {run}/checkpoints/best.safetensors")
    assert "best 50.0% after epoch 3, last 40.0% after epoch 4" in line


def test_a_run_without_an_attack_is_told_its_radius(trained: Path, tmp_path: Path) -> None:
    """Its own eps is none: beside a run that was trained for 0.05 a number at 8/255 would mislead."""
    run = shutil.copytree(trained, tmp_path / "run")
    said: list[str] = []
    evaluate_subject(asked(run), said.append)
    assert not any("without an attack" in line for line in said)
    plain = json.loads((run / "recipe.json").read_text(encoding="utf-8")) | {"attack": None}
    plain |= {"objective": {"name": "standard"}, "passes": ["nat"], "method": "standard"}
    (run / "recipe.json").write_text(json.dumps(plain), encoding="utf-8")
    evaluate_subject(asked(run), said.append)
    audit_subject(asked(run, num_examples=2), None, said.append)
    assert sum("was trained without an attack: eps is 8/255; give --eps" in line for line in said) == 2
    evaluate_subject(asked(run, eps="0.05"), said.append)
    assert sum("without an attack" in line for line in said) == 2


def test_a_run_that_is_not_finished_is_said_to_be_so(trained: Path, tmp_path: Path) -> None:
    """Killed on the way, it has a state like any other, whose numbers would pass for those of the whole training."""
    run = shutil.copytree(trained, tmp_path / "run")
    said: list[str] = []
    evaluate_subject(asked(run), said.append)
    assert not any("not finished" in line for line in said)
    for path in (run / "checkpoints").glob("state-0002.*"):
        path.unlink()
    record = json.loads((run / "record.json").read_text(encoding="utf-8"))
    record.pop("train_seconds")
    given = shutil.copytree(run, tmp_path / "given")
    (given / "record.json").write_text(json.dumps(record | {"data": "arrays"}), encoding="utf-8")
    _, notes = open_run(given).load_model()
    assert [note.rpartition("; ")[2] for note in notes] == ["go on with pm.train(..., resume=True)"]
    (run / "record.json").write_text(json.dumps(record), encoding="utf-8")
    evaluate_subject(asked(run), said.append)
    audit_subject(asked(run, num_examples=2), None, said.append)
    pm.export(run, tmp_path / "a.safetensors", num_examples=2, log=said.append)
    line = f"{run} is not finished: its state after epoch 1 of 2 is taken; train it with --resume"
    assert said.count(line) == 3
    named = run / "checkpoints" / "state-0001.safetensors"
    evaluate_subject(asked(run, checkpoint=named, out=tmp_path / "e.json"), said.append)
    assert said.count(line) == 3, "a state that is named is the one that is meant"
    (run / "recipe.json").write_text("{", encoding="utf-8")
    assert pm.open_run(run).model is not None, "a network needs no recipe"


def test_several_processes_say_where_a_run_is_not_finished_once(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    for path in (run / "checkpoints").glob("state-0002.*"):
        path.unlink()
    record = json.loads((run / "record.json").read_text(encoding="utf-8"))
    record.pop("train_seconds")
    (run / "record.json").write_text(json.dumps(record), encoding="utf-8")
    evaluate(run, attacks="nat", num_examples=2, device="cpu")
    assert capsys.readouterr().out.count("is not finished") == 1
    monkeypatch.setenv("RANK", "1")
    evaluate(run, attacks="nat", num_examples=2, device="cpu")
    assert capsys.readouterr().out == ""
