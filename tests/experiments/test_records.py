"""Records on disk: copies are put together, damaged files are named, curves are kept."""

import json
from pathlib import Path
from typing import Any

import pytest
from table_records import record

from probmargin.core.errors import UsageError
from probmargin.experiments import records as module
from probmargin.experiments.records import keep_curves, keep_record, read_records
from probmargin.runs.run import Run


def judged(*, weights: str = "w", names: str = "nat,aa", **conditions: Any) -> dict[str, Any]:
    entries = {name: {"correct": "1010", "interval": [0.0, 1.0], "num_examples": 4} for name in names.split(",")}
    for name, entry in entries.items():
        entry["accuracy" if name == "nat" else "robust_accuracy"] = 0.5
    return {"protocol": "standard", "norm": "Linf", "eps": 0.1, "weights": weights, **conditions, **entries}


def made(evaluation: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    found = record("at", **{"id": "a", **changes})
    del found["evaluation"]
    return found if evaluation is None else {**found, "evaluation": evaluation}


def write(path: Path, plain: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plain), encoding="utf-8")


def test_copies_of_a_record_are_put_together(tmp_path: Path) -> None:
    write(tmp_path / "out/a/record.json", made(judged(names="nat", eps=0.3)))
    write(tmp_path / "kept/a.json", made(judged(names="nat,aa")))
    write(tmp_path / "more/a.json", made(judged(names="cw")))
    (found,) = read_records([tmp_path / name for name in ("out", "kept", "more")])
    assert found["evaluation"]["eps"] == 0.3
    (other,) = found["evaluations"].values()
    assert {"nat", "aa", "cw"} <= other.keys()


def test_a_longer_look_of_a_copy_counts(tmp_path: Path) -> None:
    short = judged()
    short["aa"] = {**short["aa"], "correct": "10"}
    write(tmp_path / "out/a/record.json", made(short))
    write(tmp_path / "kept/a.json", made(judged()))
    (found,) = read_records([tmp_path / "out", tmp_path / "kept"])
    assert found["evaluation"]["aa"]["correct"] == "1010"


def test_facts_stay_with_the_numbers_they_belong_to(tmp_path: Path) -> None:
    more = judged(names="nat,aa", hardware="H200", commit="a", worst_case={"correct": "1010"}, margins={"clean": {}})
    less = judged(names="nat", hardware="CPU", commit="a", note="aa is not finished", worst_case={"correct": "11"})
    for first, second in ((more, less), (less, more)):
        write(tmp_path / "out/a/record.json", made(first))
        write(tmp_path / "kept/a.json", made(second))
        (found,) = read_records([tmp_path / "out", tmp_path / "kept"])
        assert found["evaluation"] == more


def test_numbers_of_two_machines_are_told_apart_and_share_no_worst_case(tmp_path: Path) -> None:
    facts: dict[str, Any] = {"worst_case": {"correct": "1010"}, "margins": {"clean": {}}, "commit": "a"}
    ours = judged(names="nat,pgd-20", hardware="H200", warnings=["one"], **facts)
    theirs = judged(names="aa", hardware="CPU", note="slow", **facts)
    theirs["aa"]["warnings"] = ["two"]
    write(tmp_path / "out/a/record.json", made(theirs))
    write(tmp_path / "kept/a.json", made(ours))
    (found,) = read_records([tmp_path / "out", tmp_path / "kept"])
    joined = found["evaluation"]
    assert (joined["hardware"], joined["aa"]["hardware"]) == ("H200", "CPU")
    assert "hardware" not in joined["pgd-20"]
    assert "commit" not in joined["aa"], "it is the same"
    assert joined["warnings"] == ["one", "two"]
    assert not {"note", "worst_case", "margins"} & joined.keys()


def test_numbers_that_were_made_anew_replace_those_of_a_fuller_copy(tmp_path: Path) -> None:
    anew = judged(names="nat,aa", commit="new")
    anew["aa"]["correct"] = anew["nat"]["correct"] = "1000"
    write(tmp_path / "out/a/record.json", made(anew))
    write(tmp_path / "kept/a.json", made(judged(names="nat,aa,cw", commit="old")))
    (found,) = read_records([tmp_path / "out", tmp_path / "kept"])
    joined = found["evaluation"]
    assert [joined[name]["correct"] for name in ("nat", "aa", "cw")] == ["1000", "1000", "1010"]
    assert (joined["commit"], joined["cw"]["commit"]) == ("new", "old")


