"""Plant each fault of this folder in a copy of the tree and fail if the tests it names do not notice.

A mutant is a patch whose first lines say, after "test: ", which tests must fail.

    python tests/mutants/run.py [NAME ...]
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TIMEOUT = 1500


def named_tests(patch: Path) -> list[str]:
    """The tests a mutant must make fail."""
    lines = patch.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("test: ").strip() for line in lines if line.startswith("test: ")]


def run_tests(tree: Path, tests: list[str]) -> int:
    """Exit code of pytest on some tests of a tree."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=TIMEOUT, check=False)
    return result.returncode


def copy_tree(target: Path) -> Path:
    """The parts of the repository that tests need."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, target / name, ignore=ignore)
    for name in ("pyproject.toml", "CONTRIBUTING.md", "README.md"):
        shutil.copy(ROOT / name, target)
    return target


def judge(patch: Path) -> str:
    """What became of a mutant: caught, or why not."""
    tests = named_tests(patch)
    if not tests:
        return "names no test"
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_tree(Path(folder) / "tree")
        command = ["git", "apply", "-C1", str(patch)]
        applied = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
        if applied.returncode != 0:
            return f"does not apply: {applied.stderr.strip()}"
        code = run_tests(tree, tests)
    return {0: "NOT noticed", 1: "caught"}.get(code, f"pytest ended with {code}")


def main(names: list[str]) -> int:
    """Judge all mutants, or those named."""
    patches = sorted(HERE.glob("*.patch"))
    if names:
        patches = [patch for patch in patches if patch.stem in names]
    tests = sorted({test for patch in patches for test in named_tests(patch)})
    if run_tests(ROOT, tests) != 0:
        sys.stdout.write("the named tests fail without any mutant: mend them first\n")
        return 1
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        verdicts = list(pool.map(judge, patches))
    for patch, verdict in zip(patches, verdicts, strict=True):
        sys.stdout.write(f"{patch.stem:<36} {verdict}\n")
    survivors = sum(verdict != "caught" for verdict in verdicts)
    sys.stdout.write(f"{len(patches) - survivors} caught, {survivors} not\n")
    return 1 if survivors or not patches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
