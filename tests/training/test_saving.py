"""States are written beside the training: as they were, one at a time, and none is left half done."""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import Listener, StopAfter, fit, recipe, within

import probmargin.training.train as train_module
from probmargin.core.errors import Interrupted, UsageError
from probmargin.engine import checkpoints
from probmargin.engine.background import Background
from probmargin.engine.distributed import World
from probmargin.engine.lock import LOCK, held
from probmargin.methods.resolve import resolve
from probmargin.runs.run import Run, open_run
from probmargin.training.examples import Dynamics
from probmargin.training.guards import TrainingStopped

STATEFUL = replace(recipe("mail-awp", epochs=4), ema=resolve("at", settings={"ema.decay": 0.9}).ema)
"""Weights, momentum, a moving average and perturbed weights; four epochs of three batches with 16 held out."""
WATCHED: dict[str, Any] = {"validation": 16, "validation_every": 1, "dynamics": True}

Hook = Callable[[Path], None]


def before_tensors(monkeypatch: pytest.MonkeyPatch, hook: Hook) -> None:
    """Have a function called with the file before a checkpoint's tensors are written."""
    written = checkpoints.write_tensors

    def write(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
        hook(path)
        written(path, tensors, metadata)

    monkeypatch.setattr(checkpoints, "write_tensors", write)


def slow(seconds: float = 0.3) -> Hook:
    return lambda path: time.sleep(seconds)


def no_room(for_state: str) -> Hook:
    def hook(path: Path) -> None:
        if for_state in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    return hook


def names(path: Path) -> list[str]:
    return [state.name for state in Run(path).states()]


class Steps(Listener):
    """Counts steps, and can be waited for at one."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0
        self.moved = threading.Condition()

    def advance(self) -> None:
        with self.moved:
            self.taken += 1
            self.moved.notify_all()

    def reaches(self, steps: int, seconds: float = 10.0) -> bool:
        with self.moved:
            return self.moved.wait_for(lambda: self.taken >= steps, seconds)


def test_training_goes_on_while_a_state_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps an epoch: the first state is held up until three steps of the next epoch are taken."""
    steps, reached = Steps(), list[bool]()
    before_tensors(monkeypatch, lambda path: reached.append(steps.reaches(7)) if "0001" in path.name else None)
    fit(tmp_path / "run", recipe("at", epochs=2), reporter=steps)
    assert reached == [True]


def test_a_state_is_what_it_was_at_its_epochs_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is the same to the byte whether the run waits for it, or trains on before it is begun."""
    keep = {**WATCHED, "keep_epochs": (1, 2, 3, 4)}
    with monkeypatch.context() as patch:
        patch.setattr(Background, "start", lambda background, work: work())
        fit(tmp_path / "waits", STATEFUL, **keep)
    rows: list[list[int]] = []
    written = Dynamics.write

    def hold_up(dynamics: Dynamics) -> None:
        """Until the next epoch is trained and its examples are noted: its state waits for this one."""
        epoch = len(rows) + 1
        assert epoch == 4 or within(10.0, lambda: len(Run(tmp_path / "beside").metrics) > epoch)
        time.sleep(0.05)
        written(dynamics)
        with np.load(dynamics.path) as file:
            rows.append(file["epochs"].tolist())

    with monkeypatch.context() as patch:
        patch.setattr(Dynamics, "write", hold_up)
        fit(tmp_path / "beside", STATEFUL, **keep)
    assert rows == [list(range(epoch)) for epoch in (1, 2, 3, 4)]
    waits, beside = (tmp_path / name / "checkpoints" for name in ("waits", "beside"))
    found = sorted(path.name for path in waits.iterdir())
    assert found == sorted(path.name for path in beside.iterdir())
    assert {"best.safetensors", "state-0001.safetensors"} < set(found)
    for name in found:
        if name.endswith(".safetensors"):
            assert (waits / name).read_bytes() == (beside / name).read_bytes(), name
        else:
            facts = [checkpoints.load(folder / name.removesuffix(".json")).facts for folder in (waits, beside)]
            assert {**facts[0], "seconds": 0} == {**facts[1], "seconds": 0}


def test_a_copy_shares_nothing_with_what_is_trained() -> None:
    weight = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    best = {"epoch": 1}
    found = checkpoints.Checkpoint({"a": weight, "b": weight}, {"best": best})
    copied, values = found.copied(), weight.clone()
    weight.zero_()
    best["epoch"] = 2
    assert all(torch.equal(tensor, values) for tensor in copied.tensors.values())
    assert copied.facts == {"best": {"epoch": 1}}


def test_one_write_at_a_time_and_old_states_go_when_the_newer_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    removed, path = checkpoints.remove, tmp_path / "run"
    written = checkpoints.write

    def write(place: Path, copied: checkpoints.Checkpoint) -> None:
        said.append(f"begins {place.name}")
        time.sleep(0.1)
        written(place, copied)
        said.append(f"ends {place.name}")

    def remove(place: Path) -> None:
        assert len(names(path)) == 3
        assert all(checkpoints.is_whole(state) for state in Run(path).states())
        said.append(f"removes {place.name}")
        removed(place)

    monkeypatch.setattr(checkpoints, "write", write)
    monkeypatch.setattr(checkpoints, "remove", remove)
    fit(path, recipe("at", epochs=4, burn_in_epochs=0))
    expected = [["begins state-000{}", "ends state-000{}"] for _ in range(4)]
    lines = [line.format(epoch) for epoch, pair in enumerate(expected, start=1) for line in pair]
    assert [line for line in said if "removes" not in line] == lines
    assert said[5:7] == ["ends state-0003", "removes state-0001"]
    assert said[-2:] == ["ends state-0004", "removes state-0002"]


def test_the_folder_is_held_and_the_record_open_until_the_last_state_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, refused = tmp_path / "run", list[str]()

    def look(part: Path) -> None:
        if "state-0002" in part.name:
            time.sleep(0.3)
            assert "train_seconds" not in open_run(path).record
            with pytest.raises(UsageError, match="is in use by process") as caught, held(path):
                pass
            refused.append(str(caught.value))

    before_tensors(monkeypatch, look)
    fit(path, recipe("at", epochs=2))
    assert len(refused) == 1
    assert names(path) == ["state-0001", "state-0002"]
    assert not (path / LOCK).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("steps", "state"), [(6, "state-0001-00002"), (8, "state-0002")])
def test_a_stop_leaves_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, steps: int, state: str
) -> None:
    """Two steps into the second epoch of four steps the first state is still being written."""
    before_tensors(monkeypatch, slow())
    with pytest.raises(Interrupted, match=f"state saved as .*{state}; go on with --resume"):
        fit(tmp_path / "run", recipe("at"), reporter=StopAfter(steps, number))
    assert names(tmp_path / "run") == ["state-0001", state]
    assert all(checkpoints.is_whole(path) for path in Run(tmp_path / "run").states())


class BreaksOff(Steps):
    """Raises an error in a step."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def advance(self) -> None:
        super().advance()
        if self.taken == 6:
            raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TrainingStopped("no number"), SystemExit(1)])
