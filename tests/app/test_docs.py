"""The documentation builds, and no link in it is broken."""

import importlib.util
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parents[2] / "docs" / "build.py"


def test_the_site_builds_without_broken_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("docs_build", BUILD)
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    assert build.main(["--out", str(tmp_path)]) == 0, capsys.readouterr().out
    assert "mail_loss" in (tmp_path / "api.html").read_text(encoding="utf-8")
    (tmp_path / "index.html").write_text('<a href="nowhere.html">x</a>', encoding="utf-8")
    assert build.broken_links(tmp_path) == ["index.html: nowhere.html"]
