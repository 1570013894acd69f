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


def grouped_bars(axes: "Axes", groups: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> None:
    """Bars side by side, told apart by hatching too; a value that does not exist has none."""
    width = 0.8 / len(series)
    for place, ((name, values), style) in enumerate(zip(series.items(), BARS, strict=False)):
        at = np.arange(len(groups)) + (place - (len(series) - 1) / 2) * width
        heights = [0.0 if value is None else value for value in values]
        axes.bar(at, heights, width, label=name, edgecolor="black", linewidth=0.5, zorder=2, **style)
        for x, height in zip(at, heights, strict=True):
            axes.annotate(f"{height:.2f}", (x, height), (0, 1), textcoords="offset points", ha="center", fontsize=5)
    axes.set_xticks(range(len(groups)), groups)
    grid(axes)


def reliability(data: Mapping[str, Any]) -> "Figure":
    """Path's share of the variance, agreement of orders, scale per class, and the three areas over the epochs."""
    figure = new_figure(PAGE, 4.6)
    (share, order, scale), bottom = figure.subplots(2, 3)
    table = data["path_dependence"]
    groups = list(table)
    shown = ("LPS", "PM-adv", "PM-nat")
    for axes, key in ((share, "path_share"), (order, "rank_agreement")):
        grouped_bars(axes, groups, {name: [table[group][name][key] for group in groups] for name in shown})
        axes.set_ylim(0, 1.25)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    share.legend(loc="upper left", ncols=3, columnspacing=0.8, handlelength=1.4)
    panel(share, "a", "variance due to the path")
    panel(order, "b", "rank agreement of paths")
    _class_scale(scale, data["class_scale"]["nat"])
    for axes, letter, curve in zip(bottom, "def", data["areas"], strict=True):
        draw_areas(axes, curve)
        axes.axvline(data["burn_in_epochs"] + 0.5, color="black", linewidth=0.8, linestyle="--")
        panel(axes, letter, f"{METHOD_NAMES[curve['row']]}: training images, %")
    handles, labels = bottom[0].get_legend_handles_labels()
    bottom[0].legend(handles[::-1], labels[::-1], loc="upper left", frameon=True, framealpha=0.9)
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
    """Share of the weight on wrong labels, and robust accuracy with and without them."""
    figure = new_figure(PAGE, 2.6)
    left, right = figure.subplots(1, 2)
    rows = data["rows"]
    names = [METHOD_NAMES.get(row["method"], row["method"]) for row in rows]
    _bars(left, rows, ("weight_on_wrong",), [{"color": VERMILION, "hatch": "////"}], [None])
    left.axhline(100 * data["share_of_wrong"], color="black", linewidth=0.8, linestyle="--")
    left.annotate(
        "their share of the examples", (0.99, 100 * data["share_of_wrong"]), (0, 3), fontsize=6.5, ha="right",
        xycoords=("axes fraction", "data"), textcoords="offset points",
    )  # fmt: skip
    left.set_ylabel("weight on wrong labels, %")
    panel(left, "a", "who gets the weight (after burn-in)")
    styles = [{"color": SKY, "hatch": ""}, {"color": VERMILION, "hatch": "////"}]
    _bars(
        right, rows, ("robust_clean", "robust"), styles, ["clean labels", f"{data['share_of_wrong']:.0%} wrong labels"]
    )
    right.set_ylabel(f"accuracy under {data['attack'].upper()}, %")
    right.legend(loc="upper center", ncols=2, bbox_to_anchor=(0.5, -0.1))
    panel(right, "b", "what it costs (clean test labels)")
    for axes in (left, right):
        axes.set_xticks(range(len(names)), names)
        axes.set_ylim(0, 100)
        grid(axes)
    return figure


def _bars(
    axes: "Axes",
    rows: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    styles: Sequence[Mapping[str, Any]],
    labels: Sequence[str | None],
) -> None:
    width = 0.8 / len(keys)
    for place, (key, style, label) in enumerate(zip(keys, styles, labels, strict=True)):
        at = np.arange(len(rows)) + (place - (len(keys) - 1) / 2) * width
        means = [100 * row[key]["mean"] for row in rows]
        errors = [100 * (row[key]["std"] or 0.0) for row in rows]
        axes.bar(
            at, means, width, yerr=errors, capsize=2, edgecolor="black", linewidth=0.5, zorder=2, label=label,
            error_kw={"linewidth": 0.8}, **style,
        )  # fmt: skip
        for x, mean, error in zip(at, means, errors, strict=True):
            axes.annotate(f"{mean:.1f}", (x, mean + error), (0, 1), textcoords="offset points", ha="center", fontsize=6)