def test_every_way_out_waits_for_the_state_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    before_tensors(monkeypatch, slow())
    others = set(threading.enumerate())
    with pytest.raises(type(error)):
        fit(tmp_path / "run", recipe("at"), reporter=BreaksOff(error))
    assert names(tmp_path / "run") == ["state-0001"]
    assert not list((tmp_path / "run").rglob("*.part"))
    assert within(5.0, lambda: set(threading.enumerate()) <= others)


def test_patience_that_runs_out_leaves_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before_tensors(monkeypatch, slow(0.1))
    _, path = fit(tmp_path / "run", recipe("at", epochs=30), validation=16, early_stopping=1)
    last = open_run(path).metrics[-1]["epoch"] + 1
    assert last < 30
    assert names(path)[-1] == f"state-{last:04d}"


@pytest.mark.parametrize("epochs", [3, 6])
def test_a_full_disk_ends_the_run_at_the_next_state_or_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    before_tensors(monkeypatch, no_room("state-0003"))
    with pytest.raises(OSError, match="No space left on device") as caught:
        fit(tmp_path / "run", recipe("at", epochs=epochs))
    assert caught.value.errno == errno.ENOSPC
    assert "state-0003" in caught.value.filename
    assert names(tmp_path / "run") == ["state-0001", "state-0002"]
    assert len(open_run(tmp_path / "run").metrics) == min(epochs, 4)
    assert not list((tmp_path / "run").rglob("*.part"))
    assert "train_seconds" not in open_run(tmp_path / "run").record


def as_process(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    @contextmanager
    def group(device: torch.device) -> Iterator[World]:
        yield world

    monkeypatch.setattr(train_module, "process_group", group)


def test_a_process_that_does_not_write_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Second(World):
        """All of the work, none of the writing."""

        is_writer = False

    as_process(monkeypatch, Second())
    fit(tmp_path / "run", recipe("at", epochs=2))
    assert names(tmp_path / "run") == []


def test_no_process_goes_before_the_state_of_a_stop_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[str]] = []

    class First(World):
        """Notes what is on disk when the others may go."""

        def wait(self) -> None:
            found.append(names(tmp_path / "run"))

    as_process(monkeypatch, First())
    before_tensors(monkeypatch, slow())
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", recipe("at"), reporter=StopAfter(6))
    assert found == [["state-0001", "state-0001-00002"]]
