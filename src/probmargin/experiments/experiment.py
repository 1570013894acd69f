"""An experiment as data: its rows, its columns, what it claims and what it compares."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from probmargin.reporting.spec import Contrast


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: a recipe, repeated over seeds."""

    id: str
    """The method, with a suffix where it is not the method's plain recipe; also names the run."""
    method: str
    preset: str = "paper"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the recipe, by path."""
    published: str = ""
    """TABLE/ROW of published.json; "" where the paper prints nothing."""
    is_extra: bool = False
    """Not in the paper's table."""


@dataclass(frozen=True)
class Column:
    """One attack under one protocol."""

    title: str
    attack: str
    protocol: str = "standard"


NAT, PGD, APGD, CW, AA = (
    Column("NAT", "nat"),
    Column("PGD", "pgd-100"),
    Column("APGD", "apgd-ce"),
    Column("CW", "cw"),
    Column("AA", "aa"),
)
AA_1000 = Column("AA-1000", "aa", "official-1000")


def against(row: str, baseline: str) -> Contrast:
    """One row less another.

    >>> against("mail-at", "at").title
    'mail-at - at'
    """
    return Contrast(f"{row} - {baseline}", (row,), (baseline,))


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table of the paper, or one of ours."""

    name: str
    title: str
    claim: str
    """What the rows can show, in one sentence."""
    data: str = "cifar10"
    model: str = "resnet18"
    rows: tuple[Row, ...]
    columns: tuple[Column, ...] = (NAT, PGD, AA)
    contrasts: tuple[Contrast, ...] = ()
    trials: int = 5

    @property
    def command(self) -> str:
        """What makes it."""
        return f"probmargin reproduce {self.name}"
