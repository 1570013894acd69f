"""The dynamics of a run in words and small tables, for a terminal or a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probmargin.core.words import counted

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Section:
    """A title, sentences, and a table where there is one."""

    title: str
    lines: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def sections(summary: Summary) -> list[Section]:
    """All that can be told of a run, in the order a reader asks."""
    parts = [_overview(summary), *_weights(summary), _classes(summary), _lps(summary), _recipe_margin(summary)]
    parts += [_suspects(summary), _noise(summary) if summary["noise"] else None]
    return [part for part in parts if part is not None]


def plain(parts: Sequence[Section]) -> str:
    """Text without any terminal's help: aligned columns, a blank line between sections."""
    blocks = []
    for part in parts:
        table = [part.header, *part.rows] if part.rows else []
        widths = [max(len(row[column]) for row in table) for column in range(len(part.header))] if table else []
        lines = ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        blocks.append("\n".join([part.title, *(f"  {line}" for line in part.lines), *lines]))
    return "\n\n".join(blocks)


def _overview(summary: Summary) -> Section:
    epochs = summary["epochs"]["epoch"]
    first, last = summary["averaged_epochs"]
    when = "after burn-in" if summary["past_burn_in"] else "burn-in, where every weight is one"
    lines = [
        f"{summary['examples']:,} training examples, {counted(len(epochs), 'epoch')} recorded; averages are over "
        f"epoch{'' if first == last else f's {first + 1} to'} {last + 1} ({when})"
    ]
    ends = {name: summary["epochs"][name][-1] for name in ("safe", "boundary", "wrong")}
    lines.append(
        f"last epoch: {ends['safe']:.1%} safe, {ends['boundary']:.1%} near the boundary, {ends['wrong']:.1%} wrong"
    )
    return Section(f"{summary['method']} on {summary['data']}: {summary['run']}", (*lines, *summary["notes"]))


def _example_row(example: Mapping[str, Any], *extra: str) -> tuple[str, ...]:
    name = "-" if example["class"] is None else str(example["class"])
    wrong = ("yes" if example["is_wrong"] else "",) if "is_wrong" in example else ()
    file = (str(example["file"]),) if "file" in example else ()
    return str(example["index"]), name, f"{example['weight']:.3f}", f"{example['margin']:+.3f}", *extra, *wrong, *file


def _example_header(examples: Sequence[Mapping[str, Any]], *extra: str) -> tuple[str, ...]:
    wrong = ("wrong label",) if examples and "is_wrong" in examples[0] else ()
    file = ("file",) if examples and "file" in examples[0] else ()
    return "example", "class", "weight", "margin", *extra, *wrong, *file


def _weights(summary: Summary) -> list[Section]:
    weight = summary["weight"]
    if weight["is_uniform"]:
        why = "this method does not reweight" if summary["past_burn_in"] else "weights begin after the burn-in"
        return [Section("Weights", (f"every example has the same weight: {why}",))]
    worth = weight["effective_sample_size"]
    lines = (
        f"worth {worth:,.0f} equally weighted examples ({worth / summary['examples']:.1%}); Gini {weight['gini']:.2f}",
        f"the heaviest 1% carry {weight['top_1%']:.1%} of the weight, the heaviest 10% carry {weight['top_10%']:.1%}",
    )
    parts = [Section("Weights", lines)]
    for title, key in (("Largest weights", "largest"), ("Smallest weights", "smallest")):
        examples = weight[key]
        rows = tuple(_example_row(example) for example in examples)
        parts.append(Section(title, (), _example_header(examples), rows))
    return parts


