"""Robustness class by class, and what attacked images are taken for."""

from collections.abc import Sequence
from dataclasses import dataclass

from probmargin.reporting.page.data import RunReport
from probmargin.reporting.page.words import percent

MOST_CLASSES = 20
"""A matrix of more is no longer read; its most frequent mistakes are."""
MOST_MISTAKES = 15
_SHADES = 8


@dataclass(frozen=True)
class ClassRow:
    """One class: clean and robust accuracy of each run."""

    name: str
    shares: list[tuple[float | None, float | None]]

    @property
    def texts(self) -> list[tuple[str, str]]:
        """The shares in percent."""
        return [(percent(nat), percent(robust)) for nat, robust in self.shares]


@dataclass(frozen=True)
class ClassTable:
    """Runs that share their classes, side by side."""

    places: list[int]
    """Of the runs among all."""
    rows: list[ClassRow]


def class_tables(reports: Sequence[RunReport]) -> list[ClassTable]:
    """A table for each set of classes that runs were judged on; a run without results is in none."""
    groups: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    for place, report in enumerate(reports):
        if count := max(map(len, _pair(report))):
            names = tuple(report.class_name(number) for number in range(count))
            groups.setdefault((count, names), []).append(place)
    return [
        ClassTable(places, _rows(names, [_pair(reports[place]) for place in places]))
        for (_, names), places in groups.items()
    ]


def _rows(names: Sequence[str], pairs: Sequence[tuple[list[float | None], list[float | None]]]) -> list[ClassRow]:
    return [
        ClassRow(name, [(_at(nat, number), _at(robust, number)) for nat, robust in pairs])
        for number, name in enumerate(names)
    ]


def _pair(report: RunReport) -> tuple[list[float | None], list[float | None]]:
    evaluation = report.folder.evaluation or {}
    nat, worst = ((evaluation.get(name) or {}).get("per_class") or [] for name in ("nat", "worst_case"))
    return nat, worst


def _at(values: Sequence[float | None], number: int) -> float | None:
    return values[number] if number < len(values) else None


@dataclass(frozen=True)
class Confusion:
    """What attacked images of each class are taken for."""

    names: list[str]
    rows: list[list[tuple[int, int]]]
    """Of each true class: count and shade (0 to 8) for each class it is taken for; empty for too many classes."""
    mistakes: list[tuple[str, str, int, str]]
    """The most frequent ones: class, taken for, how often, share of the class."""
    num_examples: int


def confusion(report: RunReport) -> Confusion | None:
    """The matrix of a run's worst case; None where nothing was attacked."""
    worst = (report.folder.evaluation or {}).get("worst_case") or {}
    counts = worst.get("confusion")
    if not counts:
        return None
    names = [report.class_name(number) for number in range(len(counts))]
    sizes = [sum(row) for row in counts]
    wrong = [
        (count, true, taken)
        for true, row in enumerate(counts)
        for taken, count in enumerate(row)
        if count and taken != true
    ]
    wrong.sort(key=lambda entry: (-entry[0], entry[1], entry[2]))
    mistakes = [(names[t], names[p], count, percent(count / sizes[t])) for count, t, p in wrong[:MOST_MISTAKES]]
    rows = []
    if len(counts) <= MOST_CLASSES:
        rows = [[(count, _shade(count, size)) for count in row] for row, size in zip(counts, sizes, strict=True)]
    return Confusion(names, rows, mistakes, sum(sizes))


def _shade(count: int, size: int) -> int:
    """How dark a cell is: 0 for none, else 1 to 8 by its share of the class.

    >>> _shade(0, 10), _shade(1, 100), _shade(10, 10)
    (0, 1, 8)
    """
    return 0 if count == 0 or size == 0 else max(1, round(_SHADES * count / size))
