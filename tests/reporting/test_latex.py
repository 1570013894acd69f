"""LaTeX: the numbers letter by letter, all that Markdown says, and nothing that would not compile or fit a page."""

import re
from dataclasses import replace
from typing import Any

import pytest
from page_blocks import ROOT
from table_records import EPS, record, row, table

from probmargin.experiments.catalogue import find
from probmargin.experiments.experiment import Experiment
from probmargin.experiments.grid import make_grid
from probmargin.experiments.records import read_records
from probmargin.reporting.render import markdown
from probmargin.reporting.render_latex import latex, latex_text
from probmargin.reporting.spec import Claim
from probmargin.reporting.tables import Table, build_table

ODD = r"50% of C:\temp_1 & {more}: #1 ~ ^ $ <- --out"
MADE = build_table(
    table(
        rows=(row("at", published={"NAT": (80.0, 10.0)}, doubts={"NAT": ODD}), row("mail-at", is_extra=True)),
        claims=(Claim(row="mail-at", column="AA", others=("at",)),),
        remark="Small scale: tests nothing.",
    ),
    [
        record("at", 1, weights="a"),
        record("at", 2, nat="1111", weights="b"),
        record("at", 3, weights="a"),
        record("mail-at", 1, aa="1100", evaluation={"aa": {"correct": "11x1", "attack": {"name": "aa", "eps": EPS}}}),
    ],
    {"blobs-net-mail-at-s2": ODD},
)


def test_numbers_are_a_float_of_their_own() -> None:
    text = latex(MADE)
    assert text.startswith(
        "% needs \\usepackage{adjustbox,array,booktabs,longtable,xcolor}, and a page of one column\n"
        "\\begin{table}\n"
        "\\centering\n"
        "\\caption{Two methods}\n"
        "\\begin{adjustbox}{max width=\\textwidth}\n"
        "\\begin{tabular}{lrcc}\n"
        "\\toprule\n"
        "row & trials & NAT & AA \\\\\n"
        "\\midrule\n"
        "at & 2 & 87.50 $\\pm$ 17.68 & 25.00 $\\pm$ 0.00 \\\\\n"
        "\\quad paper & 5 & \\textcolor{gray}{80.00 $\\pm$ 10.00} & \\textcolor{gray}{-} \\\\\n"
        "\\quad difference & & +7.50 (within 41.46) & - \\\\\n"
        "mail-at$^\\ast$ & 1 & 75.00 ($\\pm$32.69) & - \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\\end{adjustbox}\n"
        "\\par\\smallskip\\raggedright\\footnotesize $^\\ast$ not in the paper's table. Claim: One is better. "
        "\\texttt{probmargin reproduce table9}; blobs, net. Small scale: tests nothing. Columns, protocol standard"
    )
    assert "2 sqrt(s$^2$/n + binomial s.e.$^2$) away" in text
    assert text.count("\\begin{table}") == 1
    inside, _, after = text.partition("\\end{table}\n")
    assert "mail-at - at" not in inside
    assert "mail-at - at & NAT & +0.00 [-46.20, +46.20] & 4 & s1: 0/0, p 1.0000 & - \\\\\n" in after
    untested = "\\texttt{mail-at} above \\texttt{at} in AA & not tested & rows without a number for AA: "
    assert f"{untested}\\texttt{{mail-at}} \\\\\n" in after


def test_what_is_missing_refused_or_doubted_is_named_and_escaped() -> None:
    text = latex(MADE)
    odd = r"50\% of C:\textbackslash{}temp\_1 \& \{more\}: \#1 \textasciitilde{} \textasciicircum{} \$ $<$- -{}-out"
    assert f"\\item \\texttt{{mail-at}}: blobs-net-mail-at-s2 failed: {odd}\n" in text
    assert "\\item \\texttt{mail-at} AA: blobs-net-mail-at-s1: aa refused: damaged, aa.correct has other" in text
    assert "\\item \\texttt{at}: record blobs-net-at-s3 refused: its weights are those of blobs-net-at-s1" in text
    assert f"\\item \\texttt{{at}}: the paper's NAT: {odd}\n" in text
    assert "itemize" not in latex(replace(MADE, lines=()))


def sentences(made: Table) -> list[str]:
    """What a reader of the Markdown learns, but for cells."""
    text = markdown(made)
    found = [line.removeprefix("- ") for line in text.splitlines() if line and not line.startswith(("|", "#"))]
    return [line for line in found if line not in ("Missing:", "Remarks:")]


def check(text: str) -> None:
    """Environments and braces close, rows have the cells of their table, and special characters are escaped."""
    opened: list[str] = []
    cells: list[int] = []
    for line in text.splitlines()[1:]:
        plain = re.sub(r"\\[\\&%$#_{}]", "", line)
        assert plain.count("{") == plain.count("}"), line
        assert plain.count("$") % 2 == 0, line
        assert not re.search(r"[%#_~`]|\^(?!2|\\ast)", plain), line
        for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", line):
            assert kind == "begin" or opened.pop() == name, line
            opened += [name] if kind == "begin" else []
        if found := re.match(r"\\begin\{(?:tabular|longtable)\}\{(.*)\}$", line):
            cells.append(len(re.findall(r"[lcrp]", re.sub(r">\{.*?\}(?=p)|(?<=p)\{.*?\}", "", found[1]))))
        elif line.endswith(" \\\\"):
            assert plain.count("&") + 1 == cells[-1], line
            assert opened[-1] in ("tabular", "longtable")
        else:
            assert "&" not in plain, line
    assert opened == []
    assert text.count("\\begingroup") == text.count("\\endgroup") == text.count("\\begin{longtable}")


def test_all_that_markdown_says_is_there_and_balanced() -> None:
    check(latex(MADE))
    assert len(sentences(MADE)) == 10
    assert [text for text in sentences(MADE) if latex_text(text) not in latex(MADE)] == []


def smoke(experiment: Experiment) -> Table:
    return build_table(make_grid(experiment, "smoke").table(), read_records([ROOT / "results" / "smoke"]))


def full(experiment: Experiment) -> Table:
    return build_table(make_grid(experiment).table(), read_records([ROOT / "results"]))


@pytest.mark.parametrize("make", [full, smoke])
def test_every_table_is_whole_and_its_float_fits_a_page(make: Any) -> None:
    for experiment in find(None):
        made = make(experiment)
        text = latex(made)
        check(text)
        assert [line for line in sentences(made) if latex_text(line) not in text] == []
        inside = text.partition("\\begin{table}")[2].partition("\\end{table}")[0]
        assert inside.count("\\\\\n") <= 40
    if make is full:
        assert "57.55 cannot be right" in latex(full(find("table3")[0]))
    else:
        assert "tests no claim" in latex(smoke(find("table2")[0]))


def test_forty_comparisons_do_not_stand_in_the_float() -> None:
    made = build_table(table(), [record(name, seed) for name in ("at", "mail-at") for seed in (1, 2)])
    text = latex(replace(made, comparisons=made.comparisons * 20))
    check(text)
    inside, _, after = text.partition("\\end{table}")
    assert inside.count("\\\\\n") <= 40
    assert after.count("mail-at - at & ") == 40
    assert after.count("\\endhead") == 1, "the titles stand on every page"
