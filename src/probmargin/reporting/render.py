"""A table as Markdown, LaTeX (booktabs) or CSV."""

import csv
import io
from collections.abc import Callable, Mapping

from probmargin.reporting.compare import Comparison
from probmargin.reporting.tables import Cell, Line, Table

DASH = "-"


def number(mean: float | None, std: float | None, plus_minus: str = "±") -> str:
    """A percentage with its deviation.

    >>> number(81.842, 0.18), number(50.6, None), number(None, None)
    ('81.84 ± 0.18', '50.60', '-')
    """
    if mean is None:
        return DASH
    return f"{mean:.2f}" if std is None else f"{mean:.2f} {plus_minus} {std:.2f}"


def _against_paper(cell: Cell) -> str:
    if cell.difference is None or cell.bound is None:
        return DASH
    return f"{cell.difference:+.2f} ({'within' if cell.is_within else 'beyond'} {cell.bound:.2f})"


def _printed(cell: Cell, plus_minus: str = "±") -> str:
    return number(*cell.published, plus_minus) if cell.published else DASH


def _markdown_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_line(line: Line) -> list[str]:
    """Ours, the paper's, and the difference, a line each; only what there is."""
    name = f"`{line.row.id}`" + (" (extra)" if line.row.is_extra else "")
    rows = [_markdown_row(name, str(line.trials or DASH), *(number(cell.mean, cell.std) for cell in line.cells))]
    if line.row.published:
        rows.append(_markdown_row("· paper", "5", *(_printed(cell) for cell in line.cells)))
    if any(cell.difference is not None for cell in line.cells):
        rows.append(_markdown_row("· difference", "", *(_against_paper(cell) for cell in line.cells)))
    return rows


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def _comparison_row(found: Comparison) -> str:
    pairs = "; ".join(f"s{pair.seed}: {pair.only_plus}/{pair.only_minus}, p {_p(pair.p)}" for pair in found.pairs)
    over_seeds = DASH
    if found.seeds_p is not None and found.seeds_std is not None:
        over_seeds = f"{len(found.seeds)} seeds, std {found.seeds_std:.2f}, p {_p(found.seeds_p)}"
    return _markdown_row(
        found.contrast.title,
        found.column.label,
        f"{found.difference:+.2f} ± {found.half_width:.2f}",
        f"{found.num_examples:,}",
        pairs or DASH,
        over_seeds,
    )


def markdown(table: Table) -> str:
    """A section: title, claim, numbers, paired comparisons, what is missing."""
    spec = table.spec
    titles = [column.label for column in spec.columns]
    protocols = ", ".join(dict.fromkeys(f"{column.protocol} (eps {column.eps:.5g})" for column in spec.columns))
    lines = [f"## {spec.name}: {spec.title}", "", f"Claim: {spec.claim}", ""]
    lines += [f"`{spec.command}`; {spec.data}, {spec.model}; protocol {protocols}."]
    lines += ["", spec.remark] if spec.remark else []
    lines += ["", _markdown_row("row", "trials", *titles), _markdown_row(*["---"] * (len(titles) + 2))]
    for line in table.lines:
        lines += _markdown_line(line)
    if spec.source:
        lines += ["", f"Mean ± standard deviation in percent. Paper: {spec.source}. Within: at most"]
        lines[-1] += " 2 sqrt(s²/n + binomial s.e.²) away; a single trial borrows the paper's s."
    lines += _markdown_comparisons(table)
    lines += _list("Missing", table.missing)
    lines += _list("Remarks", [f"`{line.row.id}`: {remark}" for line in table.lines for remark in line.remarks])
    return "\n".join(lines) + "\n"


def _markdown_comparisons(table: Table) -> list[str]:
    if not table.comparisons:
        return []
    lines = ["", "Paired differences in points, with a 95 % interval over the images all its rows share; McNemar's"]
    lines[-1] += " exact test counts images that one row alone gets right; t test over seeds."
    titles = ("difference", "column", "points", "images", "McNemar", "over seeds")
    lines += ["", _markdown_row(*titles), _markdown_row(*["---"] * len(titles))]
    return lines + [_comparison_row(found) for found in table.comparisons]


def _list(title: str, entries: list[str]) -> list[str]:
    return ["", f"{title}:", "", *(f"- {entry}" for entry in entries)] if entries else []


_PM = r"$\pm$"
_SPECIAL = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": _PM,
}


def _latex_text(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)


def latex(table: Table) -> str:
    """A booktabs table: ours, and the paper's numbers below in grey where there are any."""
    spec = table.spec
    head = " & ".join(["row", "trials", *(_latex_text(column.label) for column in spec.columns)])
    lines = [
        r"% needs \usepackage{booktabs,xcolor}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex_text(spec.title)}}}",
        rf"\begin{{tabular}}{{lr{'c' * len(spec.columns)}}}",
        r"\toprule",
        rf"{head} \\",
        r"\midrule",
    ]
    for line in table.lines:
        name = _latex_text(line.row.id) + (r"$^\ast$" if line.row.is_extra else "")
        cells = [number(cell.mean, cell.std, _PM) for cell in line.cells]
        lines.append(rf"{name} & {line.trials or DASH} & {' & '.join(cells)} \\")
        if line.row.published:
            printed = [rf"\textcolor{{gray}}{{{_printed(cell, _PM)}}}" for cell in line.cells]
            lines.append(rf"\quad paper & 5 & {' & '.join(printed)} \\")
    note = (
        [r"\par\smallskip $^\ast$ not in the paper's table"] if any(line.row.is_extra for line in table.lines) else []
    )
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *note, r"\end{table}"]) + "\n"


CSV_FIELDS = (
    "table row extra column attack protocol norm eps images trials mean std paper_mean paper_std difference bound "
    "within reason"
).split()


def _csv_cell(table: Table, line: Line, cell: Cell) -> dict[str, object]:
    paper = cell.published or (None, None)
    column = cell.column
    numbers = (cell.mean, cell.std, *paper, cell.difference, cell.bound)
    texts = [None if value is None else f"{value:.4f}" for value in numbers]
    within = None if cell.is_within is None else str(cell.is_within).lower()
    extra = str(line.row.is_extra).lower()
    facts = (table.spec.name, line.row.id, extra, column.title, column.attack, column.protocol, column.norm)
    counts = (f"{column.eps:.6g}", cell.num_examples or None, cell.trials)
    return dict(zip(CSV_FIELDS, (*facts, *counts, *texts, within, "; ".join(cell.reasons)), strict=True))


def comma_separated(table: Table) -> str:
    """One line a cell."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, CSV_FIELDS, lineterminator="\n")
    writer.writeheader()
    for line in table.lines:
        writer.writerows(_csv_cell(table, line, cell) for cell in line.cells)
    return buffer.getvalue()


FORMATS: Mapping[str, Callable[[Table], str]] = {"md": markdown, "tex": latex, "csv": comma_separated}
"""By the suffix of the file."""
