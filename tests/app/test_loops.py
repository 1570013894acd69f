"""The loss in other people's loops: each example is run as its header says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from needs import package

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("plain_loop", marks=pytest.mark.slow),
        pytest.param("lightning_loop", marks=[pytest.mark.slow, package("lightning", "loops")]),
        pytest.param("accelerate_loop", marks=[pytest.mark.slow, package("accelerate", "loops")]),
    ],
)
def test_an_example_learns_to_be_robust(tmp_path: Path, name: str) -> None:
    """Trained in the same way without attacks, this network keeps 18% under PGD-20; with MAIL-TRADES 48%."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = re.search(r"natural ([\d.]+)%, PGD-20 ([\d.]+)%", done.stdout)
    assert found, done.stdout
    assert float(found[1]) > 80
    assert float(found[2]) > 35
    assert list(tmp_path.iterdir()) == []
