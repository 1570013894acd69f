"""What docs/reproduction.md says about the paper's tables, from the records of runs; docs/tables.py puts it there."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import variance
from typing import Any

from scipy.special import ndtri, stdtrit as t_end

from probmargin.evaluation.autoattack import VERSIONS
from probmargin.experiments.catalogue import find
from probmargin.experiments.experiment import SHORT_AA
from probmargin.experiments.grid import make_grid
from probmargin.experiments.records import read_records
from probmargin.experiments.results_page import kept_tables
from probmargin.experiments.two_by_two import TWO_BY_TWO
from probmargin.reporting.claims import Judged, judge
from probmargin.reporting.compare import Comparison, Z, compare
from probmargin.reporting.render import claim_rows
from probmargin.reporting.render_words import cell_text, comparison_texts
from probmargin.reporting.spec import Contrast
from probmargin.reporting.study_text import table as markdown_table
from probmargin.reporting.tables import Cell, Line, Table, build_table

TITLES = ("NAT", "PGD", "APGD", "CW", "AA")
REWEIGHTED = ("mail-at - at", "gairat - at", "mail-at - gairat", "mail-mart - mart-beta6")
QUESTION = ("mail-trades - trades", "mail-trades - trades-beta5", "mail-trades-official-2021 - mail-trades")
"""Differences of table 2 that bear on weights against attack."""
UNWEIGHTED = {"mail-trades": "trades-beta5"} | dict.fromkeys(
    ("mail-trades-pm-nat", "gair-trades", "mail-trades-mm-adv", "mail-trades-step", "mail-trades-hinge-as-printed"),
    "mail-trades-pm-dif",
)
"""Weights under TRADES, and the row of the same burn-in that has none, or all but none."""
BEFORE_SQUARE = "two-by-two-before-square-s*.json"


def _compared(line: Line) -> list[list[str]]:
    """Ours in every column and, where the paper has the row, its numbers and how ours stand to them."""
    cells = list(map(line.cell, TITLES))
    rows = [[_ours(cell, line.trials) if cell and cell.mean is not None else "-" for cell in cells]]
    rows[0][-1] = _with_part(line, rows[0][-1])
    if any(cell and cell.published for cell in cells):
        rows.append([f"{cell.published[0]:.2f}" if cell and cell.published else "-" for cell in cells])
        rows.append([_distance(cell) for cell in cells])
    return rows


def _ours(cell: Cell, trials: int) -> str:
    """A number, and on how many of the test images it rests where that is not all."""
    text = cell_text(cell, trials)
    return f"{text}, first {cell.column.first:,}" if cell.column.is_part else text


def _with_part(line: Line, told: str) -> str:
    """AutoAttack of all images, and of the first ones alone in a table that has rows of which there is no more."""
    whole = line.cell("AA")
    first = SHORT_AA[-1]
    part = next((cell for cell in line.cells if cell.column.first == first and cell.verdicts), None)
    if whole is None or part is None or whole.column.is_part:
        return told
    return f"{told}; {cell_text(part, line.trials)}, first {first:,}"


def _distance(cell: Cell | None) -> str:
    if cell is None or cell.difference is None:
        return "-"
    return f"{cell.difference:+.2f} {'within' if cell.is_within else '**beyond**'}"


def _measured(tables: list[Table]) -> list[tuple[list[str], Line]]:
    """Rows with a record and the tables they stand in; one twice where two tables print other numbers for it."""
    found: list[tuple[list[str], Line]] = []
    for table in tables:
        for line in table.lines:
            if not line.trials:
                continue
            numbers = line.row.published.items()
            known = [(names, other) for names, other in found if other.row.run == line.row.run]
            alike = next((names for names, other in known if numbers <= other.row.published.items()), None)
            if alike is None:
                found.append(([table.spec.name], line))
            else:
                alike.append(table.spec.name)
    return found


def reproduced(results: Path) -> str:
    """Every row with a record, a line each: ours, the paper's, the difference with within or beyond."""
    # Table 2 has the most columns: it comes first, so that the others add only what they print otherwise.
    tables = sorted(kept_tables(results), key=lambda table: table.spec.name != "table2")
    rows = []
    for names, line in _measured(tables):
        whose = f" {line.row.published_for}" if line.row.published_for else ""
        where = ", ".join(f"`{name}`" for name in names)
        ours, *paper = _compared(line)
        rows.append([where, f"`{line.row.id}`", str(line.trials), *ours])
        rows += [
            ["", name, "", *cells] for name, cells in zip((f"· paper{whose}", "· difference"), paper, strict=False)
        ]
    if not rows:
        return "No row of any table has a record yet.\n"
    return markdown_table(["tables", "row", "seeds", *TITLES], rows) + "\n"


