"""States on disk are in the order of training, however many epochs there are."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from training_runs import fit, recipe

from probmargin.core.errors import UsageError
from probmargin.engine.checkpoints import Checkpoint, file_hash, joined, load_weights, remove, save
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


def test_a_states_file_gives_its_moving_average(tmp_path: Path) -> None:
    """It is what the run is judged by; the trained weights where there is none."""
    own, average = {"w": torch.zeros(2)}, {"w": torch.ones(2)}
    save(tmp_path / "both", Checkpoint(joined(model=own, ema=average)))
    save(tmp_path / "alone", Checkpoint(joined(model=own)))
    found = [load_weights(tmp_path / f"{name}.safetensors")["w"].tolist() for name in ("both", "alone")]
    assert found == [[1.0, 1.0], [0.0, 0.0]]


def test_a_state_that_is_half_deleted_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, unlink = Run(tmp_path), Path.unlink

    def killed_after(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        raise KeyboardInterrupt

    run.checkpoints_path.mkdir()
    save(run.state_path(3), Checkpoint({"w": torch.zeros(2)}))
    assert run.states() == [run.state_path(3)]
    monkeypatch.setattr(Path, "unlink", killed_after)
    with pytest.raises(KeyboardInterrupt):
        remove(run.state_path(3))
    assert run.states() == []


def test_the_state_after_the_last_epoch_is_the_end_though_the_record_was_cut_short() -> None:
    run: Any = SimpleNamespace(path=Path("run"), record={"recipe": {"epochs": 3}, "options": {}})
    before, after = (Run.unfinished(run, Checkpoint({}, {"epoch": epoch})) for epoch in (2, 3))
    assert "its state after epoch 2 of 3 is taken" in before[0]
    assert after == []


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
