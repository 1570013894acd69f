"""Entry of the command line: exit codes and one line for each failure."""

import errno
import os
import sys
from typing import Any

# Each of these adds its commands to the application.
from probmargin.cli import (
    inspect as inspect,
    judge as judge,
    report as report,
    share as share,
    study as study,
    train as train,
)
from probmargin.cli.app import JOURNEY, app, fail
from probmargin.core.errors import Failure, Interrupted, UsageError

INTERRUPTED = 130


def main() -> None:
    """Run the command line; one line and exit code 2 for wrong use, 130 when interrupted."""
    try:
        _run()
    except SystemExit as stop:
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            raise
        # Threads of gloo outlive their group and can abort a process whose interpreter ends (pytorch #179291).
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(stop.code if isinstance(stop.code, int) else int(stop.code is not None))


def _run() -> None:
    try:
        code = app(standalone_mode=False)
        # What `--help`, `--version` and Ctrl-C end with; commands themselves return nothing.
        if code == INTERRUPTED:
            fail("interrupted", INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)
    except UsageError as error:
        fail(str(error), 2)
    except Interrupted as stop:
        fail(str(stop), INTERRUPTED)
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)
    except Exception as error:
        _fail_or_raise(error)


def _fail_or_raise(error: Exception) -> None:
    if isinstance(error, Failure):
        fail(str(error), 1)
    if hasattr(error, "format_message"):
        _fail_in_parsing(error)
    if isinstance(error, OSError):
        fix = _room() if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        fail(f"{error.strerror or error}: {error.filename or 'the system gave no file name'}{fix}", 1)
    raise error


def _room() -> str:
    """What to do on a full disk; a command that has begun to train goes on where it was."""
    command = next((word for word in sys.argv[1:] if word in JOURNEY), "")
    return "; make room and start again" + (", with --resume" if command == "train" else "")


def _fail_in_parsing(error: Any) -> None:
    """What the parser has to say, in one line instead of its three, with the command that helps."""
    command = getattr(getattr(error, "ctx", None), "command_path", "probmargin")
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{error.format_message()}\n")
        sys.exit(2)
    if getattr(error, "option_name", None) == "--plugin":
        fail(f"--plugin is given before the command: write probmargin --plugin FILE {command.split()[-1]} ...", 2)
    text = " ".join(error.format_message().split())
    fail(f"{text.rstrip('.')}; see: {command} --help", 2)
