"""Pages made from the code: the command line, the Python API, the components."""

import ast
import inspect
import re
import textwrap
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import typer

from probmargin import api
from probmargin.attacks.attack import ATTACKS
from probmargin.cli.main import app
from probmargin.core.registry import Registry
from probmargin.margins.margin import MARGINS
from probmargin.objectives.objective import OBJECTIVES
from probmargin.weights.weight import NORMALIZERS, WEIGHTS

FAMILIES: dict[str, tuple[Registry[Any], str]] = {
    "Margins": (MARGINS, "How safe an example is; `--set margin=NAME`."),
    "Weights": (WEIGHTS, "How much an example counts, from its margin; `--set weight=NAME`."),
    "Normalizers": (NORMALIZERS, "How the weights of a batch are scaled; `--set normalizer=NAME`."),
    "Objectives": (OBJECTIVES, "The loss of an example, and which part of it the weight multiplies."),
    "Attacks": (ATTACKS, "What is run in training, or by `pm.attack(NAME, ...)`; `--set attack=NAME`."),
}


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def _option_row(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    default = option.default
    is_plain = default is None or default == [] or getattr(option, "is_flag", False) or default == ""
    shown = "needed" if option.required else "" if is_plain else f"`{_cell(default)}`"
    return f"| {names} | {_cell(option.help or '')} | {shown} |"


def _command(name: str, command: Any) -> str:
    places = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option"]
    words = [p.name.upper() if p.required else f"[{p.name.upper()}]" for p in places]
    usage = " ".join(["probmargin", name, *words, "[OPTIONS]"])
    parts = [
        f"## {name}\n",
        f"{(command.help or '').strip()}\n",
        f"```text\n{usage}\n```\n",
    ]
    if places:
        rows = [f"| `{place.name.upper()}` | {_cell(place.help or '')} |" for place in places]
        parts.append("\n".join(["| argument | |", "|---|---|", *rows]) + "\n")
    if options:
        rows = [_option_row(option) for option in options if not option.hidden]
        parts.append("\n".join(["| option | | default |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def command_names(group: Any) -> list[str]:
    """The commands in the order a user meets them."""
    names: list[str] = group.list_commands(None)
    return names


def command_line() -> str:
    """Every command with its arguments and options."""
    group: Any = typer.main.get_command(app)
    intro = (
        "# Command line\n\nMade from the commands themselves; `probmargin COMMAND --help` says the same. Exit codes: "
        "0 done; 2 wrong use, with one line that names the fix; 1 anything else, a full disk too; 130 interrupted, "
        "state saved.\n\n`probmargin --install-completion` adds completion to your shell, `--show-completion` "
        "prints it, `--version` prints the version. `probmargin --plugin FILE COMMAND` imports "
        "[components of your own](method.md#a-margin-of-your-own) first.\n"
    )
    return "\n".join([intro, *(_command(name, group.commands[name]) for name in command_names(group))])


def _laid_out(lines: list[str]) -> str:
    """A formula as it stands, then what its symbols mean as a table."""
    shown: list[str] = []
    rows: list[list[str]] = []
    for line in lines:
        if named := re.match(r"([A-Z]\w+): +(.*)", line):
            rows.append([named[1], named[2]])
        elif rows and line.startswith("   "):
            rows[-1][1] += f" {line.strip()}"
        else:
            shown.append(line)
    text = textwrap.dedent("\n".join(shown)).strip("\n")
    parts = [f"```text\n{text}\n```\n"] if text else []
    if rows:
        parts.append(
            "\n".join(["| | |", "|---|---|", *(f"| {name} | {_cell(_literal(words))} |" for name, words in rows)])
        )
    return "\n".join(parts) + "\n"


def _literal(text: str) -> str:
    """Text in which stars and underscores mean themselves, outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<\[])", r"\\\1", part) for part in parts)


def _doc(thing: Any) -> str:
    """A docstring as Markdown: sentences, then the worked example."""
    text = inspect.getdoc(thing) or ""
    words, found, example = text.partition(">>>")
    lines = words.rstrip().splitlines()
    if any(re.match(r" {4}\S", line) for line in lines):
        parts = [_literal(lines[0]) + "\n", _laid_out(lines[1:])]
    else:
        parts = [_literal(words.rstrip()) + "\n"]
    if found:
        parts.append(f"```pycon\n>>>{example}\n```\n")
    return "\n".join(parts)


def _signature(thing: Any) -> str:
    """A function's signature as it is written: 8 / 255 stays a fraction."""
    source = textwrap.dedent(inspect.getsource(thing))
    function: Any = ast.parse(source).body[0]
    head = source.splitlines()[function.lineno - 1 : function.body[0].lineno - 1]
    return "\n".join(head).removeprefix("def ").rstrip().removesuffix(":")


def _members(thing: type) -> str:
    """Public fields, properties and methods of a class."""
    rows = []
    if is_dataclass(thing):
        for entry in fields(thing):
            default = "" if entry.default is MISSING else f" = {entry.default!r}"
            kind = re.sub(r"(?:\w+\.)+(\w+)", r"\1", inspect.formatannotation(entry.type))
            rows.append(f"| `{entry.name}` | `{_cell(kind)}{_cell(default)}` |")
    for name, member in inspect.getmembers(thing):
        if not name.startswith("_") and (isinstance(member, property) or inspect.isfunction(member)):
            summary = (inspect.getdoc(member) or "").splitlines()[:1]
            call = "()" if inspect.isfunction(member) else ""
            rows.append(f"| `{name}{call}` | {_cell(summary[0] if summary else '')} |")
    return "\n".join(["| member | |", "|---|---|", *rows]) + "\n" if rows else ""


def python_api() -> str:
    """The public names with signatures and docstrings."""
    parts = ["# Python API\n", "`import probmargin as pm`; every name is `pm.NAME`. The examples run as tests.\n"]
    functions = [name for name in api.__all__ if not inspect.isclass(getattr(api, name))]
    classes = [name for name in api.__all__ if inspect.isclass(getattr(api, name))]
    links = [f"[`{name}`](#{name.lower()})" for name in functions]
    links += [f"[`{name}`](#class-{name.lower()})" for name in classes]
    parts.append(" · ".join(links) + "\n")
    for name in functions:
        thing = getattr(api, name)
        parts.append(f"## {name}\n\n```python\n{_signature(thing)}\n```\n\n{_doc(thing)}")
    for name in classes:
        thing = getattr(api, name)
        parts.append(f"## class {name}\n\n{_doc(thing)}\n{_members(thing)}")
    return "\n".join(parts)


def components() -> str:
    """Every component with its formula, symbols, range, source and where it departs from it."""
    parts = [
        "# Components\n",
        "What recipes are made of, from the docstrings. `probmargin list` prints the names; "
        "[adding one](../CONTRIBUTING.md#adding-a-component-is-adding-one-file) is adding a file. "
        "`Deviation` says where we differ from the source.\n",
    ]
    for family, (registry, what) in FAMILIES.items():
        parts.append(f"## {family}\n\n{what}\n")
        for name in registry.names():
            parts.append(f"### {name}\n\n{_doc(registry.get(name))}")
    return "\n".join(parts)


MADE = {"command-line": command_line, "api": python_api, "components": components}
"""Pages that are made from the code."""
