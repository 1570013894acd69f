"""The paper's printed numbers, as facts with their source."""

import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from probmargin.core.errors import unknown_name


@functools.cache
def _facts() -> Mapping[str, Any]:
    text = resources.files("probmargin.experiments").joinpath("published.json").read_text(encoding="utf-8")
    facts: Mapping[str, Any] = json.loads(text)
    return facts


def published(place: str) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation in percent, by column, of a row named as TABLE/ROW; "" has none.

    >>> published("table2/mail-trades")["AA"]
    (50.6, 0.22)
    """
    if not place:
        return {}
    table, _, row = place.partition("/")
    tables = _facts()["tables"]
    if table not in tables:
        raise unknown_name("table", table, tables)
    if row not in tables[table]["rows"]:
        raise unknown_name(f"row of {table}", row, tables[table]["rows"])
    return {column: (mean, std) for column, (mean, std) in tables[table]["rows"][row].items()}


def doubts(place: str) -> dict[str, str]:
    """What speaks against a row's printed numbers, by column.

    >>> doubts("table3/awp")
    {'NAT': '57.55 cannot be right, since PGD is 54.17; kept as printed'}
    """
    return {column: text for where, column, text in _facts()["notes"] if where == place}


def source() -> str:
    """Where the numbers were printed."""
    return str(_facts()["source"])
