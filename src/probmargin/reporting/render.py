"""A table as Markdown, LaTeX (booktabs) or CSV."""

from collections.abc import Callable, Iterable, Mapping

from probmargin.reporting.claims import Judged
from probmargin.reporting.render_csv import claims_csv, comma_separated, comparisons_csv
from probmargin.reporting.render_latex import latex
from probmargin.reporting.render_words import (
    CLAIM_LEGEND,
    COMPARISON_LEGEND,
    COMPARISON_TITLES,
    DASH,
    DROP,
    against_paper,
    cell_text,
    comparison_texts,
    legend,
    points,
    printed,
)
from probmargin.reporting.tables import Line, Table


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _head(*titles: str) -> list[str]:
    return ["", _row(*titles), _row(*["---"] * len(titles))]


def _line(line: Line, *, has_drop: bool) -> list[str]:
    """Ours, the paper's, and the difference, a line each; only what there is."""
    name = f"`{line.row.id}`" + (" (extra)" if line.row.is_extra else "")
    paper = f"· paper {line.row.published_for}".rstrip()
    drops = [[points(line.drop)], [points(line.published_drop)], [""]] if has_drop else [[], [], []]
    rows = [_row(name, str(line.trials or DASH), *(cell_text(cell, line.trials) for cell in line.cells), *drops[0])]
    if line.row.published:
        rows.append(_row(paper, "5", *(printed(cell) for cell in line.cells), *drops[1]))
    if any(cell.difference is not None for cell in line.cells):
        rows.append(_row("· difference", "", *(against_paper(cell) for cell in line.cells), *drops[2]))
    return rows


def markdown(table: Table) -> str:
    """A section: title, claim, numbers, verdicts on claims, paired comparisons, what is missing."""
    spec = table.spec
    titles = [*(column.label for column in spec.columns), *([DROP] if table.has_drop else [])]
    lines = [f"## {spec.name}: {spec.title}", ""]
    lines += [f"Claim: {spec.claim}", ""] if spec.claim else []
    lines += [f"`{spec.command}`; {spec.data}, {spec.model}."]
    lines += ["", spec.remark] if spec.remark else []
    lines += _head("row", "trials", *titles)
    for line in table.lines:
        lines += _line(line, has_drop=table.has_drop)
    lines += ["", " ".join(legend(table))]
    if table.claims:
        lines += ["", CLAIM_LEGEND, *_head("claim", "verdict", "decided by"), *claim_rows(table.claims)]
    if table.comparisons:
        lines += ["", COMPARISON_LEGEND, *_head(*COMPARISON_TITLES)]
        lines += [_row(*comparison_texts(found)) for found in table.comparisons]
    lines += _list("Missing", table.missing)
    lines += _list("Remarks", table.remarks)
    return "\n".join(lines) + "\n"


def claim_rows(claims: Iterable[Judged]) -> list[str]:
    """Claims as lines of a Markdown table: claim, verdict, what decides it."""
    return [_row(found.claim.text, found.verdict, found.evidence) for found in claims]


def _list(title: str, entries: list[str]) -> list[str]:
    return ["", f"{title}:", "", *(f"- {entry}" for entry in entries)] if entries else []


FORMATS: Mapping[str, Callable[[Table], str]] = {
    "md": markdown,
    "tex": latex,
    "csv": comma_separated,
    "comparisons.csv": comparisons_csv,
    "claims.csv": claims_csv,
}
"""By the suffix of the file."""
