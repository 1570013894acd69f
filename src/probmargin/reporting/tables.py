"""Records into a table: means over seeds, the paper's numbers beside them, paired comparisons, what is missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probmargin.core.stats import agreement_bound, mean_std
from probmargin.reporting.cells import ColumnProtocol, Record, RowRecords, sort_records, verdicts
from probmargin.reporting.compare import Comparison, compare
from probmargin.reporting.spec import ColumnSpec, RowSpec, TableSpec


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number in percent, with what it rests on; or none, and why."""

    column: ColumnSpec
    verdicts: Mapping[int, str]
    """By seed: a 1 for each image that is right, a 0 for each that is not."""
    published: tuple[float, float] | None
    reasons: tuple[str, ...] = ()
    """Why there is no number, or why it rests on fewer trials."""

    @property
    def values(self) -> list[float]:
        """Percent right, a value a seed."""
        return [100.0 * text.count("1") / len(text) for text in self.verdicts.values()]

    @property
    def trials(self) -> int:
        """How many seeds the number rests on."""
        return len(self.verdicts)

    @property
    def mean(self) -> float | None:
        """Over seeds."""
        return mean_std(self.values)[0] if self.verdicts else None

    @property
    def std(self) -> float | None:
        """Over seeds; None for fewer than two."""
        return mean_std(self.values)[1] if self.verdicts else None

    @property
    def num_examples(self) -> int:
        """Test images behind each value."""
        return len(next(iter(self.verdicts.values()), ""))

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return self.mean - self.published[0] if self.mean is not None and self.published else None

    @property
    def bound(self) -> float | None:
        """2 sqrt(s^2 / n + binomial error^2) in points; a single trial borrows the paper's s."""
        if self.mean is None or self.published is None:
            return None
        std = self.published[1] if self.std is None else self.std
        return 100.0 * agreement_bound(std / 100.0, self.trials, self.mean / 100.0, self.num_examples)

    @property
    def is_within(self) -> bool | None:
        """Does the difference stay within the bound?"""
        if self.difference is None or self.bound is None:
            return None
        return abs(self.difference) <= self.bound


@dataclass(frozen=True)
class Line:
    """One row with its cells."""

    row: RowSpec
    cells: tuple[Cell, ...]
    remarks: tuple[str, ...] = ()
    """Records that were refused, and what speaks against printed numbers."""

    @property
    def trials(self) -> int:
        """The most seeds any of its cells rests on."""
        return max((cell.trials for cell in self.cells), default=0)

    def reasons(self) -> dict[str, list[str]]:
        """What is missing and why: reasons, each with the columns it holds for."""
        grouped: dict[str, list[str]] = {}
        for cell in self.cells:
            for reason in cell.reasons:
                grouped.setdefault(reason, []).append(cell.column.label)
        return grouped


@dataclass(frozen=True)
class Table:
    """A finished table."""

    spec: TableSpec
    lines: tuple[Line, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def is_empty(self) -> bool:
        """Is there no number at all?"""
        return all(line.trials == 0 for line in self.lines)

    @property
    def missing(self) -> list[str]:
        """A sentence for each blank or incomplete part of a row."""
        found = []
        for line in self.lines:
            for reason, columns in line.reasons().items():
                where = "" if len(columns) == len(line.cells) else f" {', '.join(columns)}"
                found.append(f"`{line.row.id}`{where}: {reason}")
        return found


def build_table(spec: TableSpec, records: Sequence[Record], failures: Mapping[str, str] | None = None) -> Table:
    """Make a table of the records that belong to it; `failures` says, by run, why there is no record."""
    sorted_records = sort_records(spec, records)
    protocols = {column: ColumnProtocol(column) for column in spec.columns}
    lines = tuple(_line(spec, sorted_records[row.id], protocols, failures or {}) for row in spec.rows)
    comparisons = []
    for contrast in spec.contrasts:
        for place, column in enumerate(spec.columns):
            cells = {line.row.id: line.cells[place].verdicts for line in lines}
            found = compare(contrast, column, cells)
            if found is not None:
                comparisons.append(found)
    return Table(spec, lines, tuple(comparisons))


def _line(
    spec: TableSpec,
    found: RowRecords,
    protocols: Mapping[ColumnSpec, ColumnProtocol],
    failures: Mapping[str, str],
) -> Line:
    cells = tuple(_cell(spec, found, protocols[column], failures) for column in spec.columns)
    doubts = [f"the paper's {column}: {text}" for column, text in found.row.doubts.items()]
    return Line(found.row, cells, (*found.refused, *doubts))


def _cell(spec: TableSpec, found: RowRecords, protocol: ColumnProtocol, failures: Mapping[str, str]) -> Cell:
    row, column = found.row, protocol.column
    taken, reasons = {}, []
    for seed, record in sorted(found.by_seed.items()):
        text, reason = verdicts(record, column)
        objection = reason or protocol.objection(record)
        if objection:
            reasons.append(f"{record['id']}: {objection}")
        else:
            taken[seed] = text
    absent = [row.run_id(seed) for seed in range(1, spec.trials + 1) if seed not in found.by_seed]
    failed = [f"{run} failed: {failures[run]}" for run in absent if run in failures]
    reasons += failed
    if not found.by_seed and not failed:
        reasons.append("no record")
    elif len(found.by_seed) + len(failed) < spec.trials:
        reasons.append(f"{len(found.by_seed)} of {spec.trials} trials")
    return Cell(column=column, verdicts=taken, published=row.published.get(column.title), reasons=tuple(reasons))
