"""The page of errors, made from the code: every message that the command line can end with, its cause and its fix.

A message names its own fix: what comes after its last semicolon or colon, or the rule before ", not VALUE".

python docs/errors.py [--check]
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "probmargin"
PAGE = ROOT / "docs" / "errors.md"

CODES = {"UsageError": 2, "Failure": 1, "TrainingStopped": 1, "Interrupted": 130}
"""What each error ends the command with."""

TITLES = {
    "api": "From Python",
    "attacks": "Attacks",
    "cli": "Command line",
    "core": "Settings",
    "data": "Data",
    "engine": "Files, devices and processes",
    "evaluation": "Evaluation",
    "experiments": "Experiments and reports",
    "export": "Export and import",
    "methods": "Recipes",
    "models": "Models",
    "objectives": "Objectives",
    "reporting": "Reports",
    "runs": "Runs",
    "training": "Training",
    "weights": "Weights",
}

HEAD = """# Errors

Made from the code by `python docs/errors.py`. A command that fails prints one line, `probmargin: MESSAGE`. Its exit
code is 2 where it was used in a wrong way, 1 where something else went wrong, 130 where it was interrupted with its
state saved. Words in `{braces}` stand for what was found. Python raises `pm.UsageError` with the same messages.

## The command line itself

| message | exit code | cause | fix |
|---|---|---|---|
| `No such option: {option}` | 2 | an option is misspelt | the line names the nearest ones |
| `No such command '{name}'` | 2 | a command is misspelt | the line names the nearest one |
| `Missing option '{option}'` | 2 | an option without a default is left out | give it |
| `Invalid value for '{option}'` | 2 | a word where a number belongs | the line says what is taken |
| `unknown {kind} '{name}'; did you mean ...?` | 2 | a name that nothing has | the nearest names, then all |
| `No space left on device: {file}; ...` | 1 | the disk is full | make room; `train` goes on with `--resume` |
| `{reason}: {file}` | 1 | the system refused a file | as the system's reason says |
"""


@dataclass(frozen=True)
class Message:
    """One error of the code."""

    file: str
    line: int
    code: int
    text: str

    @property
    def parts(self) -> tuple[str, str] | None:
        """Cause and fix; None where the message names no fix."""
        return split(self.text)


def split(text: str) -> tuple[str, str] | None:
    """Cause and fix of a message.

    >>> split("no CUDA device is available here; use --device cpu")
    ('no CUDA device is available here', 'use --device cpu')
    >>> split("epochs must be 1 or more, not {epochs}")
    ('it is {epochs}', 'epochs must be 1 or more')
    """
    place = _last_separator(text)
    if place is not None:
        return text[:place], text[place + 2 :]
    if found := re.fullmatch(r"(.+), not (\{.+\})", text):
        return f"it is {found[2]}", found[1]
    return None


def _last_separator(text: str) -> int | None:
    """Where the last semicolon or colon outside brackets and braces is."""
    depth, last = 0, None
    for place, letter in enumerate(text):
        depth += (letter in "({[") - (letter in ")}]")
        introduces = re.search(r"(see|with)$", text[:place])
        if depth == 0 and text[place : place + 2] in ("; ", ": ") and not introduces:
            last = place
    return last


@cache
def messages() -> tuple[Message, ...]:
    """Every message in the code that stands by itself; one that only puts a name before another is left out."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        file = str(path.relative_to(SOURCE))
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Call) and (code := CODES.get(ast.unparse(node.func))) and node.args:
                for text in templates(node.args[0], path):
                    if not text.endswith(": {error}") and not text.startswith("unknown {kind}"):
                        found.append(Message(file, node.lineno, code, text))
    return tuple(found)


def templates(node: ast.expr, path: Path) -> Iterator[str]:
    """A message with its values as words in braces; what a helper of the same file returns counts as written here."""
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.JoinedStr):
        for parts in product(*(_alternatives(part, path) for part in node.values)):
            yield "".join(parts)
    elif isinstance(node, ast.BinOp):
        for left, right in product(templates(node.left, path), templates(node.right, path)):
            yield left + right
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        yield from _returned(node.func.id, path)
    elif isinstance(node, ast.Name):
        yield from _local(node, path) or [_constant(node.id)]
    else:
        yield "{" + ast.unparse(node) + "}"


