"""The worked example of CONTRIBUTING.md: one new file, no other edit."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_worked_example_is_found_listed_tested_and_trained(tmp_path: Path) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(r"```python file=(\S+)\n(.*?)```", page, re.DOTALL)
    assert found
    copy = tmp_path / "repo"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    (copy / found[1]).write_text(found[2], encoding="utf-8")
    environment = {"PYTHONPATH": str(copy / "src"), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        result = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    assert "entropy_adv" in python("-m", "probmargin", "list", "margins")
    tested = python(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/conformance/test_measures.py",
        found[1],
        "-k",
        "EntropyAdv or entropy_adv",
    )
    assert int(re.search(r"(\d+) passed", tested)[1]) >= 6  # type: ignore[index]
    trained = python(
        *("-m", "probmargin", "train", "--data", "digits", "--model", "small-cnn", "--method", "mail-at"),
        *("--epochs", "2", "--set", "attack.num_steps=2", "--set", "margin=entropy_adv", "--out", "run"),
    )
    assert "trained mail-at" in trained
