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
    """Set an event instead of breaking off; a second signal breaks off, unless `patient`.

    Processes under torchrun are patient: a terminal and torchrun both pass Ctrl-C on, so it comes twice.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and not patient:
            raise KeyboardInterrupt
        asked.set()

    found = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)
