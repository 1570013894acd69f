"""Every planted fault still applies and is still noticed."""

import subprocess
import sys
from pathlib import Path

import pytest

MUTANTS = Path(__file__).resolve().parents[1] / "mutants"


@pytest.mark.slow
def test_every_planted_fault_is_noticed() -> None:
    assert len(list(MUTANTS.glob("*.patch"))) >= 20
    command = [sys.executable, str(MUTANTS / "run.py")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
