"""Records into a table: means over seeds, the paper's numbers beside them, paired comparisons, what is missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from probmargin.core.stats import agreement_bound, mean_std, wilson_interval
from probmargin.reporting.cells import ColumnProtocol, Record, RowRecords, sort_records, verdicts
from probmargin.reporting.claims import Judged, judge
from probmargin.reporting.compare import Comparison, compare_widest
from probmargin.reporting.spec import NO_SEED, ColumnSpec, RowSpec, TableSpec, by_title, with_parts


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number in percent, with what it rests on; or none, and why."""

    column: ColumnSpec
    verdicts: Mapping[int, str]
    """By seed: a 1 for each image that is right, a 0 for each that is not."""
    published: tuple[float, float] | None = None
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
    def interval(self) -> tuple[float, float] | None:
        """Of a single seed's number: 95%, over the choice of test images (Wilson's)."""
        if self.trials != 1:
            return None
        (text,) = self.verdicts.values()
        low, high = wilson_interval(text.count("1"), len(text))
        return 100.0 * low, 100.0 * high

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
    """Records that were refused, what speaks against printed numbers, and what the paper leaves open."""

    @property
    def trials(self) -> int:
        """The most seeds any of its cells rests on."""
        return max((cell.trials for cell in self.cells), default=0)

    def cell(self, title: str) -> Cell | None:
        """The cell of a column by its title; where it has no number, the one that is cut from most images."""
        place = _speaking(self.cells, title)
        return None if place is None else self.cells[place]

    @property
    def drop(self) -> float | None:
        """Points lost from PGD to AutoAttack on the images, and the seeds, that both looked at."""
        pgd, aa = self.cell("PGD"), self.cell("AA")
        seeds = sorted(set(pgd.verdicts) & set(aa.verdicts)) if pgd and aa else []
        if pgd is None or aa is None or not seeds:
            return None
        count = min(pgd.num_examples, aa.num_examples)
        lost = [pgd.verdicts[seed][:count].count("1") - aa.verdicts[seed][:count].count("1") for seed in seeds]
        return 100.0 * sum(lost) / (count * len(seeds))

    @property
    def published_drop(self) -> float | None:
        """The same of the paper's numbers."""
        pgd, aa = self.row.published.get("PGD"), self.row.published.get("AA")
        return pgd[0] - aa[0] if pgd and aa else None

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
    claims: tuple[Judged, ...] = ()

    @property
    def has_drop(self) -> bool:
        """Does it have both PGD and AutoAttack?"""
        return {"PGD", "AA"} <= {column.title for column in self.spec.columns}

    @property
    def has_published(self) -> bool:
        """Does the paper print a number for any of its rows?"""
        return any(line.row.published for line in self.lines)

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

    @property
    def remarks(self) -> list[str]:
        """A sentence for each record that was refused and for each number of the paper that is in doubt."""
        return [f"`{line.row.id}`: {remark}" for line in self.lines for remark in line.remarks]


def build_table(spec: TableSpec, records: Sequence[Record], failures: Mapping[str, str] | None = None) -> Table:
    """Make a table of the records that belong to it; `failures` says, by run, why there is no record."""
    sorted_records = sort_records(spec, records)
    protocols = {column: ColumnProtocol(column) for column in spec.columns}
    lines = tuple(_line(spec, sorted_records[row.id], protocols, failures or {}) for row in spec.rows)
    cells = {line.row.id: [cell.verdicts for cell in line.cells] for line in lines}
    whole = [with_parts(spec.columns, column) for column in spec.columns if not column.is_part]
    pairs = (compare_widest(contrast, places, spec.columns, cells) for contrast in spec.contrasts for places in whole)
    comparisons = tuple(found for found in pairs if found is not None)
    remarks = [spec.remark, *(protocol.remark for column, protocol in protocols.items() if not column.is_part)]
    spec = replace(spec, remark=" ".join(filter(None, remarks)))
    return Table(spec, lines, comparisons, tuple(judge(claim, spec.columns, cells) for claim in spec.claims))


def _line(
    spec: TableSpec,
    found: RowRecords,
    protocols: Mapping[ColumnSpec, ColumnProtocol],
    failures: Mapping[str, str],
) -> Line:
    cells = [_cell(spec, found, protocols[column], failures) for column in spec.columns]
    for title, published in found.row.published.items():
        # The paper's number stands beside the whole column, and beside the part that has ours where that has none.
        if (speaking := _speaking(cells, title)) is not None:
            for place in {by_title(spec.columns, title)[0], speaking}:
                cells[place] = replace(cells[place], published=published)
    doubts = [f"the paper's {column}: {text}" for column, text in found.row.doubts.items()]
    left_open = [found.row.left_open] if found.row.left_open else []
    return Line(found.row, tuple(cells), (*found.refused, *doubts, *left_open))


def _speaking(cells: Sequence[Cell], title: str) -> int | None:
    """The place of a title's cell; where the whole column has no number, of the part with most images that has one."""
    places = by_title([cell.column for cell in cells], title)
    return next((place for place in places if cells[place].verdicts), next(iter(places), None))


def _cell(spec: TableSpec, found: RowRecords, protocol: ColumnProtocol, failures: Mapping[str, str]) -> Cell:
    row, column = found.row, protocol.column
    taken, reasons = {}, []
    # The first seeds count, as many as are asked for: the others would make a table of another number of trials.
    for seed, record in sorted(found.by_seed.items())[: spec.trials]:
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
    elif len(found.by_seed) + len(failed) < spec.trials and NO_SEED not in found.by_seed:
        reasons.append(f"{len(found.by_seed)} of {spec.trials} trials")
    return Cell(column=column, verdicts=taken, reasons=tuple(reasons))
