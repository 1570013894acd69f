"""Counts and radii in a sentence."""

import math


def counted(count: int, noun: str) -> str:
    """A number of things, one thing in the singular.

    >>> counted(1, "run"), counted(0, "run"), counted(1200, "image")
    ('1 run', '0 runs', '1,200 images')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def radius(eps: float) -> str:
    """A radius; in 255ths where it is a whole number of them and not a short decimal as well.

    >>> radius(8 / 255), radius(0.15), radius(0.031), radius(0.2)
    ('8/255', '0.15', '0.031', '0.2')
    """
    levels, decimal = eps * 255, f"{eps:.4g}"
    is_whole = levels >= 0.5 and math.isclose(levels, round(levels), abs_tol=1e-6)
    return f"{round(levels)}/255" if is_whole and eps < 1 and float(decimal) != eps else decimal
