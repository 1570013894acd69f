"""The three formats, letter by letter."""

from table_records import record, row, table

from probmargin.reporting.render import comma_separated, latex, markdown
from probmargin.reporting.tables import build_table

RECORDS = [record("at", 1), record("at", 2, nat="1111"), record("mail-at", 1, aa="1100")]
MADE = build_table(
    table(rows=(row("at", published={"NAT": (80.0, 10.0)}, doubts={"NAT": "odd"}), row("mail-at", is_extra=True))),
    RECORDS,
)


def test_markdown() -> None:
    assert markdown(MADE) == (
        "## table9: Two methods\n"
        "\n"
        "Claim: One is better.\n"
        "\n"
        "`probmargin reproduce table9`; blobs, net; protocol standard (eps 0.031373).\n"
        "\n"
        "| row | trials | NAT | AA |\n"
        "| --- | --- | --- | --- |\n"
        "| `at` | 2 | 87.50 ± 17.68 | 25.00 ± 0.00 |\n"
        "| · paper | 5 | 80.00 ± 10.00 | - |\n"
        "| · difference |  | +7.50 (within 41.46) | - |\n"
        "| `mail-at` (extra) | 1 | 75.00 | 50.00 |\n"
        "\n"
        "Mean ± standard deviation in percent. Paper: a paper. Within: at most 2 sqrt(s²/n + binomial s.e.²) away; "
        "a single trial borrows the paper's s.\n"
        "\n"
        "Paired differences in points, with a 95 % interval over the images all its rows share; McNemar's exact test "
        "counts images that one row alone gets right; t test over seeds.\n"
        "\n"
        "| difference | column | points | images | McNemar | over seeds |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| mail-at - at | NAT | +0.00 ± 0.00 | 4 | s1: 0/0, p 1.0000 | - |\n"
        "| mail-at - at | AA | +25.00 ± 49.00 | 4 | s1: 1/0, p 1.0000 | - |\n"
        "\n"
        "Missing:\n"
        "\n"
        "- `mail-at`: 1 of 2 trials\n"
        "\n"
        "Remarks:\n"
        "\n"
        "- `at`: the paper's NAT: odd\n"
    )


def test_latex() -> None:
    assert latex(MADE) == (
        "% needs \\usepackage{booktabs,xcolor}\n"
        "\\begin{table}\n"
        "\\centering\n"
        "\\caption{Two methods}\n"
        "\\begin{tabular}{lrcc}\n"
        "\\toprule\n"
        "row & trials & NAT & AA \\\\\n"
        "\\midrule\n"
        "at & 2 & 87.50 $\\pm$ 17.68 & 25.00 $\\pm$ 0.00 \\\\\n"
        "\\quad paper & 5 & \\textcolor{gray}{80.00 $\\pm$ 10.00} & \\textcolor{gray}{-} \\\\\n"
        "mail-at$^\\ast$ & 1 & 75.00 & 50.00 \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\\par\\smallskip $^\\ast$ not in the paper's table\n"
        "\\end{table}\n"
    )


def test_csv() -> None:
    assert comma_separated(MADE).splitlines() == [
        "table,row,extra,column,attack,protocol,norm,eps,images,trials,mean,std,paper_mean,paper_std,difference,bound,"
        "within,reason",
        "table9,at,false,NAT,nat,standard,Linf,0.0313725,4,2,87.5000,17.6777,80.0000,10.0000,7.5000,41.4578,true,",
        "table9,at,false,AA,aa,standard,Linf,0.0313725,4,2,25.0000,0.0000,,,,,,",
        "table9,mail-at,true,NAT,nat,standard,Linf,0.0313725,4,1,75.0000,,,,,,,1 of 2 trials",
        "table9,mail-at,true,AA,aa,standard,Linf,0.0313725,4,1,50.0000,,,,,,,1 of 2 trials",
    ]
