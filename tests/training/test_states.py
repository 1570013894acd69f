"""States on disk are in the order of training, however many epochs there are."""

from pathlib import Path

import pytest
from training_runs import fit, recipe

from probmargin.core.errors import UsageError
from probmargin.engine.checkpoints import file_hash
from probmargin.methods.method import Phase
from probmargin.runs.run import Run, open_run

LONG = recipe(
    "at", epochs=10_003, lr_milestones=(), phases=(Phase(from_epoch=9_998, start_from_epoch=0, fresh_momentum=True),)
)
"""Trains epochs 9,998 to 10,002 alone."""


def test_the_newest_state_stays_from_ten_thousand_epochs_on(tmp_path: Path) -> None:
    _, path = fit(tmp_path / "run", LONG)
    run = open_run(path)
    assert [state.name for state in run.states()] == ["state-10002", "state-10003"]
    assert run.load_state()[1].facts["epoch"] == 10_003


def test_states_are_sorted_by_epoch_and_batch(tmp_path: Path) -> None:
    names = ["state-0007", "state-9999", "state-9999-00002", "state-9999-100000", "state-10000", "state-10000-00001"]
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in reversed(names):
        (folder / f"{name}.json").touch()
        (folder / f"{name}.safetensors").touch()
    assert [state.name for state in Run(tmp_path).states()] == names
    with pytest.raises(UsageError, match=r"--checkpoint .*state-10000-00001\.safetensors"):
        file_hash(tmp_path)


def test_a_state_of_an_epoch_that_a_phase_skips_cannot_be_kept(tmp_path: Path) -> None:
    jump = recipe("at", phases=(Phase(from_epoch=4, start_from_epoch=2),))
    for skipped in (3, 4):
        words = rf"--keep-epochs {skipped}: a phase skips that epoch .* use --keep-epochs 2$"
        with pytest.raises(UsageError, match=words):
            fit(tmp_path / "run", jump, keep_epochs=(2, skipped))
    with pytest.raises(UsageError, match=r"--keep-epochs 7: .* use --keep-epochs 9999$"):
        fit(tmp_path / "run", LONG, keep_epochs=(7,))
    assert not (tmp_path / "run").exists()
    _, path = fit(tmp_path / "run", jump, keep_epochs=(2, 5))
    assert {"state-0002", "state-0005"} <= {state.name for state in open_run(path).states()}
