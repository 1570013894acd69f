"""Frozen data to plain JSON and back, typed, with a hash; imports no torch.

Components are named: a dataclass that a `Registry` knows is written as {"name": ..., its fields}.
"""

import dataclasses
import hashlib
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from probmargin.core.errors import UsageError, unknown_name, unknown_setting

Plain = Any
"""JSON's own types: dict, list, str, int, float, bool, None."""

Unbounded = Annotated[float, "may be infinite"]
"""A number that may be infinite; a plain float must be finite."""

_SHOWN = 80
"""Letters of a wrong value that an error repeats."""
_WORDS = {"str": "text", "Path": "a Path"}


def parse_number(text: str) -> float:
    """Read a decimal, a fraction or inf, without `eval`.

    >>> parse_number("8/255"), parse_number("-inf")
    (0.031372, -inf)
    """
    top, slash, bottom = text.strip().partition("/")
    try:
        value = float(top) / float(bottom) if slash else float(top)
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"{text!r} is not a number; write 0.031 or 8/255") from None
    if math.isnan(value):
        raise UsageError(f"{text!r} is not a number; write 0.031 or 8/255")
    return value


def to_plain(value: object) -> Plain:
    """Turn frozen data into JSON's types; an infinite number becomes a word, since JSON has none."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        name = getattr(type(value), "registered_name", None)
        return {"name": name, **fields} if name else fields
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def canonical_hash(plain: Plain) -> str:
    """Sixteen hex digits that identify a record whatever the order of its keys.

    >>> canonical_hash({"a": 1, "b": 2}) == canonical_hash({"b": 2, "a": 1})
    True
    """
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def coerce(value: Plain, kind: Any, path: str) -> Any:
    """Check plain data against an annotation and convert it; an error names the path.

    >>> coerce("8/255", float, "attack.eps"), coerce([74, 89], tuple[int, ...], "lr_milestones")
    (0.031372, (74, 89))
    """
    if kind is Any:
        return value
    value = value if getattr(kind, "__name__", "") == "Tensor" else _plain_scalar(value)
    if by_origin := _BY_ORIGIN.get(typing.get_origin(kind)):
        return by_origin(value, kind, path)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return value if isinstance(value, kind) else build(kind, value, path)
    return _coerce_scalar(value, kind, path)


def _plain_scalar(value: Any) -> Any:
    """A number of numpy's or torch's as Python's own."""
    is_foreign = type(value).__module__.partition(".")[0] in ("numpy", "torch")
    return value.item() if is_foreign and getattr(value, "ndim", 1) == 0 else value


def _shown(value: Any) -> str:
    """A value in an error's one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _check_function(value: Any, kind: Any, path: str) -> Any:
    if not callable(value):
        raise UsageError(f"{path} takes a function such as print, not {_shown(value)}")
    return value


def _coerce_mapping(value: Plain, kind: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{path} takes names with values such as {{'lr': 0.1}}, not {_shown(value)}")
    for name in value:
        if not isinstance(name, str):
            raise UsageError(f"{path} takes names as text, not {_shown(name)}")
    return dict(value)


def _coerce_literal(value: Plain, kind: Any, path: str) -> Any:
    known = typing.get_args(kind)
    if not isinstance(value, Hashable) or value not in known:
        raise unknown_name(path, _shown(value).strip("'"), map(str, known))
    return value


def _coerce_union(value: Plain, kind: Any, path: str) -> Any:
    members = typing.get_args(kind)
    if type(None) in members and (value is None or (isinstance(value, str) and value in ("none", "null"))):
        return None
    if {str, Path} <= set(members) and not isinstance(value, str | Path):
        raise UsageError(f"{path} takes a path, as text or a Path, not {_shown(value)}")
    errors = []
    for member in members:
        if member is type(None):
            continue
        try:
            return coerce(value, member, path)
        except UsageError as error:
            errors.append(error)
    raise errors[-1]


def _coerce_tuple(value: Plain, kind: Any, path: str) -> tuple[Any, ...]:
    if isinstance(value, str):
        value = [part for part in value.strip("[]() ").split(",") if part.strip()]
    if type(value).__module__.partition(".")[0] in ("numpy", "torch") and getattr(value, "ndim", 0) == 1:
        value = value.tolist()
    member = typing.get_args(kind)[0]
    if not isinstance(value, list | tuple | range):
        example = "['nat', 'pgd-20']" if member is str else "74,89"
        raise UsageError(f"{path} takes a list such as {example}, not {_shown(value)}")
    return tuple(coerce(item.strip() if isinstance(item, str) else item, member, path) for item in value)


def _coerce_scalar(value: Plain, kind: Any, path: str) -> Any:
    if kind is bool:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise UsageError(f"{path} takes true or false, not {_shown(value)}")
        return value
    if kind in (int, float):
        return _coerce_number(value, kind, path)
    if kind is str and isinstance(value, str):
        return value
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    name = getattr(kind, "__name__", str(kind))
    if name == "Tensor":
        raise UsageError(f"{path} takes a tensor, not {type(value).__name__}: take it out of its batch, or convert it")
    raise UsageError(f"{path} takes {_WORDS.get(name, name)}, not {_shown(value)}")


def _coerce_number(value: Plain, kind: type, path: str, *, unbounded: bool = False) -> float:
    try:
        number = parse_number(value) if isinstance(value, str) else value
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise UsageError(f"{path} takes a number, not {_shown(value)}")
    if not (abs(number) <= sys.float_info.max or (unbounded and abs(number) == math.inf)):
        raise UsageError(f"{path} takes a finite number, not {_shown(value)}")
    if kind is int and number != int(number):
        raise UsageError(f"{path} takes a whole number, not {_shown(value)}")
    return kind(number)  # type: ignore[no-any-return]


def _coerce_unbounded(value: Plain, kind: Any, path: str) -> float:
    return _coerce_number(value, float, path, unbounded=kind is Unbounded)


_BY_ORIGIN: dict[Any, Callable[[Any, Any, str], Any]] = {
    Annotated: _coerce_unbounded,
    Literal: _coerce_literal,
    Union: _coerce_union,
    types.UnionType: _coerce_union,
    tuple: _coerce_tuple,
    Sequence: _coerce_tuple,
    dict: _coerce_mapping,
    Mapping: _coerce_mapping,
    Callable: _check_function,
}


def build(cls: type, plain: Plain, path: str) -> Any:
    """Build a frozen dataclass from plain data, checking names and types of its fields."""
    if not isinstance(plain, Mapping):
        first = next((field.name for field in dataclasses.fields(cls)), "")
        such = f", such as {path}.{first}" if first and path else ""
        raise UsageError(
            f"{path} takes an object with the fields of {cls.__name__}, not {_shown(plain)}: give them{such}"
        )
    hints = typing.get_type_hints(cls, include_extras=True)
    known = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    settings = {}
    for key, value in plain.items():
        if key not in known:
            raise unknown_setting(path, str(key), known, getattr(cls, "registered_name", cls.__name__))
        settings[key] = coerce(value, known[key], f"{path}.{key}" if path else key)
    missing = [f.name for f in dataclasses.fields(cls) if f.name not in settings and _is_required(f)]
    if missing:
        raise UsageError(f"{path or cls.__name__} lacks {', '.join(missing)}: add them")
    return cls(**settings)


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
