"""Files that are either whole or not there: written aside, flushed to disk, renamed."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yield a path to write to; it takes the place of `path` once the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield aside
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
        _sync_folder(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the system allows it."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, plain: Any) -> None:
    """Write plain data as indented JSON, whole or not at all."""
    with written_aside(path) as aside:
        aside.write_text(json.dumps(plain, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def append_json_line(path: Path, plain: Any) -> None:
    """Add one object to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(plain, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_json_lines(path: Path) -> list[Any]:
    """Read a file of JSON lines; a last line cut short by a crash is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
