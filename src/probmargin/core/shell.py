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


def plugin_word(file: str) -> str:
    """What --plugin takes for a file that a record names: a module of a package is imported by its whole name.

    >>> plugin_word("mine.py"), plugin_word("lab/mine.py"), plugin_word("lab/__init__.py")
    ('mine.py', 'lab.mine', 'lab')
    """
    parts = PurePosixPath(file).with_suffix("").parts
    return file if len(parts) == 1 else ".".join(parts).removesuffix(".__init__")
