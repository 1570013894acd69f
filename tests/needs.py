"""Marks for tests that need more than `make setup` installs; in continuous integration they are never skipped."""

import importlib.util
import os
import shutil

import pytest

IN_CI = os.environ.get("CI") == "true"


def package(name: str, extra: str) -> pytest.MarkDecorator:
    """Skip, outside continuous integration, where an optional package is missing."""
    missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(missing and not IN_CI, reason=f"needs {name}: pip install 'probmargin[{extra}]'")


def program(name: str) -> pytest.MarkDecorator:
    """Skip, outside continuous integration, where a program is not on the PATH."""
    return pytest.mark.skipif(shutil.which(name) is None and not IN_CI, reason=f"needs the program {name}")
