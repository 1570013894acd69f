"""What a record says of the machine and the code."""

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probmargin._version import __version__
from probmargin.core.words import counted


def versions() -> dict[str, str]:
    """Versions of what computes."""
    return {
        "probmargin": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def hardware(device: torch.device) -> str:
    """The machine in words."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    cores, threads = counted(os.cpu_count() or 1, "core"), counted(torch.get_num_threads(), "thread")
    return f"{platform.machine()} CPU, {cores}, {threads}"


def commit() -> str | None:
    """The commit of the code, with a mark where files differ from it; None outside a checkout.

    A copy without its history says it by the variable PROBMARGIN_COMMIT.
    """
    if told := os.environ.get("PROBMARGIN_COMMIT"):
        return told
    folder = Path(__file__).resolve().parent
    try:
        if not _is_checkout(Path(_git(folder, "rev-parse", "--show-toplevel")), folder):
            return None
        head = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}-dirty" if changed else head


def surroundings(device: torch.device) -> dict[str, Any]:
    """All of it, as a record has it."""
    return {"hardware": hardware(device), "commit": commit(), "versions": versions()}


def _is_checkout(top: Path, folder: Path) -> bool:
    """Is this repository the package's own, and not one that holds an environment it is installed in?"""
    project = top / "pyproject.toml"
    own = re.compile(r'^name = "probmargin"$', re.MULTILINE)
    return (
        folder.is_relative_to(top.resolve() / "src" / "probmargin")
        and project.is_file()
        and own.search(project.read_text(encoding="utf-8", errors="replace")) is not None
    )


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