def verdicts(results: Path) -> str:
    """How many claims hold, and how many still do with intervals as wide as so many comparisons ask for."""
    tables = _paper_tables(results)
    found = [one for table in tables for one in table.claims]
    counts = Counter(one.verdict for one in found)
    behind = {
        (table.spec.data, table.spec.model, one.contrast, one.column.title)
        for table in tables
        for claim in table.claims
        for one in claim.comparisons
    }
    compared = len(behind)
    strict = Counter(_widened(one, compared).verdict for one in found)
    return (
        f"Of {len(found)} claims of the paper {counts['holds']} hold, {counts['does not hold']} do not, "
        f"{counts['undecided']} are undecided and {counts['not tested']} are not tested yet. With intervals widened "
        f"for the {compared} comparisons behind them (Bonferroni) {_held(strict)}"
        f"{_among_seeds(results, found, compared)}.{_left_open(tables)}\n"
    )


def _held(counts: Counter[str]) -> str:
    """How many hold, and how many do not.

    >>> _held(Counter({"holds": 16, "does not hold": 1}))
    '16 hold and 1 does not'
    """
    holds, fails = counts["holds"], counts["does not hold"]
    return f"{holds} {'holds' if holds == 1 else 'hold'} and {fails} {'does' if fails == 1 else 'do'} not"


def _left_open(tables: list[Table]) -> str:
    """Which of the verdicts rest on a row that may be another than the paper's."""
    counts: Counter[str] = Counter()
    for table in tables:
        ours = {line.row.id for line in table.lines if line.row.left_open}
        decided = (one for one in table.claims if one.verdict in ("holds", "does not hold"))
        counts.update(one.verdict for one in decided if ours & {one.claim.row, *one.claim.others})
    if not counts:
        return ""
    return (
        f" {counts['holds']} of those that hold and {counts['does not hold']} of those that do not rest on weights of "
        "which the paper leaves a setting open."
    )


def _among_seeds(results: Path, found: list[Judged], compared: int) -> str:
    """The same where another seed of one recipe may differ as much as those of the two-by-two do."""
    std, degrees = _seeds_std(results)
    if not degrees:
        return ""
    counts = Counter(_widened(one, compared, std, degrees).verdict for one in found)
    return (
        f"; with the spread between seeds added too, {std:.2f} points of AutoAttack a row in the two-by-two "
        f"({degrees} degrees of freedom), {_held(counts)}"
    )


def _seeds_std(results: Path) -> tuple[float, int]:
    """By how many points of AutoAttack seeds of one recipe differ, over the two-by-two's rows; and how surely.

    In degrees of freedom, of which there are none without records.
    """
    _, rows = _before_square_records(results)
    shares = [[100 * right.count("1") / len(right) for right in seeds.values()] for seeds in rows.values()]
    variances = [variance(values) for values in shares if len(values) > 2]
    degrees = sum(len(values) - 1 for values in shares if len(values) > 2)
    return (math.sqrt(sum(variances) / len(variances)) if variances else 0.0), degrees


def _widened(found: Judged, compared: int, seeds_std: float = 0.0, seeds_degrees: int = 0) -> Judged:
    """The same claim by intervals that miss none of so many differences in 95 of 100 cases.

    Seeds of one recipe that differ by `seeds_std` points in each of two rows make them wider still, by how surely that
    is known too (Welch and Satterthwaite's degrees of freedom).
    """
    tail = 0.025 / max(compared, 1)

    def wider(one: Comparison) -> Comparison:
        degrees = len(one.seeds) - 1
        std = one.seeds_std and one.seeds_std * t_end(degrees, 1 - tail) / t_end(degrees, 0.975)
        more = 2 / len(one.seeds) * seeds_std**2
        error = math.sqrt(one.error**2 + more)
        end = t_end(seeds_degrees * (error**2 / more) ** 2, 1 - tail) if more else -ndtri(tail)
        return replace(one, error=error * end / Z, seeds_std=std)

    return replace(found, comparisons=tuple(map(wider, found.comparisons)))


