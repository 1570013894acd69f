"""A folder is one process's at a time."""

import errno
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from another_process import another_in, holder
from training_runs import fit, recipe

from probmargin.core.errors import UsageError
from probmargin.engine.lock import LOCK, held
from probmargin.training.progress import Reporter


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


class Intruder(Reporter):
    """Sends another process into the folder after each epoch."""

    def __init__(self, folder: Path) -> None:
        super().__init__(quiet=True)
        self.folder, self.answers = folder, list[str]()

    def epoch(self, metrics: dict[str, Any], epochs: int) -> None:
        found = subprocess.run(
            holder(self.folder), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        self.answers.append(found.stdout + found.stderr.strip().rpartition("\n")[2])


def test_nobody_else_gets_in_while_a_run_trains(tmp_path: Path) -> None:
    intruder = Intruder(tmp_path / "run")
    fit(tmp_path / "run", recipe(epochs=2), reporter=intruder)
    assert len(intruder.answers) == 2
    assert all(f"is in use by process {os.getpid()} on " in answer for answer in intruder.answers), intruder.answers


def test_a_second_thread_is_refused_and_a_link_is_the_same_folder(tmp_path: Path) -> None:
    folder, link = tmp_path / "run", tmp_path / "link"
    refused: list[str] = []

    def enter(place: Path) -> None:
        try:
            with held(place):
                refused.append("")
        except UsageError as error:
            refused.append(str(error))

    with held(folder):
        link.symlink_to(folder)
        with held(link):
            pass
        for place in (folder, link):
            thread = threading.Thread(target=enter, args=(place,))
            thread.start()
            thread.join()
        assert (folder / LOCK).exists()
    assert all("is in use by process" in line for line in refused), refused
    enter(folder)
    assert refused[-1] == ""


def test_a_lock_is_removed_before_it_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever takes it in between would lose its file."""
    there: list[bool] = []
    close = os.close

    def noted(handle: int) -> None:
        there.append((tmp_path / "run" / LOCK).exists())
        close(handle)

    with held(tmp_path / "run"):
        monkeypatch.setattr(os, "close", noted)
    monkeypatch.undo()
    assert there == [False]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_goes_unguarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.lockf", refuse)
    with held(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()
    assert not (tmp_path / "run").exists()


def test_another_users_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UsageError, match=r"\.lock is another user's; delete it if nobody is at work"), held(tmp_path):
        pass
    monkeypatch.undo()
    with held(tmp_path):
        pass


def test_a_new_folder_in_which_nothing_was_made_is_removed(tmp_path: Path) -> None:
    with held(tmp_path / "new" / "a" / "b"):
        assert (tmp_path / "new" / "a" / "b").is_dir()
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
