"""The border of the package: arguments of public functions checked and converted by their annotations."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union

from probmargin.core.records import coerce

P = ParamSpec("P")
R = TypeVar("R")

_SCALARS = (int, float, bool, str, Path, type(None))
_ORIGINS = (Union, types.UnionType, Sequence, tuple)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Convert arguments of plain kinds, such as int | None or Sequence[str], or say in one line what they take.

    An argument of another kind, as a network is, is left to the function.

    >>> @checked
    ... def area(width: float, height: float = 1.0) -> float:
    ...     return width * height
    >>> area("1/2", height=4)
    2.0
    >>> area([1])
    Traceback (most recent call last):
    ...
    probmargin.core.errors.UsageError: width takes a number, not [1]
    """
    signature = inspect.signature(function)
    hints = typing.get_type_hints(function, include_extras=True)
    kinds = {name: hint for name, hint in hints.items() if name != "return" and _is_plain(hint)}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            # Python itself says best which arguments are missing or unknown.
            return function(*args, **kwargs)
        for name in bound.arguments.keys() & kinds.keys():
            bound.arguments[name] = coerce(bound.arguments[name], kinds[name], name)
        return function(*bound.args, **bound.kwargs)

    return call


def _is_plain(kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if origin in (Annotated, Literal, Mapping, Callable):
        return True
    if origin in _ORIGINS:
        return all(_is_plain(member) for member in typing.get_args(kind) if member is not Ellipsis)
    # By its name, since what reads records does without torch.
    return kind in _SCALARS or getattr(kind, "__name__", "") == "Tensor"
