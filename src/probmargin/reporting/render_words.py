"""What all formats of a table say the same way: numbers, differences, and the legend."""

from probmargin.core.words import counted, radius
from probmargin.reporting.compare import Comparison
from probmargin.reporting.page.words import attack_name
from probmargin.reporting.spec import NO_SEED, ColumnSpec
from probmargin.reporting.tables import Cell, Table

DASH = "-"
DROP = "PGD - AA"
COMPARISON_TITLES = ("difference", "column", "points", "images", "over images", "over seeds")
COMPARISON_LEGEND = (
    "Paired differences in points, with the ends of a 95% interval over the images all its rows share. Over images: "
    "McNemar's exact test of the images that one row alone gets right, by seed; a z test where more than two rows are "
    "compared. Over seeds, from three on: the ends of a 95% interval over them, and a t test."
)
CLAIM_LEGEND = (
    "Claims, in parts: one holds where the 95% interval of each paired difference that it needs lies above what it "
    "says, and does not hold where one lies below. From three seeds on the wider of the intervals over images and over "
    "seeds counts; with fewer, images alone, and another seed may decide otherwise."
)


def number(mean: float | None, std: float | None) -> str:
    """A percentage with its deviation.

    >>> number(81.842, 0.18), number(50.6, None), number(None, None)
    ('81.84 ± 0.18', '50.60', '-')
    """
    if mean is None:
        return DASH
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def cell_text(cell: Cell, trials: int = 0) -> str:
    """A cell's number with its deviation over seeds; of one seed, with half its interval over images in brackets.

    Of several seeds, but fewer than the row's `trials`, it says of how many.
    """
    few = counted(cell.trials, "seed") if 0 < cell.trials < trials else ""
    if cell.interval is None:
        return number(cell.mean, cell.std) + (f" ({few})" if few else "")
    low, high = cell.interval
    return f"{number(cell.mean, None)} (±{(high - low) / 2:.2f}{', ' if few else ''}{few})"


def points(value: float | None) -> str:
    """A difference of percentages.

    >>> points(4.012), points(None)
    ('4.01', '-')
    """
    return DASH if value is None else f"{value:.2f}"


def against_paper(cell: Cell) -> str:
    """Ours less the paper's, and whether that is within what chance does."""
    if cell.difference is None or cell.bound is None:
        return DASH
    return f"{cell.difference:+.2f} ({'within' if cell.is_within else 'beyond'} {cell.bound:.2f})"


def printed(cell: Cell) -> str:
    """The paper's number."""
    return number(*cell.published) if cell.published else DASH


def p_text(value: float) -> str:
    """A p value.

    >>> p_text(0.03214), p_text(1e-9)
    ('p 0.0321', 'p < 0.0001')
    """
    return "p < 0.0001" if value < 0.0001 else f"p {value:.4f}"


def _seed_text(seed: int) -> str:
    return "" if seed == NO_SEED else f"s{seed}: "


def comparison_texts(found: Comparison) -> list[str]:
    """A paired comparison, under `COMPARISON_TITLES`."""
    over_images = "; ".join(
        f"{_seed_text(pair.seed)}{pair.only_plus}/{pair.only_minus}, {p_text(pair.p)}" for pair in found.pairs
    )
    if not found.pairs:
        over_images = f"z test, {p_text(found.images_p)}"
    over_seeds = DASH
    if found.seeds_std is not None:
        ends = "" if found.seeds_interval is None else " [{:+.2f}, {:+.2f}]".format(*found.seeds_interval)
        over_seeds = f"{len(found.seeds)} seeds{ends}, std {found.seeds_std:.2f}"
    if found.seeds_p is not None:
        over_seeds += f", {p_text(found.seeds_p)}"
    low, high = found.interval
    return [
        found.contrast.title,
        found.column.label,
        f"{found.difference:+.2f} [{low:+.2f}, {high:+.2f}]",
        f"{found.num_examples:,}",
        over_images or DASH,
        over_seeds,
    ]


def _meaning(column: ColumnSpec) -> str:
    if column.is_part:
        return f"{column.label} = the same verdicts, those of the first {column.first:,} test images"
    name = "no attack" if column.attack == "nat" else attack_name(column.attack)
    return column.label if name == column.label else f"{column.label} = {name}"


def legend(table: Table) -> list[str]:
    """Sentences below the numbers: what columns, brackets and the paper's lines mean."""
    spec = table.spec
    by_protocol: dict[str, list[str]] = {}
    for column in spec.columns:
        judged = f"protocol {column.protocol} ({column.norm}, eps {radius(column.eps)})"
        by_protocol.setdefault(judged, []).append(_meaning(column))
    drop = f" {DROP}: points lost on the images that both looked at." if table.has_drop else ""
    columns = "; ".join(f"{judged}: {', '.join(names)}" for judged, names in by_protocol.items())
    found = [
        f"Columns, {columns}.{drop}",
        "Percent: mean ± standard deviation over seeds; of one seed (± half of its 95% interval over test images).",
    ]
    if table.has_published:
        found.append(f"Paper: {spec.source}.")
        found.append("Within: at most 2 sqrt(s²/n + binomial s.e.²) away; a single trial borrows the paper's s.")
    return found
