"""A table as CSV: cells, paired comparisons and claims, a file each."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from probmargin.reporting.compare import Comparison, Interval
from probmargin.reporting.spec import NO_SEED
from probmargin.reporting.tables import Cell, Line, Table

CELL_FIELDS = (
    "table row extra column attack protocol norm eps images trials mean std low high paper_mean paper_std paper_for "
    "difference bound within pgd_minus_aa reason"
).split()
COMPARISON_FIELDS = (
    "table difference column attack protocol images seed points low high only_first only_second mcnemar_p z_p seeds "
    "seeds_std seeds_low seeds_high t_p"
).split()
CLAIM_FIELDS = "table row column others by verdict decided_by points low high images seeds missing".split()

Fields = Mapping[str, object]


def _written(names: Sequence[str], rows: Iterable[Fields]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _decimal(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}"


def _p(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _cell(table: Table, line: Line, cell: Cell) -> Fields:
    column, paper = cell.column, cell.published or (None, None)
    low, high = cell.interval or (None, None)
    numbers = {"mean": cell.mean, "std": cell.std, "low": low, "high": high, "paper_mean": paper[0]}
    numbers |= {"paper_std": paper[1], "difference": cell.difference, "bound": cell.bound}
    if cell is line.cell("AA"):
        numbers["pgd_minus_aa"] = line.drop
    return {
        "table": table.spec.name,
        "row": line.row.id,
        "extra": str(line.row.is_extra).lower(),
        "column": column.label,
        "attack": column.attack,
        "protocol": column.protocol,
        "norm": column.norm,
        "eps": f"{column.eps:.6g}",
        "images": cell.num_examples or None,
        "trials": cell.trials,
        "paper_for": line.row.published_for or None,
        "within": None if cell.is_within is None else str(cell.is_within).lower(),
        "reason": "; ".join(cell.reasons),
        **{name: _decimal(value) for name, value in numbers.items()},
    }


def comma_separated(table: Table) -> str:
    """One line a cell."""
    return _written(CELL_FIELDS, (_cell(table, line, cell) for line in table.lines for cell in line.cells))


def _points(found: Comparison, interval: Interval) -> Fields:
    low, high = interval
    return {"points": _decimal(found.difference), "low": _decimal(low), "high": _decimal(high)}


def _comparison(table: Table, found: Comparison) -> list[Fields]:
    """A line for all seeds together, then one for each where two rows are compared."""
    column = found.column
    facts = {"table": table.spec.name, "difference": found.contrast.title, "column": column.label}
    facts |= {"attack": column.attack, "protocol": column.protocol, "images": str(found.num_examples)}
    tests = {"z_p": _p(found.images_p), "seeds_std": _decimal(found.seeds_std), "t_p": _p(found.seeds_p)}
    if found.seeds_interval is not None:
        tests |= {
            key: _decimal(end) for key, end in zip(("seeds_low", "seeds_high"), found.seeds_interval, strict=True)
        }
    together = {"seed": "all", "seeds": len(found.seeds), **_points(found, found.interval)}
    lines: list[Fields] = [facts | together | tests]
    for pair, difference in zip(found.pairs, found.seed_differences, strict=False):
        seed = None if pair.seed == NO_SEED else pair.seed
        counts = {"seed": seed, "only_first": pair.only_plus, "only_second": pair.only_minus}
        lines.append(facts | counts | {"points": _decimal(difference), "mcnemar_p": _p(pair.p)})
    return lines


def comparisons_csv(table: Table) -> str:
    """Paired comparisons: the intervals over images and seeds, z test and t test of all seeds; McNemar's by seed."""
    return _written(COMPARISON_FIELDS, (line for found in table.comparisons for line in _comparison(table, found)))


def claims_csv(table: Table) -> str:
    """One line a claim: its verdict and the difference that decides it."""
    lines = []
    for judged in table.claims:
        claim, found = judged.claim, judged.deciding
        line: dict[str, object] = {"table": table.spec.name, "row": claim.row, "column": claim.column, "by": claim.by}
        missing = " ".join((*judged.missing, *judged.unfinished))
        line |= {"others": " ".join(claim.others), "verdict": judged.verdict, "missing": missing}
        if found is not None and judged.verdict != "not tested":
            line |= {"decided_by": found.contrast.title, **_points(found, found.deciding_interval)}
            line |= {"images": found.num_examples, "seeds": len(found.seeds)}
        lines.append(line)
    return _written(CLAIM_FIELDS, lines)
