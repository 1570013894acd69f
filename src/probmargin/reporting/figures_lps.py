"""Figures of attack steps survived: their histogram (1b) and the margins behind each value (4)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from probmargin.reporting.figures_style import BLUE, COLUMN, GREY, PAGE, SKY, VERMILION, grid, new_figure, panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def figure1b(data: Mapping[str, Any]) -> "Figure":
    """Share of images with each LPS; of the highest value, the part that is critical is hatched."""
    figure = new_figure(COLUMN, 2.4)
    axes = figure.subplots()
    counts, total = data["counts"], data["examples"]
    top = len(counts) - 1
    shares = [100 * count / total for count in counts]
    critical = 100 * data["critical"] / total
    axes.bar(range(len(counts)), shares, color=SKY, edgecolor=BLUE, linewidth=0.6, zorder=2, label="training images")
    axes.bar(
        top,
        critical,
        color=VERMILION,
        edgecolor="black",
        linewidth=0.6,
        hatch="////",
        zorder=3,
        label=f"critical, although LPS is {top}",
    )
    axes.annotate(
        f"{data['critical']:,} of {counts[-1]:,} ({data['share_critical']:.1%})\nare critical",
        (top - 0.45, critical / 2),
        (top - 2.0, max(shares) * 0.45),
        fontsize=7,
        ha="right",
        arrowprops={"arrowstyle": "->", "linewidth": 0.6},
    )
    axes.set_xticks(range(len(counts)))
    axes.set_xlabel("LPS: attack steps survived")
    axes.set_ylabel("training images, %")
    grid(axes)
    axes.legend(loc="upper left")
    return figure


TITLES = {"pm_nat": "PM of the clean image", "pm_adv": "PM of the attacked image"}


def figure4(data: Mapping[str, Any]) -> "Figure":
    """Box plots of PM for each LPS: whiskers at 5 and 95 percent, points beyond them."""
    figure = new_figure(PAGE, 2.6)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, letter, (name, boxes) in zip(panels, "ab", data["boxes"].items(), strict=True):
        _boxes(axes, boxes)
        panel(axes, letter, f"{TITLES[name]} (rank correlation {data['rank_correlation'][name]:.2f})")
        axes.set_xticks(range(data["num_steps"] + 1))
        axes.set_xlim(-0.7, data["num_steps"] + 0.7)
        axes.set_xlabel("LPS (grey: number of images)")
    panels[0].set_ylabel("probabilistic margin (PM)")
    return figure


def _boxes(axes: "Axes", boxes: list[Mapping[str, Any]]) -> None:
    names = {"med": "median", "q1": "q1", "q3": "q3", "whislo": "low", "whishi": "high", "fliers": "outliers"}
    stats = [{key: box[name] for key, name in names.items()} for box in boxes]
    axes.axhline(0, color=GREY, linewidth=0.6, linestyle="--")
    axes.bxp(
        stats,
        positions=[box["lps"] for box in boxes],
        widths=0.6,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": SKY, "edgecolor": BLUE, "linewidth": 0.6},
        medianprops={"color": "black", "linewidth": 1.2},
        whiskerprops={"color": BLUE, "linewidth": 0.6},
        capprops={"color": BLUE, "linewidth": 0.6},
        flierprops={
            "marker": "o",
            "markersize": 1.6,
            "markerfacecolor": "none",
            "markeredgecolor": VERMILION,
            "markeredgewidth": 0.4,
        },
    )
    for box in boxes:
        axes.annotate(
            f"{box['count']}", (box["lps"], 1.04), fontsize=5.5, ha="center", color=GREY, annotation_clip=False
        )
    axes.set_ylim(-1.05, 1.14)
    grid(axes)
