"""A table as LaTeX: numbers, verdicts on claims and paired comparisons, each a booktabs tabular."""

import re
from collections.abc import Iterable, Sequence

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

_SPECIAL = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "²": "$^2$",
    "<": "$<$",
    ">": "$>$",
}


def latex_text(text: str) -> str:
    r"""Text with LaTeX's own characters escaped, and what stands in backticks as code.

    >>> print(latex_text("`a_b` 5 % ± 1"))
    \texttt{a\_b} 5 \% $\pm$ 1
    """
    escaped = "".join(_SPECIAL.get(character, character) for character in text)
    return re.sub(r"`([^`]*)`", r"\\texttt{\1}", escaped)


def latex(table: Table) -> str:
    """A table: ours, the paper's numbers below in grey and the difference; then claims and comparisons."""
    spec = table.spec
    titles = ["row", "trials", *(column.label for column in spec.columns), *([DROP] if table.has_drop else [])]
    body = [text for line in table.lines for text in _line(line, has_drop=table.has_drop)]
    extra = [r"$^\ast$ not in the paper's table."] if any(line.row.is_extra for line in table.lines) else []
    notes = [*extra, *(latex_text(sentence) for sentence in legend(table))]
    lines = [
        r"% needs \usepackage{booktabs,xcolor}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_text(spec.title)}}}",
        *_tabular("lr" + "c" * (len(titles) - 2), titles, body),
        *_note(" ".join(notes)),
    ]
    if table.claims:
        claims = [_cells(found.claim.text, found.verdict, found.evidence) for found in table.claims]
        lines += [*_note(latex_text(CLAIM_LEGEND)), *_tabular("lll", ("claim", "verdict", "decided by"), claims)]
    if table.comparisons:
        compared = [_cells(*comparison_texts(found)) for found in table.comparisons]
        lines += [*_note(latex_text(COMPARISON_LEGEND)), *_tabular("llrrll", COMPARISON_TITLES, compared)]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _note(text: str) -> list[str]:
    return [rf"\par\smallskip {text}\par\smallskip"]


def _tabular(columns: str, titles: Sequence[str], body: Iterable[str]) -> list[str]:
    head = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _cells(*titles), r"\midrule"]
    return [*head, *body, r"\bottomrule", r"\end{tabular}"]


def _cells(*texts: str) -> str:
    return rf"{' & '.join(latex_text(text) for text in texts)} \\"


def _line(line: Line, *, has_drop: bool) -> list[str]:
    name = latex_text(line.row.id) + (r"$^\ast$" if line.row.is_extra else "")
    drops = [[points(line.drop)], [points(line.published_drop)], [""]] if has_drop else [[], [], []]
    own = _cells(str(line.trials or DASH), *(cell_text(cell) for cell in line.cells), *drops[0])
    rows = [f"{name} & {own}"]
    if line.row.published:
        paper = latex_text(f"paper {line.row.published_for}".rstrip())
        grey = [rf"\textcolor{{gray}}{{{latex_text(text)}}}" for text in (*map(printed, line.cells), *drops[1])]
        rows.append(rf"\quad {paper} & 5 & {' & '.join(grey)} \\")
    if any(cell.difference is not None for cell in line.cells):
        rows.append(rf"\quad difference & & {_cells(*map(against_paper, line.cells), *drops[2])}")
    return rows
