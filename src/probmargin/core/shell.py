"""Words as a user types them in a shell."""

import shlex


def typed(*words: object) -> str:
    """Paths and names for a command that is shown to be pasted: what a shell would split is quoted.

    >>> typed("runs/a"), typed("my runs/a", "it's")
    ('runs/a', '\\'my runs/a\\' \\'it\\'"\\'"\\'s\\'')
    """
    return shlex.join(str(word) for word in words)