def _classes(summary: Summary) -> Section | None:
    classes = summary["classes"]
    if classes is None:
        return None
    rows = classes["rows"]
    most, least = rows[0], rows[-1]
    line = f"{most['class']} gains most (x{most['ratio']:.2f}), {least['class']} loses most (x{least['ratio']:.2f})"
    if summary["weight"]["is_uniform"]:
        line = "no class gains or loses"
    table = tuple(
        (
            row["class"],
            f"{row['examples']:,}",
            f"{row['weight_share']:.1%}",
            f"{row['uniform_share']:.1%}",
            f"x{row['ratio']:.2f}",
            f"{row['margin']:+.3f}",
            f"{row['correct']:.1%}",
        )
        for row in rows
    )
    right = "right under attack" if summary["is_attacked"] else "right"
    header = ("class", "examples", "of the weight", "of the examples", "ratio", "margin", right)
    return Section(
        "Classes: who gains and loses weight", (line, f"Gini over classes {classes['gini']:.3f}"), header, table
    )


def _lps(summary: Summary) -> Section:
    lps = summary["lps"]
    title = "Attack steps survived (LPS) against margins (PM)"
    if lps is None:
        none = "this run was trained without an attack"
        if summary["is_attacked"]:
            none = "this run's attack records no steps, so there is no LPS"
        if summary["counts_steps"]:
            none = "LPS was not counted in this run: add --measure-lps 1000 to measure it now"
        return Section(title, (none,))
    lines = (
        f"rank correlation {_correlation(lps)} ({lps['source']}); {lps['lps_values']} different values of LPS, "
        f"{lps['margin_values']:,} of PM",
        "largest disagreement, as a share of all ranks: above 0 LPS calls it safer than PM does",
    )
    rows = tuple(_example_row(entry, f"{entry['lps']:.2f}", f"{entry['gap']:+.2f}") for entry in lps["examples"])
    return Section(title, lines, _example_header(lps["examples"], "LPS", "gap"), rows)


def _recipe_margin(summary: Summary) -> Section | None:
    found = summary["recipe_margin"]
    if found is None:
        return None
    name = found["name"]
    low, lower, middle, upper, high = (f"{value:.3g}" for value in found["quantiles"])
    lines = (
        f"rank correlation {_correlation(found)}; median {middle}, middle 50% from {lower} to {upper}, "
        f"middle 90% from {low} to {high}",
        f"largest disagreement, as a share of all ranks: above 0 {name} is larger than PM lets expect",
    )
    rows = tuple(
        _example_row(entry, f"{entry['recipe_margin']:.3g}", f"{entry['gap']:+.2f}") for entry in found["examples"]
    )
    title = f"The margin that this recipe weighs by ({name}) against the probabilistic one (PM)"
    return Section(title, lines, _example_header(found["examples"], name, "gap"), rows)


def _correlation(found: Summary) -> str:
    return "none" if found["rank_correlation"] is None else f"{found['rank_correlation']:.3f}"


def _suspects(summary: Summary) -> Section:
    found = summary["suspects"]
    lines = [f"{found['count']:,} of {summary['examples']:,} ({found['share']:.1%}): {found['criterion']}"]
    if found["judged"]:
        judged = found["judged"]
        precision = "-" if judged["precision"] is None else f"{judged['precision']:.1%}"
        lines.append(
            f"against the {counted(judged['wrong'], 'label')} known to be wrong: precision {precision}, recall "
            f"{judged['recall']:.1%}; of as many with the lowest margins {judged['precision_at_wrong']:.1%} are wrong"
        )
    rows = tuple(_example_row(entry) for entry in found["examples"])
    return Section("Suspected of a wrong label", tuple(lines), _example_header(found["examples"]), rows)


def _noise(summary: Summary) -> Section:
    noise = summary["noise"]
    if not noise["examples"]:
        return Section("Wrong labels", ("no label was made wrong",))
    when = " under attack" if summary["is_attacked"] else ""
    lines = (
        f"{counted(noise['examples'], 'label')} known to be wrong ({noise['share_of_examples']:.1%} of the examples), "
        f"with {noise['share_of_weight']:.1%} of the weight (x{noise['ratio']:.2f})",
        f"the network says the wrong label{when} in {noise['learnt']:.1%} of their cases",
    )
    return Section("Wrong labels", lines)
