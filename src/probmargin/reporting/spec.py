"""What a table asks of the records it is made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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

    @property
    def label(self) -> str:
        """The title, and the images where they are not all.

        >>> ColumnSpec(title="AA", attack="aa", protocol="standard", norm="Linf", eps=0.1, first=2000).label
        'AA (first 2,000)'
        """
        return self.title if self.first is None else f"{self.title} (first {self.first:,})"


@dataclass(frozen=True, kw_only=True)
class RowSpec:
    """One recipe. `run` names its runs but for the seed, `recipe` is what a record must have been trained by."""

    id: str
    run: str
    recipe: Mapping[str, Any]
    is_extra: bool = False
    published: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Mean and standard deviation in percent, by the title of the column."""
    doubts: Mapping[str, str] = field(default_factory=dict)
    """What speaks against a published number, by the title of the column."""

    def run_id(self, seed: int) -> str:
        """The name of one run."""
        return f"{self.run}-s{seed}"


@dataclass(frozen=True)
class Contrast:
    """A difference that is tested over the same images: the mean of some rows less that of others."""

    title: str
    plus: tuple[str, ...]
    minus: tuple[str, ...]

    @property
    def rows(self) -> tuple[str, ...]:
        """All rows it needs."""
        return (*self.plus, *self.minus)


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """A table: what it is called, what it claims, its rows and columns, and the differences it tests."""

    name: str
    title: str
    claim: str
    command: str
    data: str
    model: str
    rows: tuple[RowSpec, ...]
    columns: tuple[ColumnSpec, ...]
    contrasts: tuple[Contrast, ...] = ()
    trials: int = 1
    source: str = ""
    """Of the published numbers."""
    remark: str = ""
    """What a reader must know before comparing, such as a smaller scale."""
