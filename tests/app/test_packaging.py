"""The wheel and the source archive: what is in them, and that they work without the repository."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import probmargin

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "probmargin"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORT_NAMES = {"scikit-learn": "sklearn", "pillow": "PIL"}
BROUGHT_ALONG = {"markupsafe"}
"""By jinja2, which cannot do without."""
PROGRAM = Path(sys.executable).with_name("probmargin")


def imports(path: Path) -> set[str]:
    """The packages a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def package_names(requirements: list[str]) -> set[str]:
    """The import names of requirements."""
    names = [re.split(r"[<>=~! \[]", requirement)[0] for requirement in requirements]
    return {IMPORT_NAMES.get(name, name).lower() for name in names}


def test_every_import_is_a_declared_dependency() -> None:
    declared = package_names(PROJECT["dependencies"])
    optional = {name for extra in PROJECT["optional-dependencies"].values() for name in package_names(extra)}
    used = {name.lower() for path in SOURCE.rglob("*.py") for name in imports(path)}
    foreign = used - {name.lower() for name in sys.stdlib_module_names} - BROUGHT_ALONG - {"probmargin"}
    assert foreign <= declared | optional, f"not declared: {foreign - declared - optional}"
    # tensorboard is what torch.utils.tensorboard stands on.
    assert declared - {"tensorboard"} <= foreign, f"never imported: {declared - foreign}"


def test_the_version_comes_from_one_place() -> None:
    assert "version" not in PROJECT
    assert "version" in PROJECT["dynamic"]
    stated = [path for path in SOURCE.rglob("*.py") if re.search(r"__version__ *=", path.read_text(encoding="utf-8"))]
    assert stated == [SOURCE / "_version.py"]


def test_a_shell_can_complete_commands_and_options() -> None:
    path = {"PATH": f"{PROGRAM.parent}:/usr/bin:/bin"}
    shown = subprocess.run(
        ["bash", "-c", "probmargin --show-completion; true"],
        env={**path, "SHELL": "/bin/bash"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "complete -o default -F _probmargin_completion probmargin" in shown.stdout
    asked = {"_PROBMARGIN_COMPLETE": "complete_bash", "COMP_WORDS": "probmargin train --meth", "COMP_CWORD": "2"}
    answer = subprocess.run([str(PROGRAM)], env={**path, **asked}, capture_output=True, text=True, check=False)
    assert answer.stdout.split() == ["--method"]


class Installed:
    """An environment that holds the wheel alone; what it depends on is borrowed from this one."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        self.python = folder / "venv" / "bin" / "python"
        packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
        # A path added this way is searched, but its own .pth files are not read: the editable install stays out.
        (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(self.python), "install"]
        subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)

    def __call__(self, *arguments: str) -> str:
        """Run the installed command; what it printed."""
        kept = {"PATH": f"{self.python.parent}:/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(self.folder)}
        result = subprocess.run(
            arguments, cwd=self.folder, env=kept, capture_output=True, text=True, check=False, timeout=300
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and a source archive, built from what a clone would hold."""
    folder = tmp_path_factory.mktemp("build")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / "repo" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "repo" / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(folder / "repo")]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    return folder / "dist"


@pytest.mark.slow
def test_the_archives_hold_the_package_and_its_data(archives: Path) -> None:
    wheel, source = next(archives.glob("*.whl")), next(archives.glob("*.tar.gz"))
    assert f"-{probmargin.__version__}-" in wheel.name
    with zipfile.ZipFile(wheel) as opened:
        inside = set(opened.namelist())
        metadata = opened.read(f"probmargin-{probmargin.__version__}.dist-info/METADATA").decode()
    expected = {path.relative_to(SOURCE.parent).as_posix() for path in SOURCE.rglob("*") if path.is_file()}
    expected = {name for name in expected if "__pycache__" not in name}
    assert expected <= inside, f"missing: {expected - inside}"
    assert {"probmargin/py.typed", "probmargin/experiments/published.json"} <= inside
    assert not [name for name in inside if name.startswith(("tests/", "docs/", "benchmarks/"))]
    assert {f"Provides-Extra: {extra}" for extra in ("onnx", "cluster", "dev", "loops")} <= set(metadata.splitlines())
    with tarfile.open(source) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/probmargin/_version.py"} <= names
    assert not [name for name in names if name.startswith(("tests/", "site/", ".ci/"))]


@pytest.mark.slow
def test_the_wheel_works_without_the_repository(archives: Path, tmp_path: Path) -> None:
    run = Installed(tmp_path, next(archives.glob("*.whl")))
    assert run("probmargin", "--version").strip() == probmargin.__version__
    where = run("python", "-c", "import probmargin; print(probmargin.__file__)").strip()
    assert where.startswith(os.fspath(tmp_path)), f"the repository's own package was used: {where}"
    assert "mail-trades" in run("probmargin", "list", "methods")
    run(
        *("probmargin", "train", "--data", "digits", "--model", "small-cnn", "--epochs", "1"),
        *("--device", "cpu", "--out", "runs/a"),
    )
    assert "pgd-20:" in run("probmargin", "evaluate", "runs/a", "--attacks", "nat,pgd-20", "--num-examples", "50")
    run("probmargin", "report", "runs/a", "-o", "report.html")
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "table2" in run("probmargin", "reproduce", "table2", "--render", "--scale", "smoke")
