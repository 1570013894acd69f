"""Counts in a sentence."""


def counted(count: int, noun: str) -> str:
    """A number of things, one thing in the singular.

    >>> counted(1, "run"), counted(0, "run"), counted(1200, "image")
    ('1 run', '0 runs', '1,200 images')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
