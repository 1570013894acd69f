"""What is drawn over epochs, as the plain data the page's script reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from probmargin.reporting.dynamics import SAFE_ABOVE
from probmargin.reporting.folder import Plain, parts, series
from probmargin.reporting.page.data import RunReport
from probmargin.reporting.page.spreads import LEVELS, Spread, chosen_epochs
from probmargin.reporting.page.words import attack_name

_AREAS = {"safe": 2, "boundary": 4, "wrong": 1}
"""Their colours on a page: green, yellow and red, as far as the eye can tell them."""
MOST_POINTS = 1600
"""Of a curve, over all runs: many runs get fewer points each, which nobody can tell apart on a screen."""


@dataclass(frozen=True)
class Quantity:
    """A curve of a chart: its name, and where an epoch's line has it."""

    title: str
    name: str
    part: str | None = None


@dataclass(frozen=True)
class Chart:
    """A chart: what is on it and what it is for."""

    id: str
    title: str
    note: str
    quantities: Callable[[list[Plain]], list[Quantity]]
    format: str = "number"
    """number or percent."""
    is_log: bool = False


def _fixed(*quantities: Quantity) -> Callable[[list[Plain]], list[Quantity]]:
    return lambda _: list(quantities)


def _monitors(metrics: list[Plain]) -> list[Quantity]:
    return [Quantity(attack_name(name), "monitors", name) for name in parts(metrics, "monitors")]


NATURAL, ROBUST = "natural_accuracy", "robust_accuracy"

CHARTS = (
    Chart("loss", "Loss", "Of the training batches.", _fixed(Quantity("loss", "loss"))),
    Chart(
        "accuracy",
        "Accuracy while training",
        "Of the training batches: on clean images and on attacked ones.",
        _fixed(Quantity("clean", NATURAL), Quantity("attacked", ROBUST)),
        "percent",
    ),
    Chart(
        "validation",
        "Held-out accuracy",
        "On training images held out to choose the best state.",
        _fixed(Quantity("clean", "validation", NATURAL), Quantity("attacked", "validation", ROBUST)),
        "percent",
    ),
    Chart(
        "monitors",
        "Test monitors",
        "On test images, for curves alone: nothing is chosen by them.",
        _monitors,
        "percent",
    ),
    Chart(
        "sample-size",
        "Effective sample size",
        "How many equally weighted images the weights are worth.",
        _fixed(Quantity("effective sample size", "effective_sample_size")),
    ),
    Chart(
        "weight-mean",
        "Mean weight",
        "1 where weights are brought to a mean of one.",
        _fixed(Quantity("mean weight", "weight_mean")),
    ),
    Chart("lr", "Learning rate", "On a logarithmic scale.", _fixed(Quantity("learning rate", "lr")), is_log=True),
)


def charts(reports: Sequence[RunReport]) -> list[dict[str, Any]]:
    """All charts that any run has points for."""
    found = [_chart(chart, reports) for chart in CHARTS]
    return [chart for chart in found if chart["series"]]


def _chart(chart: Chart, reports: Sequence[RunReport]) -> dict[str, Any]:
    most = MOST_POINTS // max(4, len(reports))
    found = [_points(chart, report.folder.metrics, most) for report in reports]
    drawn = [report for report, points in zip(reports, found, strict=True) if points]
    # A chart's title tells its one quantity, but not by which attack monitors looked.
    single = chart.id != "monitors" and len({title for points in found for _, title, *_ in points}) == 1
    lines = []
    for place, points in enumerate(found):
        for order, title, epochs, values in points:
            look = _look(reports[place].label, title, place, order, len(reports), single)
            lines.append({**look, "x": epochs, "y": values})
    return {
        "id": chart.id,
        "title": chart.title,
        "note": chart.note + _caution(chart, drawn),
        "format": chart.format,
        "log": chart.is_log,
        "series": lines,
        "marks": _marks(drawn, several=len(reports) > 1),
        "alt": _alt(chart.title, chart.format, lines),
    }


def _points(chart: Chart, metrics: list[Plain], most: int) -> list[tuple[int, str, list[int], list[float]]]:
    """The curves of one run that have values: number, title, epochs and values, thinned where there are too many."""
    found = []
    for order, quantity in enumerate(chart.quantities(metrics)):
        epochs, values = series(metrics, quantity.name, quantity.part)
        if values:
            rows = chosen_epochs(len(values), most)
            shown = [float(f"{values[row]:.5g}") for row in rows]
            found.append((order, quantity.title, [epochs[row] for row in rows], shown))
    return found


