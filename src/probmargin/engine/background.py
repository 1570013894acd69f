"""Work beside one's own: a disk is waited for by a thread, not by the device."""

import threading
from collections.abc import Callable
from types import TracebackType


class Background:
    """Does one piece of work at a time beside the caller's; the `with` block that it is used in ends after the last.

    What goes wrong in a piece of work is raised where it is next waited for.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._done = threading.Event()
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin a piece of work once the one before it is done."""
        self.wait()
        self._done.clear()
        self._thread = threading.Thread(target=self._carry_out, args=(work,))
        self._thread.start()

    def _carry_out(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    def wait(self) -> None:
        """Go on when the work is done, and raise what went wrong in it; Ctrl-C is heard after it is done."""
        break_off: KeyboardInterrupt | None = None
        while self._thread is not None:
            try:
                # Not by join, after which Python 3.11 takes a thread for ended once Ctrl-C has broken into it.
                if self._thread.is_alive():
                    self._done.wait()
                self._thread = None
            except KeyboardInterrupt as asked:
                break_off = asked
        error, self._error = self._error, None
        if break_off is not None:
            raise break_off from error
        if error is not None:
            raise error

    def __enter__(self) -> "Background":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the work on every way out.

        Its error goes before one of the block, which came later; whoever breaks off is told nothing more.
        """
        try:
            self.wait()
        except Exception:
            if kind is None or issubclass(kind, Exception):
                raise
