"""Runs that are killed at any moment, and runs that go on for long."""

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_runs import Fit, Listener, fit, recipe, same, within

from probmargin.data.digits import load_digits
from probmargin.engine import checkpoints
from probmargin.engine.lock import LOCK
from probmargin.methods.resolve import resolve
from probmargin.runs.run import Run, open_run

EPOCHS = 60
TRAIN = [sys.executable, "-m", "probmargin", "train", "--data", "digits", "--model", "small-cnn", "--device", "cpu"]
OPTIONS = ["--method", "gairat", "--epochs", str(EPOCHS), "--set", "ema.decay=0.9", "--set", "awp.gamma=0.005"]
WATCHED = ["--set", "attack.num_steps=2", "--validation", "200", "--validation-every", "1", "--dynamics"]
KEPT = ["--keep-epochs", ",".join(map(str, range(1, EPOCHS)))]
KILLS = 20


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def states(run: Path) -> int:
    return len(list(run.glob("checkpoints/state-*.json")))


def wait_for_states(run: Path, count: int, process: subprocess.Popen[str], seconds: float = 300.0) -> None:
    """Until so many states are saved, or the time is over: on a machine of any speed a run cannot get far unseen."""
    end = time.monotonic() + seconds
    while states(run) < count and time.monotonic() < end:
        assert process.poll() is None
        time.sleep(0.005)


def finish(command: list[str]) -> None:
    with started(command) as process:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err


@pytest.mark.slow
def test_a_run_killed_at_twenty_random_moments_ends_as_if_it_never_was(tmp_path: Path) -> None:
    """In turn during start-up, around the end of it, and after one more epoch; all with the same number of threads."""
    command = [*TRAIN, *OPTIONS, *WATCHED, *KEPT]
    began = time.monotonic()
    with started([*command, "--out", str(tmp_path / "whole")]) as whole:
        wait_for_states(tmp_path / "whole", 1, whole)
        start_up = time.monotonic() - began
        _, err = whole.communicate(timeout=300)
        assert whole.returncode == 0, err
    epoch_seconds = (time.monotonic() - began - start_up) / EPOCHS
    draw = random.Random(5)
    cut = [*command, "--out", str(tmp_path / "cut"), "--resume"]
    for number in range(KILLS):
        saved = states(tmp_path / "cut")
        moments = (draw.uniform(0.3, 1.0) * start_up, start_up + draw.uniform(-1.0, 1.0) * epoch_seconds, 300.0)
        with started(cut) as process:
            wait_for_states(tmp_path / "cut", saved + 1, process, moments[number % 3])
            if number % 3 == 2:
                time.sleep(draw.uniform(0.0, 1.0) * epoch_seconds)
            process.kill()
            _, err = process.communicate(timeout=60)
            assert process.returncode == -9, err
            assert "Traceback" not in err
    assert 5 < states(tmp_path / "cut") < EPOCHS
    finish(cut)
    assert_same_end(tmp_path / "whole", tmp_path / "cut")
    assert not list((tmp_path / "cut").rglob("*.part"))


def resident() -> int:
    """Bytes of memory this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Weigher(Listener):
    """Notes the process's memory after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: list[int] = []

    def epoch(self, metrics: dict[str, object], epochs: int) -> None:
        self.bytes.append(resident())


@pytest.mark.slow
def test_two_hundred_epochs_hold_no_more_memory_than_five(tmp_path: Path) -> None:
    weigher = Weigher()
    request = {"validation": 100, "monitor": "pgd-5:20", "save_seconds": 10.0}
    method = resolve("mail-trades", data="digits", epochs=200, settings={"attack.num_steps": 2})
    fit(tmp_path / "run", method, data=load_digits(), reporter=weigher, **request)
    assert len(weigher.bytes) == 200
    assert weigher.bytes[-1] <= 1.03 * weigher.bytes[4]


def test_a_start_killed_before_its_first_state_begins_anew(undisturbed: Fit, tmp_path: Path) -> None:
    """The record is there, an epoch's line and half a checkpoint too, but no state."""
    whole, path = undisturbed(recipe())
    path = shutil.copytree(path, tmp_path / "run")
    for state in open_run(path).states():
        checkpoints.remove(state)
    (path / "recipe.json").unlink()
    (path / "checkpoints" / ".state-0001.safetensors.99.part").write_bytes(b"half")
    again, _ = fit(path, recipe(), resume=True)
    assert [row["epoch"] for row in open_run(path).metrics] == list(range(6))
    assert all((tensor == whole[name]).all() for name, tensor in again.items())
    assert not list(path.rglob("*.part"))


def test_a_folder_with_nothing_but_a_part_is_a_new_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".record.json.99.part").write_text("{")
    _, path = fit(tmp_path / "run", recipe("at", epochs=1), resume=True)
    assert len(open_run(path).metrics) == 1


def test_whatever_is_on_disk_when_a_run_is_killed_it_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is copied after each change the writer makes, while the next epoch is trained and has its line."""
    method = replace(recipe("mail-awp", epochs=4), ema=resolve("at", settings={"ema.decay": 0.9}).ema)
    watched: dict[str, Any] = {"validation": 16, "validation_every": 1, "dynamics": True}
    copies, path = list[Path](), tmp_path / "whole"
    main, replaced, removed = threading.current_thread(), os.replace, Path.unlink

    def keep_copy() -> None:
        if threading.current_thread() is main:
            return
        copies.append(tmp_path / f"cut-{len(copies)}")
        shutil.copytree(path, copies[-1], ignore=shutil.ignore_patterns(LOCK, "events.*"))

    def swap(source: Path, target: Path) -> None:
        if target.name in ("state-0001.safetensors", "state-0002.safetensors"):
            assert within(10.0, lambda: len(Run(path).metrics) > int(target.name[9:10]))
        replaced(source, target)
        keep_copy()

    def unlink(place: Path, missing_ok: bool = False) -> None:
        removed(place, missing_ok)
        if place.suffix != ".part":
            keep_copy()

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", swap)
        patch.setattr(Path, "unlink", unlink)
        whole, _ = fit(path, method, **watched)
    # Dynamics, tensors and JSON of four epochs; the two files of an old state, and of at least one best.
    assert len(copies) >= 4 * 3 + 2 + 2
    ahead = 0
    for copy in copies:
        newest = Run(copy).states()[-1:]
        ahead += bool(newest) and len(open_run(copy).metrics) > checkpoints.load(newest[0]).facts["epoch"]
        again, _ = fit(copy, method, resume=True, **watched)
        assert same(whole, again), copy
        assert_same_end(path, copy)
    assert ahead >= 4


def assert_same_end(whole: Path, cut: Path) -> None:
    """Two runs are the same but for the clock."""
    runs = [open_run(path) for path in (whole, cut)]
    rows = [[{k: v for k, v in row.items() if k != "images_per_second"} for row in run.metrics] for run in runs]
    assert rows[0] == rows[1]
    for name in (*(state.name for state in runs[0].states()), "best"):
        files = [run.checkpoints_path / f"{name}.safetensors" for run in runs]
        assert files[0].read_bytes() == files[1].read_bytes(), (cut, name)
    bests = [checkpoints.load(run.checkpoints_path / "best").facts["best"] for run in runs]
    assert bests[0] == bests[1]
    found = [dict(np.load(run.dynamics_path)) for run in runs]
    for name, values in found[0].items():
        np.testing.assert_array_equal(values, found[1][name], err_msg=name)
