"""What a table asks of the records it is made from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

CLEAN = "nat"
"""The attack that leaves images as they are: it is the same in every ball and under every protocol."""
NO_SEED = -1
"""Of a model that was not trained here: its verdicts stand beside those of any seed."""


@dataclass(frozen=True, kw_only=True)
class ColumnSpec:
    """One attack under one protocol; every number of the column is measured this way."""

    title: str
    attack: str
    protocol: str
    norm: str
    eps: float
    first: int | None = None
    """Only the first so many test images count; None is all of them."""
    is_part: bool = False
    """Is it cut from another column's verdicts? Then it speaks only where that column has no number."""
    meaning: Mapping[str, Any] | None = field(default=None, compare=False)
    """What the attack's name means in today's code, as results store it; None where whoever asks does not say."""

    @property
    def label(self) -> str:
        """The title, and the images where they are not all.

        >>> ColumnSpec(title="AA", attack="aa", protocol="standard", norm="Linf", eps=0.1, first=2000).label
        'AA (first 2,000)'
        """
        return self.title if self.first is None else f"{self.title} (first {self.first:,})"


def with_parts(columns: Sequence[ColumnSpec], whole: ColumnSpec) -> list[int]:
    """The places of a column and of those that are cut from it, the most images first."""
    cut = (replace(whole, is_part=True, first=column.first) == column for column in columns)
    parts = [place for place, is_cut in enumerate(cut) if is_cut]
    return [columns.index(whole), *sorted(parts, key=lambda place: -(columns[place].first or 0))]


def by_title(columns: Sequence[ColumnSpec], title: str) -> list[int]:
    """The same of a title's first column; nothing where it has none."""
    whole = next((column for column in columns if column.title == title and not column.is_part), None)
    return [] if whole is None else with_parts(columns, whole)


@dataclass(frozen=True, kw_only=True)
class RowSpec:
    """One recipe. `run` names its runs but for the seed, `recipe` is what a record must have been trained by."""

    id: str
    run: str
    recipe: Mapping[str, Any]
    is_extra: bool = False
    published: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Mean and standard deviation in percent, by the title of the column."""
    published_for: str = ""
    """Where the published numbers are another row's, or another table's: whose."""
    doubts: Mapping[str, str] = field(default_factory=dict)
    """What speaks against a published number, by the title of the column."""
    left_open: str = ""
    """Settings that whoever published its numbers does not print; "" where none is known."""

    def run_id(self, seed: int) -> str:
        """The name of one run."""
        return f"{self.run}-s{seed}"


@dataclass(frozen=True)
class Contrast:
    """A difference that is tested over the same images: the mean of some rows less that of others, times `factor`."""

    title: str
    plus: tuple[str, ...]
    minus: tuple[str, ...]
    factor: float = 1.0

    @property
    def rows(self) -> tuple[str, ...]:
        """All rows it needs."""
        return (*self.plus, *self.minus)


FEW_ROWS = 3
"""So many are named in a sentence."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One thing the paper says that records can test: in a column, a row lies above each of others."""

    row: str
    column: str
    """Its title."""
    others: tuple[str, ...]
    by: float = 0.0
    """At least so many points above; below 0 it may lie so many points lower."""
    alike: str = ""
    """A row that the paper prints the same number for, and that is therefore no other."""

    @property
    def text(self) -> str:
        """In words.

        >>> Claim(row="a", column="AA", others=("b",)).text, Claim(row="a", column="AA", others=("b",), by=5.0).text
        ('`a` above `b` in AA', '`a` at least 5 points above `b` in AA')
        >>> Claim(row="a", column="AA", others=("b", "c")).text
        '`a` above `b` and `c` in AA'
        >>> Claim(row="a", column="AA", others=("b",), alike="c").text
        '`a` above `b` in AA (the paper prints `c` alike)'
        """
        other = " and ".join(f"`{name}`" for name in self.others)
        if len(self.others) > FEW_ROWS:
            other = f"the paper's {len(self.others)} other rows"
        points = f"{abs(self.by):g} point{'' if abs(self.by) == 1 else 's'}"
        where = f"{other} in {self.column}" + (f" (the paper prints `{self.alike}` alike)" if self.alike else "")
        if self.by < 0:
            return f"`{self.row}` at most {points} below {where}"
        least = f"at least {points} " if self.by else ""
        return f"`{self.row}` {least}above {where}"

    @property
    def contrasts(self) -> tuple[Contrast, ...]:
        """The differences that decide it."""
        return tuple(Contrast(f"{self.row} - {other}", (self.row,), (other,)) for other in self.others)


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """A table: what it is called, what it claims, its rows and columns, and the differences it tests."""

    name: str
    title: str
    claim: str
    """In a sentence; "" where nothing is claimed."""
    command: str
    data: str
    model: str
    rows: tuple[RowSpec, ...]
    columns: tuple[ColumnSpec, ...]
    contrasts: tuple[Contrast, ...] = ()
    claims: tuple[Claim, ...] = ()
    trials: int = 1
    """The first so many seeds count."""
    is_own: bool = False
    """Are its rows a user's own trainings, whatever they are, and not the paper's recipes, from which none departs?"""
    source: str = ""
    """Of the published numbers."""
    remark: str = ""
    """What a reader must know before comparing, such as a smaller scale."""
