"""The code blocks of README, CONTRIBUTING and docs/: which are run, which are only read, and how.

A page is one session in one empty folder, from its first block to its last. CONTRIBUTING.md says what the words after
a block's language mean.
"""

import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from markdown_it import MarkdownIt
from program import forget_components
from torch.distributed.run import parse_args

from probmargin import cli
from probmargin.cli.app import app
from probmargin.evaluation.own_attacks import PREFIX
from probmargin.evaluation.protocol import make_plan
from probmargin.experiments.catalogue import STUDIES, find
from probmargin.methods.plain import COMPONENTS, parse_assignments
from probmargin.methods.resolve import read_recipe, resolve

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

SHOWN = {"text", "json", "math", "pycon"}
"""Languages of blocks that are no commands."""
READ_ONLY = {"cifar", "gpu", "cluster", "long", "setup", "sketch"}
"""Words for blocks that are checked and not run."""

TYPERS_OWN = {"--version", "--help", "--install-completion", "--show-completion"}


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: Path
    line: int
    language: str
    words: frozenset[str]
    file: str | None
    text: str

    @property
    def place(self) -> str:
        """Where it stands."""
        return f"{self.page.name}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Whether it is run, and not only read."""
        return self.language in ("bash", "python") and not self.words & READ_ONLY


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        line = (token.map or [0])[0] + 1
        if token.type in ("fence", "code_block"):
            language, *words = token.info.split() or [""]
            files = [word.removeprefix("file=") for word in words if word.startswith("file=")]
            plain = frozenset(word for word in words if not word.startswith("file="))
            yield Block(page, line, language, plain, files[0] if files else None, token.content)


def commands(text: str) -> list[list[str]]:
    """The commands of a shell block, as words; a backslash joins lines."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return [words for line in joined.splitlines() if (words := shlex.split(line, comments=True))]


def own_arguments(words: list[str]) -> list[str] | None:
    """The arguments of `probmargin` in a command, None where it is another program's."""
    if words[0] == "probmargin":
        return words[1:]
    if words[0] == "torchrun":
        # Its own parser, since it refuses options behind the module's name that look like half of its own.
        asked = parse_args(words[1:])
        return list(asked.training_script_args) if asked.training_script == "probmargin" else None
    if "-m" in words and words[words.index("-m") + 1 :][:1] == ["probmargin"]:
        return words[words.index("-m") + 2 :]
    return None


def check_command(words: list[str]) -> None:
    """Refuse a command that could not work: unknown options, names, targets, extras."""
    arguments = own_arguments(words)
    if arguments is not None:
        check_arguments(arguments)
    elif words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert set(words[1:]) <= set(targets), f"make has no target {words[1:]}"
    elif words[:2] == ["pip", "install"]:
        extras = {name for word in words for found in re.findall(r"\[([\w,]+)\]", word) for name in found.split(",")}
        known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
        assert extras <= set(known), f"there is no extra {extras - set(known)}"
    else:
        assert words[0] in ("git", "cd", "ray", "python", "torchrun"), f"nobody checks {words[0]}"


def check_arguments(arguments: list[str]) -> None:
    """Parse a command line of `probmargin`, and look its names up."""
    group: Any = typer.main.get_command(app)
    plugins = 0
    while arguments[0] == "--plugin":
        plugins, arguments = plugins + 1, arguments[2:]
    if arguments[0].startswith("--"):
        # Completion belongs to typer, which adds its options only where it can tell the shell.
        assert arguments[0] in TYPERS_OWN
        return
    assert arguments[0] in group.commands, f"there is no command {arguments[0]!r}"
    given = group.commands[arguments[0]].make_context(arguments[0], list(arguments[1:])).params
    if arguments[0] == "train":
        recipe = given["recipe"] if given["recipe"] and Path(given["recipe"]).exists() else None
        settings = parse_assignments(given["settings"] or ())
        resolve(
            read_recipe(recipe) if recipe else given["method"],
            preset=given["preset"],
            data=given["data"],
            model=given["model"],
            # What a file of the reader's own registers is known once the block is run.
            settings={
                path: value for path, value in settings.items() if not (plugins and path.split(".")[0] in COMPONENTS)
            },
        )
    elif arguments[0] == "evaluate":
        for name in given["attacks"].split(","):
            if not (plugins and name.strip().startswith(PREFIX)):
                make_plan(name.strip(), "Linf", 8 / 255)
    elif arguments[0] == "reproduce" and given["name"] not in STUDIES:
        find(given["name"])


def inline_code(page: Path) -> list[str]:
    """What a page shows as code inside its sentences and tables."""
    parsed = MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
    return [piece.content for token in parsed for piece in token.children or [] if piece.type == "code_inline"]


def known_options() -> set[str]:
    """Every option of every command."""
    group: Any = typer.main.get_command(app)
    commands = (group, *group.commands.values())
    return {name for command in commands for option in command.params for name in option.opts}


def check_inline(text: str) -> None:
    """Refuse a command, an option or a setting in a sentence that could not work."""
    words = text.removeprefix("probmargin ").split()
    group: Any = typer.main.get_command(app)
    if text.startswith("probmargin ") or (words[0] in group.commands and " --" in text):
        try:
            check_arguments(words if words[0] != "COMMAND" else words[1:])
        except Exception as error:
            # In a sentence a command may leave out what it needs.
            if type(error).__name__ != "MissingParameter":
                raise
        return
    if text.startswith("--"):
        assert words[0].split("=")[0] in known_options() | TYPERS_OWN, f"there is no option {words[0]}"
    settings = re.findall(r"--set ([\w.]+=[\w./-]*[a-z\d])(?= |$)", text)
    if settings:
        resolve("mail-trades", settings=parse_assignments(settings))


def run_command(words: list[str], set_argv: Callable[[list[str]], None]) -> None:
    """Run a command in this process; it must end well."""
    arguments = own_arguments(words)
    assert arguments is not None or words[0] == "python", f"{words[0]} is not run here: mark its block"
    try:
        if arguments is None:
            set_argv(words[1:])
            runpy.run_path(words[1], run_name="__main__")
        else:
            set_argv(["probmargin", *arguments])
            cli.main()
    except SystemExit as stop:
        if stop.code:
            raise AssertionError(f"{shlex.join(words)} ended with {stop.code}") from None


def run_block(block: Block, set_argv: Callable[[list[str]], None]) -> None:
    """Run a block in the current folder; one with a file name is written to it."""
    if block.file:
        Path(block.file).parent.mkdir(parents=True, exist_ok=True)
        Path(block.file).write_text(block.text, encoding="utf-8")
    elif block.language == "bash":
        for words in commands(block.text):
            run_command(words, set_argv)
    else:
        exec(compile(block.text, block.place, "exec"), {"__name__": "__main__"})


def forget_modules(folder: Path) -> None:
    """Let the next page import its own modules of the same names, and register its own components."""
    forget_components(folder)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
