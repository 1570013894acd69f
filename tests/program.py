"""The command line run in this process, and what wrong use must look like."""

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from probmargin import cli
from probmargin.methods.plain import COMPONENTS


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str


class Program:
    """Runs `probmargin` with arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> Result:
        self.monkeypatch.setattr(sys, "argv", ["probmargin", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = self.capsys.readouterr()
        return Result(code, captured.out, captured.err)

    def refuses(self, words: str, *arguments: str, code: int = 2) -> None:
        """One line with these words, the exit code, no traceback, and every file as it was."""
        before = contents(Path.cwd())
        result = self(*arguments)
        assert result.code == code, f"exit code {result.code}: {result.err or result.out}"
        assert result.err.startswith("probmargin: "), result.err
        assert len(result.err.strip().splitlines()) == 1, result.err
        assert words in result.err
        assert "Traceback" not in result.err + result.out
        assert contents(Path.cwd()) == before


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Program]:
    """The command line in an empty folder; modules that a test imports from there are forgotten after it."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("PROBMARGIN_DATA", raising=False)
    yield Program(monkeypatch, capsys)
    forget_components(tmp_path)
    for name in set(sys.modules) - before:
        places = [getattr(sys.modules[name], attribute, "") for attribute in ("__file__", "__path__")]
        if str(tmp_path) in f"{places}":
            del sys.modules[name]


def forget_components(folder: Path) -> None:
    """Take out of the registries what modules below a folder have entered."""
    for registry in COMPONENTS.values():
        for name in registry.names():
            module = sys.modules.get(registry.get(name).__module__)
            if module is None or str(getattr(module, "__file__", None) or "").startswith(str(folder)):
                del registry._classes[name], registry._examples[name]


def contents(folder: Path) -> dict[str, str]:
    """Every file and folder below, with a hash of what is in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if "__pycache__" not in path.parts:
            name = str(path.relative_to(folder))
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    return found
