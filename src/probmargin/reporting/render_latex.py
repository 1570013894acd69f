"""A table as LaTeX (booktabs): numbers in a float; claims and paired comparisons in tables that break over pages."""

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
_NEEDS = r"% needs \usepackage{adjustbox,array,booktabs,longtable,xcolor}, and a page of one column"


def latex_text(text: str) -> str:
    r"""Text with LaTeX's own characters escaped, options with both their dashes, and what stands in backticks as code.

    >>> print(latex_text("`a_b` 5% ± 1, see --out"))
    \texttt{a\_b} 5\% $\pm$ 1, see -{}-out
    """
    escaped = "".join(_SPECIAL.get(character, character) for character in text)
    return re.sub(r"`([^`]*)`", r"\\texttt{\1}", re.sub("-(?=-)", "-{}", escaped))


def latex(table: Table) -> str:
    """All that the Markdown says: ours, the paper's numbers below in grey and the difference, notes; then the rest."""
    spec = table.spec
    titles = ["row", "trials", *(column.label for column in spec.columns), *([DROP] if table.has_drop else [])]
    body = [text for line in table.lines for text in _line(line, has_drop=table.has_drop)]
    extra = [r"$^\ast$ not in the paper's table."] if any(line.row.is_extra for line in table.lines) else []
    claim = [f"Claim: {spec.claim}"] if spec.claim else []
    sentences = [*claim, f"`{spec.command}`; {spec.data}, {spec.model}.", spec.remark, *legend(table)]
    notes = [*extra, *(latex_text(text) for text in sentences if text)]
    lines = [
        _NEEDS,
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_text(spec.title)}}}",
        r"\begin{adjustbox}{max width=\textwidth}",
        *_tabular("lr" + "c" * (len(titles) - 2), titles, body),
        r"\end{adjustbox}",
        rf"\par\smallskip\raggedright\footnotesize {' '.join(notes)}",
        r"\end{table}",
        *_list(f"{spec.title}: missing", table.missing),
        *_list(f"{spec.title}: remarks", table.remarks),
    ]
    if table.claims:
        claims = [_cells(found.claim.text, found.verdict, found.evidence) for found in table.claims]
        columns = _wrapped(0.36) + "l" + _wrapped(0.42)
        lines += _long(CLAIM_LEGEND, f"{spec.title}: claims", columns, ("claim", "verdict", "decided by"), claims)
    if table.comparisons:
        compared = [_cells(*comparison_texts(found)) for found in table.comparisons]
        columns = f"{_wrapped(0.2)}lrr{_wrapped(0.2)}{_wrapped(0.12)}"
        caption = f"{spec.title}: paired differences"
        lines += _long(COMPARISON_LEGEND, caption, columns, COMPARISON_TITLES, compared)
    return "\n".join(lines) + "\n"


def _list(title: str, entries: Sequence[str]) -> list[str]:
    if not entries:
        return []
    items = [rf"\item {latex_text(entry)}" for entry in entries]
    return [rf"\paragraph{{{latex_text(title)}}}", r"\begin{itemize}", *items, r"\end{itemize}"]


def _wrapped(share: float) -> str:
    """A column of text that wraps, of a share of the line."""
    return rf">{{\raggedright\arraybackslash}}p{{{share:g}\textwidth}}"


def _long(text: str, caption: str, columns: str, titles: Sequence[str], body: Iterable[str]) -> list[str]:
    """A table that goes on over as many pages as it needs, after what it means."""
    head = [r"\toprule", _cells(*titles), r"\midrule"]
    return [
        rf"\par\medskip\noindent {latex_text(text)}\par",
        r"\begingroup\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\begin{{longtable}}{{{columns}}}",
        rf"\caption{{{latex_text(caption)}}}\\",
        *head,
        r"\endfirsthead",
        *head,
        r"\endhead",
        r"\bottomrule",
        r"\endfoot",
        *body,
        r"\end{longtable}",
        r"\endgroup",
    ]


def _tabular(columns: str, titles: Sequence[str], body: Iterable[str]) -> list[str]:
    head = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _cells(*titles), r"\midrule"]
    return [*head, *body, r"\bottomrule", r"\end{tabular}"]


def _cells(*texts: str) -> str:
    return rf"{' & '.join(latex_text(text) for text in texts)} \\"


def _line(line: Line, *, has_drop: bool) -> list[str]:
    name = latex_text(line.row.id) + (r"$^\ast$" if line.row.is_extra else "")
    drops = [[points(line.drop)], [points(line.published_drop)], [""]] if has_drop else [[], [], []]
    own = _cells(str(line.trials or DASH), *(cell_text(cell, line.trials) for cell in line.cells), *drops[0])
    rows = [f"{name} & {own}"]
    if line.row.published:
        paper = latex_text(f"paper {line.row.published_for}".rstrip())
        grey = [rf"\textcolor{{gray}}{{{latex_text(text)}}}" for text in (*map(printed, line.cells), *drops[1])]
        rows.append(rf"\quad {paper} & 5 & {' & '.join(grey)} \\")
    if any(cell.difference is not None for cell in line.cells):
        rows.append(rf"\quad difference & & {_cells(*map(against_paper, line.cells), *drops[2])}")
    return rows
