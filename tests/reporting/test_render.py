"""The formats, letter by letter."""

import csv
import io

from table_records import column, record, row, table

from probmargin.experiments.catalogue import find
from probmargin.experiments.grid import make_grid
from probmargin.reporting.render import FORMATS, markdown
from probmargin.reporting.render_csv import claims_csv, comma_separated, comparisons_csv
from probmargin.reporting.render_latex import latex
from probmargin.reporting.render_words import CLAIM_LEGEND, COMPARISON_LEGEND
from probmargin.reporting.spec import Claim
from probmargin.reporting.tables import build_table

RECORDS = [record("at", 1), record("at", 2, nat="1111"), record("mail-at", 1, aa="1100")]
MADE = build_table(
    table(
        rows=(row("at", published={"NAT": (80.0, 10.0)}, doubts={"NAT": "odd"}), row("mail-at", is_extra=True)),
        claims=(Claim(row="mail-at", column="AA", others=("at",)),),
    ),
    RECORDS,
)


def test_markdown() -> None:
    assert markdown(MADE) == (
        "## table9: Two methods\n"
        "\n"
        "Claim: One is better.\n"
        "\n"
        "`probmargin reproduce table9`; blobs, net.\n"
        "\n"
        "| row | trials | NAT | AA |\n"
        "| --- | --- | --- | --- |\n"
        "| `at` | 2 | 87.50 ± 17.68 | 25.00 ± 0.00 |\n"
        "| · paper | 5 | 80.00 ± 10.00 | - |\n"
        "| · difference |  | +7.50 (within 41.46) | - |\n"
        "| `mail-at` (extra) | 1 | 75.00 (±32.69) | 50.00 (±35.00) |\n"
        "\n"
        "Columns, protocol standard (Linf, eps 8/255): NAT = no attack, AA = AutoAttack. Percent: mean ± standard "
        "deviation over seeds; of one seed (± half of its 95% interval over test images). Paper: a paper. Within: at "
        "most 2 sqrt(s²/n + binomial s.e.²) away; a single trial borrows the paper's s.\n"
        "\n"
        f"{CLAIM_LEGEND}\n"
        "\n"
        "| claim | verdict | decided by |\n"
        "| --- | --- | --- |\n"
        "| `mail-at` above `at` in AA | undecided | `mail-at - at` +25.00 [-38.32, +71.65], 4 images, 1 seed |\n"
        "\n"
        f"{COMPARISON_LEGEND}\n"
        "\n"
        "| difference | column | points | images | over images | over seeds |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| mail-at - at | NAT | +0.00 [-46.20, +46.20] | 4 | s1: 0/0, p 1.0000 | - |\n"
        "| mail-at - at | AA | +25.00 [-38.32, +71.65] | 4 | s1: 1/0, p 1.0000 | - |\n"
        "\n"
        "Missing:\n"
        "\n"
        "- `mail-at`: 1 of 2 trials\n"
        "\n"
        "Remarks:\n"
        "\n"
        "- `at`: the paper's NAT: odd\n"
    )


def test_csv() -> None:
    assert comma_separated(MADE).splitlines() == [
        "table,row,extra,column,attack,protocol,norm,eps,images,trials,mean,std,low,high,paper_mean,paper_std,"
        "paper_for,difference,bound,within,pgd_minus_aa,reason",
        "table9,at,false,NAT,nat,standard,Linf,0.0313725,4,2,87.5000,17.6777,,,80.0000,10.0000,,7.5000,41.4578,true,,",
        "table9,at,false,AA,aa,standard,Linf,0.0313725,4,2,25.0000,0.0000,,,,,,,,,,",
        "table9,mail-at,true,NAT,nat,standard,Linf,0.0313725,4,1,75.0000,,30.0642,95.4413,,,,,,,,1 of 2 trials",
        "table9,mail-at,true,AA,aa,standard,Linf,0.0313725,4,1,50.0000,,15.0039,84.9961,,,,,,,,1 of 2 trials",
    ]


def test_csv_has_the_points_that_we_lost_to_autoattack_and_not_the_papers() -> None:
    columns = (column("PGD", "nat"), column("AA", "aa"))
    rows = (row("at", published={"PGD": (50.0, 1.0), "AA": (44.0, 1.0)}),)
    made = build_table(table(rows=rows, columns=columns, contrasts=()), [record("at", nat="1110", aa="1000")])
    lines = csv.DictReader(io.StringIO(comma_separated(made)))
    assert [(line["column"], line["pgd_minus_aa"]) for line in lines] == [("PGD", ""), ("AA", "50.0000")]