def _paper_tables(results: Path) -> list[Table]:
    return [table for table in kept_tables(results) if table.spec.name != TWO_BY_TWO.name]


def _paired(found: list[Comparison], table2: Table) -> str:
    """Paired differences, and the same of two rows as the paper has it."""
    published = {line.row.id: line.row.published for line in table2.lines}
    rows = []
    for one in found:
        printed = [published.get(row, {}) for row in one.contrast.rows]
        theirs = [numbers[one.column.title][0] for numbers in printed if one.column.title in numbers]
        # Two recipes that stand for one row of the paper have no difference there.
        is_printed = len(theirs) == len(printed) == 2 and printed[0] != printed[1]
        seeds = ", ".join(map(str, one.seeds))
        rows.append([*comparison_texts(one)[:4], seeds, f"{theirs[0] - theirs[1]:+.2f}" if is_printed else "-"])
    return markdown_table(["difference", "column", "points", "images", "seeds", "in the paper"], rows) + "\n"


def reweighting(results: Path) -> str:
    """AT and MART against the same with weights: what PGD says of them and what AutoAttack does."""
    (table2,) = (table for table in kept_tables(results) if table.spec.name == "table2")
    found = [one for one in table2.comparisons if one.contrast.title in REWEIGHTED]
    found = [one for one in found if one.column.title in ("PGD", "AA")]
    return _paired(found, table2) if found else "None of these rows has a record yet.\n"


def within_burn_in(results: Path) -> str:
    """What weights bring under TRADES on CIFAR-10, each row less the one without weights that shares its burn-in."""
    tables = [table for table in kept_tables(results) if table.spec.data == "cifar10"]
    lines = {line.row.id: line for table in tables for line in table.lines if line.trials}
    rows = []
    for row, base in UNWEIGHTED.items():
        if row in lines and base in lines:
            cells = [_apart(lines[row], lines[base], title) for title in ("NAT", "PGD", "AA")]
            rows.append([f"`{row}`", f"`{base}`", *cells])
    if not rows:
        return "None of these rows has a record yet.\n"
    return markdown_table(["row", "less", "NAT", "PGD", "AA"], rows) + "\n"


def _apart(plus: Line, minus: Line, title: str) -> str:
    """A row less another over the images that both were judged on, with how many these are where it is not all."""
    cells = plus.cell(title), minus.cell(title)
    if not all(cell and cell.verdicts for cell in cells):
        return "-"
    ours, other = (cell for cell in cells if cell)
    names = plus.row.id, minus.row.id
    found = compare(
        Contrast("", names[:1], names[1:]), ours.column, {names[0]: ours.verdicts, names[1]: other.verdicts}
    )
    if found is None:
        return "-"
    text = comparison_texts(found)[2]
    return f"{text}, first {found.num_examples:,}" if ours.column.is_part or other.column.is_part else text


def open_question(results: Path) -> str:
    """Weights or attack: the paired differences there are, and what is missing for an answer."""
    tables = {table.spec.name: table for table in kept_tables(results)}
    square = tables[TWO_BY_TWO.name]
    lacking = [f"`{line.row.id}`" for line in square.lines if not line.trials and not line.row.is_extra]
    if lacking:
        text = f"The question is open: `{TWO_BY_TWO.name}` has no record of {', '.join(lacking)}.\n"
    else:
        head = ["question", "verdict", "decided by"]
        rows = [*claim_rows(square.claims), *_before_square_claims(results)]
        text = "\n".join([markdown_table(head, []), *rows]) + "\n"
    found = [one for one in tables["table2"].comparisons if one.contrast.title in QUESTION]
    found += square.comparisons
    found = [one for one in found if one.column.title == "AA" and not one.column.is_part]
    if not found:
        return text
    return f"{text}\nUnder complete AutoAttack, paired:\n\n{_paired(found, tables['table2'])}"


