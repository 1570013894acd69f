"""What `make bench` runs, and what the benchmark of --dynamics says."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_blocks import ROOT

from probmargin.engine.files import write_json

MOST_SLOWED = 0.03
"""What --dynamics may cost a step."""


def module(name: str, *arguments: str) -> str:
    command = [sys.executable, "-m", name, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_make_bench_runs_training_autoattack_and_dynamics() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nbench:")[2].partition("\n\n")[0]
    assert "python -m benchmarks $(RUN)" in recipe
    lines = module("benchmarks", "--dry-run", "--device", "cpu").splitlines()
    assert [line.split()[2] for line in lines] == [
        f"benchmarks.{name}" for name in ("training", "evaluation", "dynamics")
    ]
    assert ["--digits" in line for line in lines] == [True, False, True]
    named = module("benchmarks", "runs/a", "--data-dir", "data", "--dry-run", "--device", "cpu")
    assert "benchmarks.evaluation runs/a --num-examples 500 --device cpu --data-dir data" in named


def test_what_stood_before_square_is_read_from_what_an_evaluation_stored(tmp_path: Path) -> None:
    run, out = tmp_path / "a-s1", tmp_path / "found.json"
    told = {"id": "a-s1", "seed": 1, "weights": "w", "hardware": "none", "versions": {}, "commit": "none"}
    write_json(run / "record.json", {**told, "evaluation": {"nat": {"correct": "0111111"}}})
    own: dict[str, Any] = {"eps": 8 / 255, "norm": "Linf", "weights": "w"}
    others: tuple[dict[str, Any], ...] = ({"eps": 0.031}, {"norm": "L2"}, {"weights": "v"}, {})
    for number, other in enumerate((own, *others), start=1):
        write_json(run / "evaluation" / f"aa-{number}" / "identity.json", own | other)
    # Each attack in parts, on what those before it left; Square has not come to the last image.
    looked = {"apgd-ce": ([1, 2, 3], [4, 5, 6]), "apgd-t": ([2, 3], [5, 6]), "fab-t": ([2, 3, 5],), "square": ([2, 3],)}
    broken = {"apgd-ce": [1, 4], "apgd-t": [6], "fab-t": [2], "square": []}
    for stage, parts in looked.items():
        for ids in parts:
            path = run / "evaluation" / "aa-1" / f"{stage}@{ids[0]:07d}-{len(ids)}.npz"
            np.savez(path, ids=np.array(ids), broken=np.isin(ids, broken[stage]))
    module("benchmarks.before_square", str(run), "--out", str(out))
    (row,) = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert row["correct"] == "0001010"
    assert row["robust_accuracy"] == {"apgd-ce": 0.5714, "apgd-t": 0.4286, "fab-t": 0.2857}


@pytest.mark.parametrize("name", ["training", "evaluation", "dynamics"])
def test_a_benchmark_keeps_its_record_unless_told_where(name: str) -> None:
    text = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
    assert f'"--out", type=Path, default=OUT / "{name}.json"' in text
    assert "save(options.out, record)" in text


@pytest.mark.parametrize(("name", "methods"), [("digits", {"at", "mail-trades"}), ("128", {"mail-trades"})])
def test_the_record_keeps_dynamics_within_its_bound(name: str, methods: set[str]) -> None:
    path = ROOT / "results" / f"bench-dynamics-{name}.json"
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert methods <= {row["method"] for row in record["rows"]}
    for row in record["rows"]:
        assert row["slower_than_without"] <= MOST_SLOWED, row
        assert row["slower_with_the_epochs_end"] <= MOST_SLOWED, row


@pytest.mark.slow
def test_the_benchmark_of_dynamics_measures_three_kinds_of_steps(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    said = module(
        "benchmarks.dynamics", "--digits", "--device", "cpu", "--rounds", "2", "--methods", "at", "--out", str(out)
    )
    (row,) = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert row["method"] == "at"
    assert all(row[f"milliseconds_{kind}"] > 0 for kind in ("bare", "without", "with"))
    *_, last = said.splitlines()
    assert len(said.splitlines()) == 3
    assert last == f"record: {out}"


@pytest.mark.slow
def test_an_epoch_is_timed_and_a_tables_runs_are_forecast(tmp_path: Path) -> None:
    out = tmp_path / "forecast.json"
    said = module("benchmarks.epoch", "table3", "--scale", "smoke", "--device", "cpu", "--out", str(out))
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["epoch_seconds"] > 0
    assert f"hours: {record['hours']}" in said
    rows = {row["row"]: row for row in record["rows"]}
    assert set(rows) == {"at", "trades", "mart", "awp", "fat", "gairat", "mail-at", "mail-trades"}
    assert rows["awp"]["hours_training"] >= rows["at"]["hours_training"] > rows["mail-at"]["hours_training"]
    assert record["hours"] == pytest.approx(
        sum(row["hours_training"] + row["hours_judging"] for row in record["rows"]), abs=0.02
    )


@pytest.mark.slow
def test_memory_is_measured_in_a_process_a_row(tmp_path: Path) -> None:
    out = tmp_path / "bench-memory.json"
    asked = ["--digits", "--device", "cpu", "--counts", "20", "40", "--attacks", "pgd"]
    said = module("benchmarks.memory", *asked, "--out", str(out))
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [(row["attack"], row["images"]) for row in rows] == [("pgd", 20), ("pgd", 40)]
    assert all(row["process_mib"] > 50 for row in rows)
    assert len(said.splitlines()) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("attack", ["pgd", "aa"])
def test_ten_times_the_images_take_no_more_memory_of_a_gpu_than_they_fill(attack: str, tmp_path: Path) -> None:
    out = tmp_path / "bench-memory.json"
    module("benchmarks.memory", "--device", "cuda", "--attacks", attack, "--out", str(out))
    few, many = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert many["images"] == 10 * few["images"]
    assert many["allocated_mib"] - few["allocated_mib"] <= 5.0