def test_comparisons_and_claims_have_files_of_their_own() -> None:
    assert list(FORMATS) == ["md", "tex", "csv", "comparisons.csv", "claims.csv"]
    lines = list(csv.DictReader(io.StringIO(comparisons_csv(MADE))))
    assert [(line["column"], line["seed"], line["points"]) for line in lines] == [
        ("NAT", "all", "0.0000"),
        ("NAT", "1", "0.0000"),
        ("AA", "all", "25.0000"),
        ("AA", "1", "25.0000"),
    ]
    together, alone = lines[2:]
    assert (together["low"], together["high"], together["z_p"]) == ("-38.3185", "71.6519", "0.5525")
    assert (alone["only_first"], alone["only_second"], alone["mcnemar_p"]) == ("1", "0", "1")
    (claim,) = csv.DictReader(io.StringIO(claims_csv(MADE)))
    assert claim["verdict"] == "undecided"
    assert (claim["decided_by"], claim["low"], claim["seeds"]) == ("mail-at - at", "-38.3185", "1")


def test_no_p_where_seeds_do_not_differ() -> None:
    rows = [record(name, seed, aa=aa) for name, aa in (("at", "1000"), ("mail-at", "1100")) for seed in (1, 2)]
    assert "| 2 seeds, std 0.00 |" in markdown(build_table(table(), rows))


def test_a_number_of_fewer_seeds_than_its_row_says_of_how_many() -> None:
    rows = [record("at", 1, aa="1000"), record("at", 2, aa="1100"), record("at", 3)]
    del rows[2]["evaluation"]["aa"]
    made = build_table(table(trials=3), rows)
    (line,) = (line for line in markdown(made).splitlines() if line.startswith("| `at` | 3 |"))
    assert line.endswith("| 37.50 ± 17.68 (2 seeds) |")
    assert r"37.50 $\pm$ 17.68 (2 seeds)" in latex(made)
    assert "seeds)" not in line.removesuffix("(2 seeds) |"), "the others rest on all"


def test_from_three_seeds_on_a_difference_has_an_interval_over_them_too() -> None:
    verdicts = (("at", ("1000", "1000", "1000")), ("mail-at", ("1100", "1110", "1110")))
    rows = [record(name, seed, aa=aa) for name, texts in verdicts for seed, aa in enumerate(texts, start=1)]
    made = build_table(table(trials=3), rows)
    # 25, 50 and 50 points: 41.67 ± 4.3027 * 14.43 / sqrt(3)
    assert "3 seeds [+5.81, +77.52], std 14.43, p 0.0377 |" in markdown(made)
    (line,) = (line for line in csv.DictReader(io.StringIO(comparisons_csv(made))) if line["t_p"])
    assert (line["seeds_low"], line["seeds_high"]) == ("5.8112", "77.5221")
    for few in csv.DictReader(io.StringIO(comparisons_csv(MADE))):
        assert (few["seeds_low"], few["seeds_high"], few["t_p"]) == ("", "", "")


def test_numbers_of_another_row_say_whose_they_are() -> None:
    other = row("mail-at", is_extra=True, published={"AA": (50.0, 1.0)}, published_for="for mail-at")
    made = build_table(table(rows=(row("at"), other)), [record("mail-at")])
    assert "| · paper for mail-at | 5 | - | 50.00 ± 1.00 |" in markdown(made)
    assert "\\quad paper for mail-at & 5 & " in latex(made)
    assert ",for mail-at," in comma_separated(made)


def test_a_table_says_which_attacks_its_columns_are() -> None:
    columns = (column("PGD", "pgd-100"), column("AA", "aa"), column("AA", "aa", first=2, is_part=True))
    text = markdown(build_table(table(columns=columns), []))
    assert "| row | trials | PGD | AA | AA (first 2) | PGD - AA |" in text
    assert "PGD = PGD-100, AA = AutoAttack, AA (first 2) = the same verdicts, those of the first 2 test images." in text
    assert "PGD - AA: points lost on the images that both looked at." in text


def test_smoke_says_what_it_is_and_claims_nothing() -> None:
    (experiment,) = find("table2")
    text = markdown(build_table(make_grid(experiment, "smoke").table(), []))
    assert text.startswith("## table2: the same rows at smoke scale, digits, small-cnn\n\n`probmargin reproduce")
    assert "PGD = PGD-20" in text
    assert "Claim" not in text
    assert "CIFAR" not in text
    assert "Paper" not in text


def test_a_table_without_the_papers_numbers_has_no_legend_for_them() -> None:
    (experiment,) = find("two-by-two")
    text = markdown(build_table(make_grid(experiment).table(), []))
    assert "Paper" not in text
    assert "Within" not in text
    assert "AA-1000 (first 1,000) = AutoAttack" in text
