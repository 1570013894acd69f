"""Whether plain data has the shape that its readers count on; imports no torch."""

import types
import typing
from collections.abc import Iterable
from typing import Any, Literal, Union

_NAMES = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}


def misfit(value: Any, kind: Any, path: str = "") -> str:
    """What first keeps a value from being of an annotated kind, a TypedDict for one; "" where nothing does.

    >>> misfit({"epoch": 1, "loss": [0.5]}, dict[str, float])
    'loss is a list'
    >>> misfit([], dict[str, float]), misfit({"epoch": 1}, dict[str, float])
    ('it is a list', '')
    """
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return ""
    if origin in (Union, types.UnionType):
        found = [misfit(value, member, path) for member in members]
        return "" if "" in found else max(found, key=len)
    if origin is Literal:
        return "" if value in members else _is(value, path)
    if origin in (dict, list) and not isinstance(value, origin):
        return _is(value, path)
    if origin is dict:
        return _first(misfit(item, members[1], _below(path, key)) for key, item in value.items())
    if origin is list:
        return _first(misfit(item, members[0], _below(path, place)) for place, item in enumerate(value))
    if typing.is_typeddict(kind):
        return _misfit_fields(value, kind, path)
    return "" if _is_scalar(value, kind) else _is(value, path)


def _misfit_fields(value: Any, kind: Any, path: str) -> str:
    if not isinstance(value, dict):
        return _is(value, path)
    missing = [name for name in sorted(kind.__required_keys__) if name not in value]
    if missing:
        return f"{_below(path, missing[0])} is missing"
    hints = typing.get_type_hints(kind)
    return _first(misfit(value[name], hint, _below(path, name)) for name, hint in hints.items() if name in value)


def _is_scalar(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)


def _first(found: Iterable[str]) -> str:
    return next((text for text in found if text), "")


def _below(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _is(value: Any, path: str) -> str:
    return f"{path or 'it'} is {_NAMES.get(type(value), 'null')}"
