"""Arrays in .npz files; imports no torch."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

UNREADABLE = (OSError, ValueError, KeyError, EOFError, BadZipFile)
"""What reading a damaged .npz raises, or looking in it for an array that it lacks."""


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an .npz by name; pickled objects are refused."""
    # Opened here, because numpy leaves the file open when its content is no zip archive after all.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return dict(stored)
