"""A record names the commit of this code, never of the project that the package happens to lie in."""

import shutil
import subprocess
from pathlib import Path

import pytest

from probmargin.engine import environment

NAMED = '[project]\nname = "probmargin"\n'


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in which the package may lie; no variable says which commit it is."""
    monkeypatch.delenv("PROBMARGIN_COMMIT", raising=False)
    _git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    _commit(tmp_path)
    return tmp_path


def _git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _commit(folder: Path) -> str:
    _git(folder, "add", "-A")
    _git(folder, "commit", "-qm", "one")
    return _git(folder, "rev-parse", "HEAD")


def _put(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's file, as if it were installed here."""
    folder.mkdir(parents=True)
    shutil.copy(str(environment.__file__), folder / "environment.py")
    monkeypatch.setattr(environment, "__file__", str(folder / "environment.py"))


def test_a_checkout_gives_its_commit(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _put(package / "src" / "probmargin" / "engine", monkeypatch)
    (package / "pyproject.toml").write_text(NAMED, encoding="utf-8")
    head = _commit(package)
    assert environment.commit() == head
    (package / "file").write_text("y", encoding="utf-8")
    assert environment.commit() == f"{head}-dirty"


@pytest.mark.parametrize("named", [None, '[project]\nname = "theirs"\n', NAMED])
def test_an_installation_inside_another_repository_gives_none(
    package: Path, monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    _put(package / ".venv" / "lib" / "site-packages" / "probmargin" / "engine", monkeypatch)
    if named is not None:
        (package / "pyproject.toml").write_text(named, encoding="utf-8")
    assert environment.commit() is None


def test_a_copy_in_the_source_folder_of_another_project_gives_none(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(package / "src" / "probmargin" / "engine", monkeypatch)
    (package / "pyproject.toml").write_text('[project]\nname = "theirs"\n', encoding="utf-8")
    assert environment.commit() is None
