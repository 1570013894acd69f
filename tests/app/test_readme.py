"""Every Python block of the README runs."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_runs(number: int) -> None:
    names: dict[str, object] = {}
    exec(compile(BLOCKS[number], f"README block {number}", "exec"), names)
    assert "loss" in names


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 2