def _alternatives(part: ast.expr, path: Path) -> list[str]:
    """What may stand at one place of a message: text, the texts of a variable or of a helper, or a word in braces."""
    if isinstance(part, ast.Constant):
        return [str(part.value)]
    assert isinstance(part, ast.FormattedValue)
    value = part.value
    if isinstance(value, ast.Name) and value.id.isupper():
        return [_constant(value.id)]
    if isinstance(value, ast.Name) and (texts := _local(value, path)):
        return texts
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        sentences = list(_returned(value.func.id, path))
        if sentences and all(" " in text and not text.startswith("{") for text in sentences):
            return sentences
    return [_placeholder(value)]


def _placeholder(value: ast.expr) -> str:
    """A value by the last name in it: {self.alpha} is {alpha}; a step from a name stays, as in {total - 1}."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "typed":
        return _placeholder(value.args[0])
    if isinstance(value, ast.BinOp) and isinstance(value.left, ast.Name) and isinstance(value.right, ast.Constant):
        return "{" + ast.unparse(value) + "}"
    if isinstance(value, ast.Name):
        return "{" + value.id.strip("_") + "}"
    names = re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'|\"[^\"]*\"", "", ast.unparse(value)))
    plain = [name for name in names if name not in _NOISE]
    return "{" + (plain[-1].strip("_") if plain else "value") + "}"


def _local(name: ast.Name, path: Path) -> list[str]:
    """The texts that the function around gives this variable; none unless each is a text of its own."""
    functions = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.FunctionDef)]
    around = [node for node in functions if node.lineno <= name.lineno <= (node.end_lineno or 0)]
    texts: list[str] = []
    for node in ast.walk(around[-1]) if around else ():
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name.id]:
            both = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
            if not all(isinstance(value, ast.Constant | ast.JoinedStr) for value in both):
                return []
            texts += [text for value in both for text in templates(value, path)]
    return texts if all(texts) else []


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


_NOISE = {"self", "join", "len", "tuple", "str", "map", "list", "sorted", "for", "in", "if", "else", "or", "f", "type"}
_NOISE |= {"__name__", "shape", "strip", "with_suffix", "suffix", "getattr", "not", "is", "replace"}


def _returned(name: str, path: Path) -> Iterator[str]:
    """The templates that a function of this file returns."""
    for node in _tree(path).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    yield from templates(inner.value, path)


def _constant(name: str) -> str:
    """The text or the number a module gives this name."""
    for path in sorted(SOURCE.rglob("*.py")):
        found = re.search(rf'^{name} = (?:"(.+)"|([\d_]+))$', path.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return str(found[1] or found[2])
    return "{" + name + "}"


def page() -> str:
    """The page as Markdown."""
    groups: dict[str, list[Message]] = {}
    for message in messages():
        if message.parts is not None:
            groups.setdefault(Path(message.file).parts[0].removesuffix(".py"), []).append(message)
    lines = [HEAD]
    for folder in sorted(groups, key=lambda name: TITLES[name]):
        lines += [f"## {TITLES[folder]}", "", "| message | exit code | cause | fix |", "|---|---|---|---|"]
        rows = {message.text: message for message in sorted(groups[folder], key=lambda message: message.text)}
        lines += [_row(message) for message in rows.values()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _row(message: Message) -> str:
    assert message.parts is not None
    cause, fix = (_cell(part) for part in message.parts)
    return f"| `{message.text.replace('|', '/').replace('`', '')}` | {message.code} | {cause} | {fix} |"


def _cell(text: str) -> str:
    """Plain text in a Markdown table."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text)


def main(arguments: list[str]) -> int:
    """Write the page; with --check only say whether it is stale."""
    unclear = [message for message in messages() if message.parts is None]
    for message in unclear:
        sys.stdout.write(f"{message.file}:{message.line} names no fix: {message.text}\n")
    stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page()
    if "--check" in arguments:
        sys.stdout.write("docs/errors.md is stale: python docs/errors.py\n" if stale else "")
        return int(stale or bool(unclear))
    PAGE.write_text(page(), encoding="utf-8")
    return int(bool(unclear))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
