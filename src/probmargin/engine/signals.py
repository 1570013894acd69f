"""Ctrl-C and SIGTERM as a request to stop after the step under way."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Take SIGTERM for Ctrl-C inside this block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    found = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, found)


@contextmanager
def stop_signals(*, patient: bool = False) -> Iterator[threading.Event]:
    """Set an event instead of breaking off; the same signal a second time breaks off, unless `patient`.

    Processes under torchrun are patient: a terminal and torchrun both pass Ctrl-C on, so it comes twice. Where a
    scheduler sends SIGTERM to all processes of a job, a parent sends SIGINT to its children too: that is one wish.
    """
    asked = threading.Event()
    seen: set[int] = set()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: FrameType | None) -> None:
        if number in seen and not patient:
            raise KeyboardInterrupt
        seen.add(number)
        asked.set()

    found = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)