def _before_square_records(results: Path) -> tuple[list[dict[str, Any]], dict[str, dict[int, str]]]:
    """What AutoAttack's first attacks left: the records, and by row and seed who stands."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob(BEFORE_SQUARE))]
    rows: dict[str, dict[int, str]] = {row.id: {} for row in TWO_BY_TWO.rows}
    for one in (one for record in found for one in record["rows"]):
        rows[_row_of(one, rows)][one["seed"]] = one["correct"]
    return found, rows


def _row_of(one: Mapping[str, Any], names: Iterable[str]) -> str:
    (name,) = (name for name in names if one["run"] == f"cifar10-resnet18-{name}-s{one['seed']}")
    return name


def _before_square_claims(results: Path) -> list[str]:
    """The same questions, of all seeds, after the last attack that all rows of a seed went through."""
    _, rows = _before_square_records(results)
    columns = make_grid(TWO_BY_TWO).columns
    cells = {name: [verdicts if column.title == "AA" else {} for column in columns] for name, verdicts in rows.items()}
    judged = [judge(claim, columns, cells) for claim in TWO_BY_TWO.claims]
    told = [one for one in judged if one.comparisons]
    return [f"| {one.claim.text}, unfinished attacks left out | {one.verdict} | {one.evidence} |" for one in told]


def before_square(results: Path) -> str:
    """The two-by-two attack by attack, where AutoAttack was not carried through in every row.

    Rows of a seed are compared after the last attack that all of them went through.
    """
    found, rows = _before_square_records(results)
    after: list[list[str]] = []
    for one in (one for record in found for one in record["rows"]):
        name = _row_of(one, rows)
        shares = [one["robust_accuracy"].get(stage) for stage in VERSIONS["standard"]]
        after.append(
            [f"`{name}`", str(one["seed"]), *("unfinished" if share is None else f"{share:.2%}" for share in shares)]
        )
    if not after:
        return "None of these rows has a record yet.\n"
    column = make_grid(TWO_BY_TWO).columns[4]
    pairs = [one for contrast in TWO_BY_TWO.contrasts if (one := compare(contrast, column, rows))]
    head = ["row", "seed", *(f"after {stage}" for stage in VERSIONS["standard"])]
    seeds = [f"seed {record['seed']}, after {record['stage']}" for record in found]
    told = markdown_table(["difference", "points", *seeds, "over seeds"], [_by_seed(one, found) for one in pairs])
    return f"{markdown_table(head, after)}\n\n{told}\n"


def _by_seed(one: Comparison, records: list[dict[str, Any]]) -> list[str]:
    """A difference over all seeds, and of each."""
    single = dict(zip(one.seeds, one.seed_differences, strict=True))
    text = comparison_texts(one)
    points = {seed: f"{difference:+.2f}" for seed, difference in single.items()}
    return [text[0], text[2], *(points.get(record["seed"], "-") for record in records), text[5]]


def reproduction(results: Path) -> str:
    """How much of each table has been run."""
    rows = []
    for table in kept_tables(results):
        found = sorted(line.trials for line in table.lines if line.trials)
        seeds = "none" if not found else f"{found[0]}" if found[0] == found[-1] else f"{found[0]} to {found[-1]}"
        rows.append([f"`{table.spec.name}`", table.spec.title, str(len(table.lines)), str(len(found)), seeds])
    return markdown_table(["table", "what it compares", "rows", "with a record", "seeds of these"], rows) + "\n"


def claims(results: Path) -> str:
    """Every claim with its verdict."""
    lines = [markdown_table(["table", "claim", "verdict", "decided by"], [])]
    for table in _paper_tables(results):
        lines += [f"| `{table.spec.name}` {row}" for row in claim_rows(table.claims)]
    return "\n".join(lines) + "\n"


def smoke(results: Path) -> str:
    """Table 2 on digits."""
    (experiment,) = find("table2")
    table = build_table(make_grid(experiment, "smoke").table(), read_records([results / "smoke"]))
    labels = [column.label for column in table.spec.columns]
    rows = []
    for line in table.lines:
        cells = ["-" if cell.mean is None else f"{cell.mean:.1f}" for cell in line.cells]
        rows.append([f"`{line.row.id}`", *cells, "-" if line.drop is None else f"{line.drop:.0f}"])
    return markdown_table(["method", *labels, "PGD - AA, same 100 images"], rows) + "\n"


PARTS: Mapping[str, Callable[[Path], str]] = {
    "reproduced": reproduced,
    "verdicts": verdicts,
    "open-question": open_question,
    "reweighting": reweighting,
    "within-burn-in": within_burn_in,
    "before-square": before_square,
    "reproduction": reproduction,
    "claims": claims,
    "smoke": smoke,
}
"""By the name of the place."""
