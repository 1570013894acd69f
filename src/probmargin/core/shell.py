"""Words as a user types them in a shell."""

import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any


def typed(*words: object) -> str:
    """Paths and names for a command that is shown to be pasted: what a shell would split is quoted.

    >>> typed("runs/a"), typed("my runs/a", "it's")
    ('runs/a', '\\'my runs/a\\' \\'it\\'"\\'"\\'s\\'')
    """
    return shlex.join(str(word) for word in words)


def program(record: Mapping[str, Any]) -> list[str]:
    """How a command about a run begins: with the files of the user's own that it was trained with.

    >>> program({}), program({"plugins": [{"file": "mine.py", "registers": {"margin": ["mine"]}}]})
    (['probmargin'], ['probmargin', '--plugin', 'mine.py'])
    """
    files = [plugin["file"] for plugin in record.get("plugins") or () if plugin["registers"]]
    return ["probmargin", *(word for file in files for word in ("--plugin", plugin_word(file)))]


NAMED = ("digits", "cifar10", "cifar100", "svhn")
"""Data that a command names as it is."""


def is_named(data: str) -> bool:
    """Whether a command can name a run's data, which was otherwise handed over from Python.

    >>> is_named("digits"), is_named("folder:shapes"), is_named("arrays")
    (True, True, False)
    """
    return data in NAMED or data.startswith(("folder:", "npz:"))


def is_typed(record: Mapping[str, Any]) -> bool:
    """Whether a command can train a run: its data and its model have names.

    >>> is_typed({"model_settings": {}, "data": "digits"}), is_typed({"model_settings": None, "data": "digits"})
    (True, False)
    """
    return record.get("model_settings") is not None and is_named(str(record.get("data", "")))


def judging(record: Mapping[str, Any], command: str, path: object, *words: str) -> str:
    """The command that judges a run; "" where its model was an object, which no command can build.

    >>> judging({"model_settings": {}, "data": "arrays"}, "audit", "runs/a")
    'probmargin audit runs/a --data npz:FILE'
    """
    if record.get("model_settings") is None:
        return ""
    data = [] if is_named(str(record.get("data", ""))) else ["--data", "npz:FILE"]
    return typed(*program(record), command, path, *data, *words)


def plugin_word(file: str) -> str:
    """What --plugin takes for a file that a record names: a module of a package is imported by its whole name.

    >>> plugin_word("mine.py"), plugin_word("lab/mine.py"), plugin_word("lab/__init__.py")
    ('mine.py', 'lab.mine', 'lab')
    """
    parts = PurePosixPath(file).with_suffix("").parts
    return file if len(parts) == 1 else ".".join(parts).removesuffix(".__init__")