def _look(label: str, title: str, place: int, order: int, runs: int, single: bool) -> dict[str, Any]:
    """Name, colour and dashes: colours tell runs apart, dashes quantities; lines that may coincide differ in both."""
    if runs == 1:
        return {"name": title, "color": order, "dash": order}
    return {"name": label if single else f"{label}: {title}", "color": place, "dash": place if single else order}


def _alt(title: str, kind: str, lines: list[dict[str, Any]]) -> str:
    """A chart in words: where each line begins and ends."""

    def shown(value: float) -> str:
        return f"{100 * value:.1f}%" if kind == "percent" else f"{value:.4g}"

    told = [
        f"{line['name']} goes from {shown(line['y'][0])} in epoch {line['x'][0]} "
        f"to {shown(line['y'][-1])} in epoch {line['x'][-1]}"
        for line in lines
    ]
    return f"{title} over epochs: {'; '.join(told)}."


def _caution(chart: Chart, reports: Sequence[RunReport]) -> str:
    """Losses of other objectives are other quantities."""
    objectives = {str((report.folder.recipe.get("objective") or {}).get("name")) for report in reports}
    return " Objectives differ: not to be compared between runs." if chart.id == "loss" and len(objectives) > 1 else ""


def _marks(reports: Sequence[RunReport], *, several: bool) -> list[dict[str, Any]]:
    """Ends of burn-in and drops of the learning rate; of several runs' what not all drawn have names those that do."""
    each = {report.label: _marks_of(report.folder.recipe, report.folder.trained) for report in reports}
    texts: dict[int, list[str]] = {}
    for epoch, text in dict.fromkeys(mark for marks in each.values() for mark in marks):
        owners = [label for label, marks in each.items() if (epoch, text) in marks]
        whose = f" ({', '.join(owners)})" if several and len(owners) < len(each) else ""
        texts.setdefault(epoch, []).append(text + whose)
    # A rate that drops after epoch 9 is lower in epoch 10: the mark stands between.
    return [{"x": epoch + 0.5, "text": ", ".join(words)} for epoch, words in sorted(texts.items())]


def _marks_of(recipe: Plain, trained: int) -> list[tuple[int, str]]:
    found = [(int(epoch), "rate drops") for epoch in recipe.get("lr_milestones") or []]
    weighted = (recipe.get("weight") or {}).get("name", "uniform") != "uniform"
    burn_in = int(recipe.get("burn_in_epochs") or 0)
    if weighted and burn_in:
        found.insert(0, (burn_in, "weights begin"))
    return [mark for mark in found if 0 < mark[0] < trained]


def fan(spread: Spread, title: str, label: str, place: int = 0) -> dict[str, Any]:
    """Quantiles over epochs, and the histogram of each epoch."""
    low, lower, middle, upper, high = spread.quantiles
    ends = f"from {middle[0]:.2f} in epoch {spread.epochs[0]} to {middle[-1]:.2f} in epoch {spread.epochs[-1]}"
    share = f"{LEVELS[0]:.0%} to {LEVELS[-1]:.0%}"
    return {
        "title": f"{title} over epochs",
        "note": "Median of all training images, and the ranges of the middle 50% and 90%.",
        "format": "number",
        "log": False,
        "series": [{"name": "median", "color": place, "dash": 0, "x": spread.epochs, "y": middle}],
        "bands": [
            {"name": "middle 90%", "x": spread.epochs, "low": low, "high": high},
            {"name": "middle 50%", "x": spread.epochs, "low": lower, "high": upper},
        ],
        "marks": [],
        "histogram": {"title": title, "epochs": spread.epochs, "edges": spread.edges, "counts": spread.counts},
        "alt": f"{title} of the training images of {label} over epochs: the median goes {ends}; "
        f"at the end quantiles {share} reach from {low[-1]:.2f} to {high[-1]:.2f}.",
    }


def areas(by_epoch: dict[str, Any], label: str) -> dict[str, Any]:
    """Shares of safe, boundary and wrong images over epochs."""
    rows = chosen_epochs(len(by_epoch["epoch"]))
    lines = [
        {
            "name": name,
            "color": color,
            "dash": order,
            "x": [by_epoch["epoch"][row] + 1 for row in rows],
            "y": [round(by_epoch[name][row], 4) for row in rows],
        }
        for order, (name, color) in enumerate(_AREAS.items())
    ]
    title = "Safe, boundary and wrong images"
    return {
        "title": title,
        "note": f"Safe: margin above {SAFE_ABOVE:g}; wrong: 0 or less; boundary: between.",
        "format": "percent",
        "log": False,
        "series": lines,
        "marks": [],
        "alt": f"{label}: {_alt(title, 'percent', lines)}",
    }
