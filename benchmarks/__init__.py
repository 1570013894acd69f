"""Benchmarks: each prints what it measured and saves a record."""

import sys
from pathlib import Path
from typing import Any

from probmargin.engine.files import write_json

OUT = Path("runs/bench")
"""Where records go unless told otherwise."""


def save(path: Path, record: dict[str, Any]) -> None:
    """Write a record and say where it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record)
    sys.stdout.write(f"record: {path}\n")
