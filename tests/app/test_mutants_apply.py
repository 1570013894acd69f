"""Every planted fault still applies to the code and names tests that exist; `make mutants` runs them."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted((ROOT / "tests" / "mutants").glob("*.patch"))


def test_there_are_at_least_twenty() -> None:
    assert len(PATCHES) >= 20


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_a_planted_fault_fits_the_code(patch: Path) -> None:
    command = ["git", "apply", "--check", "-C1", str(patch)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    tests = re.findall(r"^test: (.+)$", patch.read_text(encoding="utf-8"), re.MULTILINE)
    assert tests
    for test in tests:
        path, _, name = test.partition("::")
        function = name.split("[")[0].split("::")[-1]
        assert not function or f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), test