def test_what_was_judged_before_the_training_ended_takes_nobodys_place(tmp_path: Path) -> None:
    stale, valid = (made(judged(weights=weights), weights="w") for weights in ("half", "w"))
    for first, second in ((stale, valid), (valid, stale)):
        write(tmp_path / "out/a/record.json", first)
        write(tmp_path / "kept/a.json", second)
        (found,) = read_records([tmp_path / "out", tmp_path / "kept"])
        assert found == valid


def test_other_weights_are_another_run_and_a_finished_one_goes_first(tmp_path: Path) -> None:
    half = made(judged(weights="half"))
    del half["train_seconds"]
    write(tmp_path / "out/a/record.json", half)
    write(tmp_path / "kept/a.json", made(judged(names="nat")))
    found = read_records([tmp_path / "out", tmp_path / "kept"])
    assert [entry["evaluation"]["weights"] for entry in found] == ["w", "half"]
    assert "aa" not in found[0]["evaluation"]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    whole = json.dumps(made(judged()))
    write(tmp_path / "a.json", made(judged()))
    (tmp_path / "cut.json").write_text(whole[: len(whole) // 2], encoding="utf-8")
    write(tmp_path / "odd.json", {"recipe": {}, "seed": "one"})
    write(tmp_path / "run/record.json", {"id": "run"})
    write(tmp_path / "bench.json", {"gpu": "none"})
    with pytest.raises(UsageError, match="is damaged"):
        read_records([tmp_path])
    damaged: dict[str, str] = {}
    assert len(read_records([tmp_path], damaged)) == 1
    assert set(damaged) == {"cut", "odd", "run"}
    assert f"{tmp_path / 'cut.json'} is damaged" in damaged["cut"]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"correct": "01x1"}, "evaluation.aa.correct has other characters than 0 and 1"),
        ({"correct": 5}, "evaluation.aa.correct is a number"),
        ({"correct": "01x1", "interval": [0.0, 1.0], "num_examples": 4, "robust_accuracy": 0.5}, "than 0 and 1"),
    ],
)
def test_verdicts_that_are_none_make_a_record_damaged(tmp_path: Path, entry: dict[str, Any], words: str) -> None:
    write(tmp_path / "a.json", made({**judged(), "aa": entry}))
    damaged: dict[str, str] = {}
    assert read_records([tmp_path], damaged) == []
    assert damaged["a"].startswith(f"{tmp_path / 'a.json'} is damaged (")
    assert words in damaged["a"]


def test_a_file_named_by_another_id_is_refused_but_a_folder_may_be_renamed(tmp_path: Path) -> None:
    write(tmp_path / "b.json", made(judged()))
    write(tmp_path / "c/record.json", made(judged()))
    refused: dict[str, str] = {}
    assert [found["id"] for found in read_records([tmp_path], refused)] == ["a"]
    assert refused == {"b": f"{tmp_path / 'b.json'} is refused: it holds the record of a; name it a.json"}


def test_keeping_a_record_loses_nothing_that_a_copy_knows(tmp_path: Path) -> None:
    def kept() -> dict[str, Any]:
        return dict(json.loads((tmp_path / "a.json").read_text(encoding="utf-8")))

    keep_record(tmp_path, made(judged()))
    keep_record(tmp_path, made(judged(names="nat,cw")))
    assert {"nat", "aa", "cw"} <= kept()["evaluation"].keys()
    keep_record(tmp_path, made(judged(names="nat", weights="new")))
    assert kept()["evaluation"] == judged(names="nat", weights="new")
    (tmp_path / "a.json").write_text("{", encoding="utf-8")
    keep_record(tmp_path, made(judged()))
    assert kept() == made(judged())


def test_curves_are_kept_beside_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "runs" / "a-s1")
    keep_curves(tmp_path / "kept", run)
    assert not (tmp_path / "kept").exists()
    run.path.mkdir(parents=True)
    run.metrics_path.write_text('{"epoch": 0}\n', encoding="utf-8")
    run.dynamics_path.write_bytes(b"12345")
    keep_curves(tmp_path / "kept", run)
    assert (tmp_path / "kept/a-s1.metrics.jsonl").read_text(encoding="utf-8") == '{"epoch": 0}\n'
    assert (tmp_path / "kept/a-s1.dynamics.npz").read_bytes() == b"12345"
    assert read_records([tmp_path / "kept"]) == []
    monkeypatch.setattr(module, "LARGEST_DYNAMICS", 5)
    keep_curves(tmp_path / "other", run)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["a-s1.metrics.jsonl"]
