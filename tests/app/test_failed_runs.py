"""What `probmargin reproduce` ends with where runs fail."""

import pytest
from program import Program, program as program

from probmargin.experiments import reproduce
from probmargin.experiments.work import Outcome


@pytest.mark.parametrize(("names", "words"), [(["a"], "1 run failed: a"), (["a", "b"], "2 runs failed: a, b")])
def test_failed_runs_are_counted_and_named(
    program: Program, monkeypatch: pytest.MonkeyPatch, names: list[str], words: str
) -> None:
    monkeypatch.setattr(reproduce, "reproduce", lambda *_: [Outcome(name, reason="no") for name in names])
    result = program("reproduce", "table2")
    assert (result.code, result.err.strip()) == (1, f"probmargin: {words}")
