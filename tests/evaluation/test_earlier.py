"""A quick look after a long one: results of before stay where they can, and are named where they cannot."""

import errno
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from autoattack_helpers import linear_task

from probmargin.attacks.apgd import APGD
from probmargin.core.errors import UsageError
from probmargin.evaluation.earlier import known_path, with_earlier
from probmargin.evaluation.evaluate import EvaluationSettings, judge
from probmargin.evaluation.places import merge
from probmargin.evaluation.run_audit import audit_subject
from probmargin.evaluation.subject import EvaluationRequest, evaluate_subject
from probmargin.runs.run import Run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def asked(run: Path, attacks: str, **changes: Any) -> EvaluationRequest:
    settings: dict[str, Any] = {"num_examples": 40, "device": "cpu"} | changes
    return EvaluationRequest(run=run, attacks=tuple(attacks.split(",")), **settings)


def look(run: Path, attacks: str, **changes: Any) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    evaluate_subject(asked(run, attacks, **changes), said.append)
    stored = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
    assert Run(run).record["evaluation"] == stored
    return stored, [line for line in said if "before" in line or " held " in line]


def timeless(results: dict[str, Any]) -> dict[str, Any]:
    times = ("seconds", "seconds_by_step")
    return {
        name: {key: value for key, value in entry.items() if key not in times} if isinstance(entry, dict) else entry
        for name, entry in results.items()
    }


def test_other_attacks_stay_and_the_whole_is_that_of_one_evaluation(
    run: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(run, "apgd-ce")
    with monkeypatch.context() as patch:
        patch.setattr(APGD, "__call__", lambda *_, **__: pytest.fail("attacked again"))
        results, said = look(run, "nat,pgd-2")
    assert said == ["kept from before, under the same conditions: apgd-ce"]
    assert [name for name in results if name in ("nat", "apgd-ce", "pgd-2")] == ["nat", "apgd-ce", "pgd-2"]
    shutil.copytree(trained, tmp_path / "once")
    at_once, _ = look(tmp_path / "once", "nat,apgd-ce,pgd-2")
    assert timeless(results) == timeless(at_once)
    ours, theirs = (np.load(folder / "evaluation.npz") for folder in (run, tmp_path / "once"))
    for name in theirs:
        assert np.array_equal(ours[name], theirs[name]), name


def test_the_worst_case_does_not_rise_by_a_weaker_look(run: Path) -> None:
    strong, _ = look(run, "apgd-ce")
    later, _ = look(run, "pgd-1")
    assert set(later["worst_case"]["attacks"]) == {"apgd-ce", "pgd-1"}
    assert later["worst_case"]["robust_accuracy"] <= strong["worst_case"]["robust_accuracy"]
    assert later["worst_case"]["robust_accuracy"] <= later["pgd-1"]["robust_accuracy"]
    assert later["apgd-ce"]["correct"] == strong["apgd-ce"]["correct"]


def test_the_attack_that_broke_an_image_in_an_earlier_look_is_named(tmp_path: Path) -> None:
    model, x, labels = linear_task(classes=2, count=4)
    settings = EvaluationSettings(eps=float(model.distance(x, labels, "Linf").max()) * 1.01)
    before, now = (judge(model, x, labels, attacks=[name], settings=settings)[0] for name in ("fgsm", "apgd-ce"))
    assert (before.broken_by, now.broken_by) == (("fgsm",) * 4, ("apgd-ce",) * 4)
    before.save(known_path(tmp_path, before))
    assert with_earlier(now, tmp_path).broken_by == ("fgsm",) * 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"eps": "0.2"}, "eps was 0.05 and is 0.2): replaced; judged so again, they come back"),
        ({"seed": 3}, "seed was 0 and is 3): replaced; judged so again"),
        ({"num_examples": 30}, "num_examples was 40 and is 30): replaced; judged so again"),
    ],
)
def test_other_conditions_replace_and_come_back(run: Path, changes: dict[str, Any], words: str) -> None:
    first, _ = look(run, "nat,apgd-ce")
    results, said = look(run, "nat", **changes)
    assert "apgd-ce" not in results
    assert len(said) == 1
    assert f"{run / 'evaluation.json'} held nat, apgd-ce under other conditions" in said[0]
    assert words in said[0]
    again, _ = look(run, "nat")
    assert again["apgd-ce"] == first["apgd-ce"]


