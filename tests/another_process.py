"""Another process that is at work in a folder."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOLDER = """
import sys, pathlib
from probmargin.engine.lock import held
with held(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> list[str]:
    """A command that holds a folder until its input ends."""
    return [sys.executable, "-c", HOLDER, str(folder)]


@contextmanager
def another_in(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds a folder until the block ends."""
    with subprocess.Popen(holder(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()
