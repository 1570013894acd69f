"""One piece of work at a time beside one's own, and none is left behind."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from probmargin.engine.background import Background


def test_work_goes_on_beside_the_caller() -> None:
    asked, done = threading.Event(), threading.Event()

    def work() -> None:
        assert asked.wait(10)
        done.set()

    with Background() as background:
        background.start(work)
        assert not done.is_set()
        asked.set()
        background.wait()
        assert done.is_set()


def test_the_next_waits_for_the_one_before() -> None:
    said: list[str] = []

    def work(name: str) -> None:
        said.append(f"{name} begins")
        time.sleep(0.05)
        said.append(f"{name} ends")

    with Background() as background:
        for name in "abc":
            background.start(lambda name=name: work(name))  # type: ignore[misc]
    assert said == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]


def fail() -> None:
    time.sleep(0.05)
    raise OSError(28, "No space left on device")


def test_an_error_is_raised_once_where_the_work_is_waited_for() -> None:
    began: list[int] = []
    with Background() as background:
        background.start(fail)
        with pytest.raises(OSError, match="No space"):
            background.start(lambda: began.append(1))
    assert not began
    with Background() as background:
        background.start(fail)
        with pytest.raises(OSError, match="No space"):
            background.wait()


def failing_beside(error: BaseException | None) -> None:
    with Background() as background:
        background.start(fail)
        if error is not None:
            raise error


def test_an_error_goes_before_a_later_one_and_not_before_a_break_off() -> None:
    for later in (None, ValueError("later")):
        with pytest.raises(OSError, match="No space"):
            failing_beside(later)
    with pytest.raises(KeyboardInterrupt):
        failing_beside(KeyboardInterrupt())


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_is_heard_after_the_work_is_done(times: int) -> None:
    done = threading.Event()

    def work() -> None:
        for _ in range(times):
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        done.set()

    with Background() as background:
        background.start(work)
        with pytest.raises(KeyboardInterrupt):
            background.wait()
    assert done.is_set()


AFTER_THE_END = """
import threading, time
from probmargin.engine.background import Background

def later():
    time.sleep(0.3)
    with Background() as background:
        background.start(lambda: print("done"))

threading.Thread(target=later).start()
"""


def test_a_thread_that_outlives_the_programs_main_one_can_have_work_done() -> None:
    done = subprocess.run([sys.executable, "-c", AFTER_THE_END], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("done", "")


def test_without_a_thread_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"), Background() as background:
        background.start(fail)
