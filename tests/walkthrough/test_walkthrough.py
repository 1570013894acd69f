"""The README followed by a newcomer in an empty folder, and the page that says how it went."""

import json
import re
import subprocess
import sys
from pathlib import Path

import needs
import numpy as np
import pytest
from page_blocks import ROOT, blocks

PAGE = ROOT / "docs" / "walkthrough.md"


def commands(page: Path) -> list[str]:
    """The commands that a page shows, in order."""
    return [block.text for block in blocks(page) if block.language == "bash"]


def test_the_committed_page_shows_the_commands_of_the_readme_and_no_machine() -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = commands(PAGE)
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Your own images in five minutes")[1]
    assert [command for command in shown if command not in section] == []
    assert [
        word for word in ("train", "evaluate", "audit", "report", "export") if f"probmargin {word}" not in text
    ] == []
    assert not re.search(r"/(tmp|home|root|work|Users)/", text)
    assert "--format onnx" in text


@pytest.mark.slow
@needs.package("onnxruntime", "onnx")
def test_a_newcomer_gets_from_pictures_to_an_exported_model(tmp_path: Path) -> None:
    work, out = tmp_path / "empty", tmp_path / "walkthrough.md"
    work.mkdir()
    command = [sys.executable, str(ROOT / "docs" / "walkthrough.py"), "--work", str(work), "--out", str(out)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert commands(out) == commands(PAGE), "docs/walkthrough.md is not up to date: run docs/walkthrough.py"
    assert str(tmp_path) not in out.read_text(encoding="utf-8")

    evaluation = json.loads((work / "runs/shapes/evaluation.json").read_text(encoding="utf-8"))
    assert evaluation["nat"]["accuracy"] > 0.8
    assert 0.5 < evaluation["aa"]["robust_accuracy"] <= evaluation["nat"]["accuracy"]
    checks = json.loads((work / "runs/shapes/audit.json").read_text(encoding="utf-8"))["checks"]
    assert {check["verdict"] for check in checks} <= {"pass", "warn", "not run"}

    import onnxruntime

    session = onnxruntime.InferenceSession(str(work / "shapes.onnx"))
    images = np.random.default_rng(0).random((2, 3, 20, 20), dtype=np.float32)
    (logits,) = session.run(None, {session.get_inputs()[0].name: images})
    assert logits.shape == (2, 6)

    report = (work / "report.html").read_text(encoding="utf-8")
    assert "shapes" in report
    assert not re.search(r'(?:src|href)="(?!#|data:|mailto:)[^"]+\.(?:js|css|png)"', report), "it needs other files"
