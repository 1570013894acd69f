"""A folder is one process's at a time."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from training_runs import fit, recipe

from probmargin.core.errors import UsageError
from probmargin.engine.lock import LOCK, held

HOLDER = """
import sys, pathlib
from probmargin.engine.lock import held
with held(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_in(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds a folder until the block ends."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_folder_that_another_process_holds_is_refused_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with another_in(folder) as process:
        line = rf"run is in use by process {process.pid} on .+; choose another --out, or wait until that ends"
        with pytest.raises(UsageError, match=line), held(folder):
            pass
        with pytest.raises(UsageError, match=line):
            fit(folder, recipe(epochs=2))
        assert [path.name for path in folder.iterdir()] == [LOCK]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        # Nobody is left to let go of it: the system does.
        with held(folder), held(folder):
            assert (folder / LOCK).read_text().startswith(f"process {os.getpid()} on ")
        assert not (folder / LOCK).exists()


def test_a_run_is_held_while_it_trains_and_free_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fit(folder, recipe(epochs=2))
    assert not (folder / LOCK).exists()
    with another_in(folder), pytest.raises(UsageError, match="is in use by process"):
        fit(folder, recipe(epochs=2), resume=True)


def test_a_new_folder_in_which_nothing_was_made_is_removed(tmp_path: Path) -> None:
    with held(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()
    with held(tmp_path / "used"):
        (tmp_path / "used" / "file").touch()
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["file"]


def test_the_second_of_a_race_for_a_removed_lock_takes_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking, whoever held the file removes it."""
    opened = os.open
    calls: list[object] = []

    def late(path: Path, *given: int) -> int:
        handle = opened(path, *given)
        calls.append(path)
        if len(calls) == 1:
            os.unlink(path)
        return handle

    monkeypatch.setattr(os, "open", late)
    with held(tmp_path / "run"):
        monkeypatch.undo()
        assert len(calls) == 2
        assert (tmp_path / "run" / LOCK).exists()
