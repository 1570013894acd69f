"""Do what the README says, in an empty folder, and write down what happens: docs/walkthrough.md.

python docs/walkthrough.py [--out docs/walkthrough.md] [--work FOLDER] [--picture FILE.png]
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
SECTION = "Your own images in five minutes"
EPOCHS_SHOWN = 2
"""Lines of training that are kept at each end."""
BROWSER = "chromium"

INTRO = """# Walkthrough

What a newcomer sees who follows [the README](../README.md#your-own-images-in-five-minutes) in an empty folder: six
kinds of shapes as PNG files, a network of one's own, and the commands, with what they print and how long they take.
This page is written by `docs/walkthrough.py`, which a test runs; nothing here was typed by hand.

{machine}
"""

REMARKS = {
    "train": "The first line says what is proposed for these pictures. Burn-in ends where the learning rate drops, and "
    "the effective sample size (`ess`) falls: from there on the examples near the boundary count more.",
    "evaluate": "`aa` is the number to report. It is the share of all test images that are right as they stand and "
    "withstand all four attacks.",
    "audit": "[What the checks mean](robustness.md#what-audit-says), and what to make of a warning.",
    "report": "One page, to be opened in any browser:\n\n![The top of the report](report.png)",
    "export": "The exported file was loaded again and compared with the network it came from. Normalisation is inside, "
    "and a card beside it says what it is and how robust.",
}


@dataclass(frozen=True)
class Step:
    """A command, what it printed and how long it took."""

    command: str
    output: str
    seconds: float

    @property
    def name(self) -> str:
        """The command's first word that says what it does."""
        words = self.command.split()
        return words[1] if words[0] == "probmargin" else words[0]


def instructions() -> tuple[dict[str, str], list[str]]:
    """The files and the commands of the README's section, as they stand there."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split(f"## {SECTION}\n")[1].split("\n## ")[0]
    files: dict[str, str] = {}
    commands: list[str] = []
    for token in MarkdownIt("commonmark").parse(section):
        if token.type == "fence" and (found := re.search(r"file=(\S+)", token.info)):
            files[found[1]] = token.content
        elif token.type == "fence" and token.info.startswith("bash"):
            commands += [line for line in re.split(r"(?<!\\)\n", token.content) if line]
    return files, commands


def run(command: str, folder: Path) -> Step:
    """Run a command in the folder, with this interpreter's programs and one thread."""
    programs = Path(sys.executable).parent
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PROBMARGIN"))}
    environment = {**kept, "PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    began = time.perf_counter()
    result = subprocess.run(
        shlex.split(command.replace("\\\n", " ")),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - began
    if result.returncode != 0:
        raise SystemExit(f"{command} ended with {result.returncode}:\n{result.stdout}")
    return Step(command, trimmed(result.stdout, folder), seconds)


def trimmed(output: str, folder: Path) -> str:
    """Output without most of the epochs, and without the names of folders on this machine."""
    for place in {str(folder), str(folder.resolve())}:
        output = output.replace(f"{place}/", "").replace(place, ".")
    lines = output.rstrip().splitlines()
    epochs = {
        place: int(found[1]) for place, line in enumerate(lines) if (found := re.match(r"epoch (\d+)/\d+ ", line))
    }
    left_out = set(list(epochs)[EPOCHS_SHOWN:-EPOCHS_SHOWN])
    # Quick epochs have no line each.
    shown = [epoch for place, epoch in epochs.items() if place not in left_out]
    kept = []
    for place, line in enumerate(lines):
        if place not in left_out:
            kept.append(line)
        elif place - 1 not in left_out:
            kept.append(f"... {shown[EPOCHS_SHOWN] - shown[EPOCHS_SHOWN - 1] - 1} more epochs ...")
    return "\n".join(kept)


def page(steps: list[Step], files: dict[str, str]) -> str:
    """The transcript as Markdown."""
    total = sum(step.seconds for step in steps)
    machine = (
        f"One core of a CPU, Python {sys.version.split()[0]}, torch {version('torch').split('+')[0]}, "
        f"probmargin {version('probmargin')}: {total:.0f} seconds in all."
    )
    names = " and ".join(f"`{name}`" for name in files)
    parts = [INTRO.format(machine=machine), f"{names} are copied from the README.\n"]
    for step in steps:
        words = step.command.split()
        title = words[1].capitalize() if words[0] == "probmargin" else "Draw the pictures"
        parts.append(f"## {title}\n\n```bash sketch\n{step.command}\n```\n")
        if step.output:
            parts.append(f"```text\n{step.output}\n```\n")
        parts.append(f"{step.seconds:.1f} s. {REMARKS.get(step.name, '')}".rstrip() + "\n")
    return "\n".join(parts)


def take_picture(folder: Path, target: Path) -> None:
    """The top of the report, as a browser shows it."""
    report = (folder / "report.html").as_uri()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,900"]
    command = [BROWSER, *options, f"--screenshot={target.resolve()}", report]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main(arguments: list[str]) -> None:
    """Run the commands and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "walkthrough.md")
    parser.add_argument(
        "--work", type=Path, default=None, help="an empty folder to work in, kept; else a temporary one"
    )
    parser.add_argument("--picture", type=Path, default=None, help="FILE.png for a picture of the report")
    options = parser.parse_args(arguments)
    folder = options.work or Path(tempfile.mkdtemp())
    files, commands = instructions()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    steps = [run(command, folder) for command in commands]
    options.out.write_text(page(steps, files), encoding="utf-8")
    if options.picture:
        take_picture(folder, options.picture)
    if options.work is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