def test_results_of_other_weights_do_not_stay(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look(run, "nat,pgd-1")
    monkeypatch.setattr("probmargin.evaluation.subject.weights_hash", lambda model: "other")
    results, said = look(run, "nat")
    assert "pgd-1" not in results
    assert "weights was" in said[0]
    assert said[0].endswith("replaced")


def test_fresh_results_stand_alone(run: Path) -> None:
    look(run, "nat,pgd-1")
    results, said = look(run, "nat", fresh=True)
    assert "pgd-1" not in results
    assert said == [f"{run / 'evaluation.json'} held pgd-1: left out now"]


def test_what_a_kept_result_was_made_by_is_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = look(run, "pgd-1")
    monkeypatch.setattr("probmargin.engine.environment.commit", lambda: "another")
    results, _ = look(run, "nat")
    assert results["commit"] == "another"
    assert results["pgd-1"]["commit"] == first["commit"]
    assert "commit" not in results["nat"]
    assert "versions" not in results["pgd-1"]


def test_a_look_at_fewer_images_does_not_shrink_a_finished_one(run: Path) -> None:
    whole, _ = look(run, "nat,aa", num_examples=4)
    results, said = look(run, "nat,aa", num_examples=4, aa_examples=2)
    assert said == [
        "kept from before: aa of 4 images, which is more than 2; --fresh puts these in its place",
    ]
    assert timeless(results) == timeless(whole)
    results, said = look(run, "nat,aa", num_examples=4, aa_examples=2, fresh=True)
    assert said == [f"{run / 'evaluation.json'} held aa of 4 images: 2 now"]
    assert results["aa"]["num_examples"] == 2
    results, said = look(run, "aa", num_examples=4)
    assert said == ["kept from before, under the same conditions: nat"]
    assert results["aa"]["correct"] == whole["aa"]["correct"]


def test_a_damaged_file_of_what_is_known_is_as_good_as_none(run: Path) -> None:
    look(run, "pgd-1")
    (known,) = (run / "evaluation").glob("known-*.npz")
    known.write_bytes(b"half a file")
    results, said = look(run, "nat")
    assert "pgd-1" not in results
    assert said == [f"{run / 'evaluation.json'} held pgd-1: left out now"]


def test_shards_join_what_is_known(run: Path) -> None:
    look(run, "pgd-1")
    for shard in ("1/2", "2/2"):
        look(run, "nat", shard=shard)
    said: list[str] = []
    results, _ = merge(run, said.append)
    assert said == ["kept from before, under the same conditions: pgd-1"]
    assert {"nat", "pgd-1"} <= set(results)


def test_results_that_go_to_a_file_leave_the_runs_own_as_they_are(run: Path, tmp_path: Path) -> None:
    """A look at another radius must not become what reports and cards say of the run."""
    look(run, "pgd-1")
    before = {path.name: path.read_bytes() for path in run.glob("*.json")}
    for eps in ("0.3", None):
        out = tmp_path / f"{eps}.json"
        results, path = evaluate_subject(asked(run, "nat", eps=eps, out=out), lambda line: None)
        assert path == out
        assert json.loads(out.read_text(encoding="utf-8")) == results
        assert ("pgd-1" in results) == (eps is None), "what is known under the same conditions is known here too"
        assert {path.name: path.read_bytes() for path in run.glob("*.json")} == before


def no_writing_below(folder: Path, monkeypatch: pytest.MonkeyPatch, error: OSError | None = None) -> None:
    """As on a disk that is mounted for reading alone, for root too."""
    plain = tempfile.TemporaryFile

    def refused(*, dir: Path) -> Any:
        if dir.is_relative_to(folder):
            raise error or PermissionError(errno.EACCES, "Permission denied", str(dir))
        return plain(dir=dir)

    monkeypatch.setattr("probmargin.engine.files.tempfile.TemporaryFile", refused)


def test_a_run_that_cannot_be_written_to_is_judged_into_a_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_writing_below(run, monkeypatch)
    before = sorted(run.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr("probmargin.evaluation.subject.judge", lambda *_, **__: pytest.fail("judged in vain"))
        patch.setattr("probmargin.evaluation.run_audit.audit", lambda *_, **__: pytest.fail("audited in vain"))
        with pytest.raises(UsageError, match=r"Permission denied.*; choose another --out"):
            evaluate_subject(asked(run, "nat"), lambda line: None)
        with pytest.raises(UsageError, match=r"Permission denied.*; choose another --out"):
            audit_subject(asked(run, "nat"), None, lambda line: None)
    out = tmp_path / "mine.json"
    assert evaluate_subject(asked(run, "nat", out=out), lambda line: None)[1] == out
    assert (tmp_path / "mine.json.parts").is_dir()
    assert sorted(run.rglob("*")) == before


def test_a_run_on_a_full_disk_is_judged_into_a_file_elsewhere(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_writing_below(run, monkeypatch, OSError(errno.ENOSPC, "No space left on device", str(run)))
    out = tmp_path / "mine.json"
    assert evaluate_subject(asked(run, "nat", out=out), lambda line: None)[1] == out
    assert (tmp_path / "mine.json.parts").is_dir()


def test_parts_that_cannot_be_written_to_are_refused_before_anything_is_judged(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of another user's evaluation, in a folder that is shared."""
    (run / "evaluation").mkdir()
    no_writing_below(run / "evaluation", monkeypatch)
    monkeypatch.setattr("probmargin.evaluation.subject.judge", lambda *_, **__: pytest.fail("judged in vain"))
    for shard in (None, "1/2"):
        with pytest.raises(UsageError, match=r"evaluation \(Permission denied.*; choose another --out"):
            evaluate_subject(asked(run, "nat", shard=shard), lambda line: None)


def test_a_shard_keeps_what_it_held(run: Path) -> None:
    for attacks in ("nat,pgd-1", "nat"):
        said: list[str] = []
        for shard in ("1/2", "2/2"):
            if (attacks, shard) != ("nat", "2/2"):
                evaluate_subject(asked(run, attacks, shard=shard), said.append)
    assert "kept from before, under the same conditions: pgd-1" in said
    results, _ = merge(run)
    assert {"nat", "pgd-1"} <= set(results)


def test_a_shard_that_begins_anew_keeps_nothing(run: Path) -> None:
    evaluate_subject(asked(run, "nat,pgd-1", shard="1/2"), lambda line: None)
    anew, _ = evaluate_subject(asked(run, "nat", shard="1/2", fresh=True), lambda line: None)
    assert "pgd-1" not in anew


def test_a_look_that_begins_anew_in_a_file_leaves_what_the_run_knows(run: Path, tmp_path: Path) -> None:
    look(run, "nat,pgd-1")
    evaluate_subject(asked(run, "nat", fresh=True, out=tmp_path / "anew.json"), lambda line: None)
    stored, _ = look(run, "nat")
    assert "pgd-1" in stored


def test_the_runs_own_file_may_be_named(run: Path) -> None:
    own = run / "evaluation.json"
    look(run, "nat", out=own)
    for shard in ("1/2", "2/2"):
        evaluate_subject(asked(run, "pgd-1", shard=shard, out=own), lambda line: None)
    results, path = merge(own)
    assert path == own
    assert {"nat", "pgd-1"} <= set(results)
    assert Run(run).record["evaluation"] == results


def test_shards_that_go_to_a_file_are_joined_there(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    for shard in ("1/2", "2/2"):
        evaluate_subject(asked(run, "nat", shard=shard, out=out), lambda line: None)
    assert not (run / "evaluation.json").exists()
    results, path = merge(out)
    assert (path, results["num_examples"]) == (out, 40)
    assert not (run / "evaluation.json").exists()
