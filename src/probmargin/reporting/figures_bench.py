"""Figures of our benches: how far measures depend on the path, and what wrong labels do."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from probmargin.reporting.figures_style import (
    BLUE,
    GREY,
    METHOD_NAMES,
    PAGE,
    SKY,
    VERMILION,
    grid,
    new_figure,
    panel,
)
from probmargin.reporting.figures_training import draw_areas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BARS: tuple[dict[str, Any], ...] = (
    {"color": VERMILION, "hatch": "////"},
    {"color": SKY, "hatch": ""},
    {"color": "#FFFFFF", "hatch": "...."},
)
POINTS: tuple[dict[str, Any], ...] = (
    {"color": VERMILION, "marker": "s"},
    {"color": SKY, "marker": "o"},
    {"color": "#FFFFFF", "marker": "D"},
)
_CERTAIN = 0.9995
"""A correlation that need not be printed: the point lies at 1."""


def grouped_bars(axes: "Axes", groups: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> None:
    """Bars side by side, told apart by hatching too; in the place of a value that does not exist is a dash."""
    width = 0.8 / len(series)
    for place, ((name, values), style) in enumerate(zip(series.items(), BARS, strict=False)):
        at = np.arange(len(groups)) + (place - (len(series) - 1) / 2) * width
        heights = [0.0 if value is None else value for value in values]
        axes.bar(at, heights, width, label=name, edgecolor="black", linewidth=0.5, zorder=2, **style)
        for x, value, height in zip(at, values, heights, strict=True):
            text = "-" if value is None else f"{value:.1f}"
            axes.annotate(text, (x, height), (0, 1), textcoords="offset points", ha="center", fontsize=4.8)
    top = max(value or 0.0 for values in series.values() for value in values)
    axes.set_ylim(0, 1.35 * top or 1.0)
    axes.set_xticks(range(len(groups)), [group.replace(" ", "\n") for group in groups])
    grid(axes)


def grouped_points(axes: "Axes", groups: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> None:
    """The same with points, for values whose zero is far away."""
    for place, ((name, values), style) in enumerate(zip(series.items(), POINTS, strict=False)):
        at = np.arange(len(groups)) + 0.22 * (place - (len(series) - 1) / 2)
        known = [(x, value) for x, value in zip(at, values, strict=True) if value is not None]
        axes.plot(*zip(*known, strict=True), linestyle="", mec="black", mew=0.5, ms=5, label=name, **style)
        for x, value in known:
            if value > _CERTAIN:
                continue
            axes.annotate(f"{value:.2f}", (x, value), (0, -9), textcoords="offset points", ha="center", fontsize=5.5)
    low = min(value for values in series.values() for value in values if value is not None)
    axes.set_ylim(low - 0.25 * (1.02 - low) - 0.01, 1.02)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_xticks(range(len(groups)), [group.replace(" ", "\n") for group in groups])
    grid(axes)


def reliability(data: Mapping[str, Any]) -> "Figure":
    """Path's share of the variance, agreement of orders, scale per class, and the three areas over the epochs."""
    figure = new_figure(PAGE, 4.6)
    (share, order, scale), bottom = figure.subplots(2, 3)
    table = data["path_dependence"]
    groups, shown = list(table), ("LPS", "PM-adv", "PM-nat")
    shares = {name: [table[group][name]["path_share"] for group in groups] for name in shown}
    percent = {name: [None if value is None else 100 * value for value in values] for name, values in shares.items()}
    grouped_bars(share, groups, percent)
    share.legend(loc="upper left", ncols=3, columnspacing=0.8, handlelength=1.4)
    panel(share, "a", "variance due to the path, %")
    grouped_points(order, groups, {name: [table[group][name]["rank_agreement"] for group in groups] for name in shown})
    order.legend(loc="lower right")
    panel(order, "b", "rank agreement of two paths")
    _class_scale(scale, data["class_scale"]["nat"])
    for axes, letter, curve in zip(bottom, "def", data["areas"], strict=True):
        draw_areas(axes, curve)
        end = data["burn_in_epochs"] + 0.5
        axes.axvline(end, color="black", linewidth=0.8, linestyle="--")
        axes.annotate("burn-in ", (end, 98), ha="right", va="top", fontsize="small")
        axes.locator_params(axis="x", integer=True)
        panel(axes, letter, f"{METHOD_NAMES[curve['row']]}: training images, %")
    return figure


