"""Tables at smoke scale, by the command a user types."""

import json
from pathlib import Path

import pytest

from probmargin.experiments.reproduce import reproduce
from probmargin.experiments.request import ReproduceRequest

pytestmark = pytest.mark.slow


def drop(folder: Path, row: str) -> float:
    """Share of the images AutoAttack looked at that survive PGD but not AutoAttack."""
    record = json.loads((folder / f"records/digits-small-cnn-{row}-s1.json").read_text(encoding="utf-8"))
    aa, pgd = (record["evaluation"][name]["correct"] for name in ("aa", "pgd-20"))
    return float(pgd[: len(aa)].count("1") - aa.count("1")) / len(aa)


def test_gairat_loses_more_from_pgd_to_autoattack_than_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "runs"
    said: list[str] = []
    request = ReproduceRequest(name="table2", scale="smoke", only=("at", "gairat"), device="cpu", out=out)
    assert reproduce(request, said.append) == []
    assert "Missing" not in said[-1]
    assert "| gairat - at | AA (first 100) |" in said[-1]
    assert drop(out, "gairat") > drop(out, "at")
