"""An experiment as data: its rows, its columns, what it claims and what it compares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from probmargin.reporting.spec import Claim, Contrast


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
    published_for: str = ""
    """Where those numbers are another row's, or another table's: whose."""
    is_extra: bool = False
    """Not in the paper's table."""
    left_open: str = ""
    """Settings that the paper does not print and that are therefore ours; "" where it prints all."""


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
SHORT_AA = (1000, 2000)
"""Test images of AutoAttack in tables that some rows enter by the first 2,000 alone."""


def against(row: str, baseline: str) -> Contrast:
    """One row less another.

    >>> against("mail-at", "at").title
    'mail-at - at'
    """
    return Contrast(f"{row} - {baseline}", (row,), (baseline,))


def above(row: str, baseline: str, *columns: str, by: float = 0.0) -> tuple[Claim, ...]:
    """In each of these columns one row lies above another.

    >>> [claim.text for claim in above("mail-at", "at", "PGD", "AA")]
    ['`mail-at` above `at` in PGD', '`mail-at` above `at` in AA']
    """
    return tuple(Claim(row=row, column=column, others=(baseline,), by=by) for column in columns)


def highest(row: str, rows: Sequence[str], *columns: str, by: float = 0.0, alike: str = "") -> tuple[Claim, ...]:
    """In each of these columns one row lies above all others, but for one that the paper prints alike."""
    others = tuple(other for other in rows if other not in (row, alike))
    return tuple(Claim(row=row, column=column, others=others, by=by, alike=alike) for column in columns)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table of the paper, or one of ours."""

    name: str
    title: str
    claim: str
    """What the rows can show, in one sentence; `claims` has it in parts."""
    data: str = "cifar10"
    model: str = "resnet18"
    rows: tuple[Row, ...]
    columns: tuple[Column, ...] = (NAT, PGD, AA)
    contrasts: tuple[Contrast, ...] = ()
    claims: tuple[Claim, ...] = ()
    """What it claims, in parts that records can decide."""
    aa_first: tuple[int, ...] = (1000,)
    """AutoAttack is also reported on the first so many test images: 1,000, as the paper's released code does."""
    trials: int = 5

    @property
    def command(self) -> str:
        """What makes it."""
        return f"probmargin reproduce {self.name}"