def _class_scale(axes: "Axes", scales: Mapping[str, Any]) -> None:
    """Mean size of MM and of PM in each class, as a share of the mean over classes."""
    for name, marker, colour in (("MM", "s", VERMILION), ("PM", "o", BLUE)):
        sizes = np.array([row["mean_size"] for row in scales[name]["rows"]])
        ratio = scales[name]["largest_over_smallest"]
        label = f"{name}: largest / smallest {ratio:.2f}"
        axes.plot(range(len(sizes)), sizes / sizes.mean(), linestyle="", marker=marker, color=colour, label=label)
    axes.axhline(1, color=GREY, linewidth=0.6)
    names = [row["class"] for row in scales["MM"]["rows"]]
    rotation = 90 if max(map(len, names)) > 2 else 0
    axes.set_xticks(range(len(names)), names, rotation=rotation)
    axes.set_xlabel("class")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.35 * (high - low))
    axes.legend(loc="upper left")
    grid(axes)
    panel(axes, "c", "mean size / mean over classes")


def label_noise(data: Mapping[str, Any]) -> "Figure":
    """Share of the weight on wrong labels, and accuracy under attack with and without them."""
    figure = new_figure(PAGE, 2.6)
    left, *others = figure.subplots(1, 3)
    rows = data["rows"]
    wrong = {"color": VERMILION, "hatch": "////"}
    _bars(left, rows, {"weight_on_wrong": (None, wrong)})
    left.axhline(100 * data["share_of_wrong"], color="black", linewidth=0.8, linestyle="--")
    left.annotate(
        "share of\nexamples", (0.44, 100 * data["share_of_wrong"]), (0.0, 100 * data["share_of_wrong"] + 18),
        fontsize=6, ha="center", arrowprops={"arrowstyle": "->", "linewidth": 0.6},
    )  # fmt: skip
    left.set_ylabel("%")
    panel(left, "a", "weight on wrong labels")
    for axes, letter, (attack, title) in zip(others, "bc", (("pgd-20", "PGD-20"), ("cw", "CW-20")), strict=True):
        styles = {
            f"{attack}_clean": ("clean labels", {"color": SKY, "hatch": ""}),
            attack: (f"{data['share_of_wrong']:.0%} wrong", wrong),
        }
        _bars(axes, rows, styles)
        panel(axes, letter, f"accuracy under {title}")
    others[0].legend(loc="upper center", ncols=2, columnspacing=1.0)
    names = [METHOD_NAMES.get(row["method"], row["method"]).replace("-", "-\n") for row in rows]
    for axes in (left, *others):
        axes.set_xticks(range(len(names)), names, fontsize=6)
        axes.set_ylim(0, 110)
        axes.set_yticks(range(0, 101, 20))
        grid(axes)
    return figure


def _bars(
    axes: "Axes", rows: Sequence[Mapping[str, Any]], series: Mapping[str, tuple[str | None, Mapping[str, Any]]]
) -> None:
    """Means in percent with their deviations, one group a method; `series` gives label and style of each number."""
    width = 0.8 / len(series)
    for place, (key, (label, style)) in enumerate(series.items()):
        at = np.arange(len(rows)) + (place - (len(series) - 1) / 2) * width
        means = [100 * row[key]["mean"] for row in rows]
        errors = [100 * (row[key]["std"] or 0.0) for row in rows]
        axes.bar(
            at, means, width, yerr=errors, capsize=1.5, edgecolor="black", linewidth=0.5, zorder=2, label=label,
            error_kw={"linewidth": 0.8}, **style,
        )  # fmt: skip
        for x, mean, error in zip(at, means, errors, strict=True):
            axes.annotate(f"{mean:.0f}", (x, mean + error), (0, 1), textcoords="offset points", ha="center", fontsize=6)
