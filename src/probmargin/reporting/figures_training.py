"""Figures of training: accuracy under attack over the epochs (1c), and the three areas of the margin."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from probmargin.reporting.figures_style import (
    AREA_COLOURS,
    AREA_HATCHES,
    GREY,
    METHOD_LINES,
    METHOD_NAMES,
    PAGE,
    grid,
    new_figure,
    panel,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ATTACKS = {"pgd-20": "PGD-20", "cw": "CW-20"}


def figure1c(data: Mapping[str, Any]) -> "Figure":
    """Accuracy on test images under PGD and under CW; the burn-in is shaded."""
    figure = new_figure(PAGE, 2.4)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, letter, (attack, title) in zip(panels, "ab", ATTACKS.items(), strict=True):
        mark_burn_in(axes, data["burn_in_epochs"])
        for curve in data["curves"]:
            values = [100 * value for value in curve["accuracy"][attack]]
            axes.plot(curve["epochs"], values, **METHOD_LINES[curve["row"]], label=METHOD_NAMES[curve["row"]])
        axes.set_xlabel("epoch")
        axes.set_xlim(0, 1.025 * data["epochs"])
        axes.locator_params(axis="x", integer=True)
        grid(axes)
        panel(axes, letter, f"under {title} ({data['num_images']:,} test images)")
    panels[0].set_ylabel("accuracy, %")
    panels[1].legend(loc="lower right")
    return figure


def mark_burn_in(axes: "Axes", epochs: int) -> None:
    """Shade the epochs in which every weight is one."""
    end = epochs + 0.5  # epochs count from 1: the last of them is still burn-in
    axes.axvspan(0, end, color="#F0F0F0", zorder=0)
    axes.annotate(
        "burn-in", (end, 1.0), (-3, -3), xycoords=("data", "axes fraction"), textcoords="offset points",
        fontsize=6, color=GREY, ha="right", va="top",
    )  # fmt: skip


def draw_areas(axes: "Axes", curve: Mapping[str, Any]) -> None:
    """Shares of safe, boundary and wrong examples over the epochs, one on top of the other."""
    names = ("wrong", "boundary", "safe")
    shares = [[100 * value for value in curve[name]] for name in names]
    patches = axes.stackplot(
        curve["epochs"],
        *shares,
        colors=[AREA_COLOURS[name] for name in names],
        labels=names,
        edgecolor="black",
        linewidth=0.3,
    )
    for patch, name in zip(patches, names, strict=True):
        patch.set_hatch(AREA_HATCHES[name])
    _name_areas(axes, curve["epochs"], dict(zip(names, shares, strict=True)))
    axes.set_xlim(min(curve["epochs"]), max(curve["epochs"]))
    axes.set_ylim(0, 100)
    axes.set_xlabel("epoch")


def _name_areas(axes: "Axes", epochs: list[int], shares: Mapping[str, list[float]]) -> None:
    """Each area's name where it is thickest, away from the edges."""
    edge = max(1, len(epochs) // 6)
    inner = range(edge, max(len(epochs) - edge, edge + 1))
    below = [0.0] * len(epochs)
    for name, values in shares.items():
        thickest = max((at for at in inner if at < len(epochs)), key=lambda at: values[at], default=0)
        axes.text(
            epochs[thickest], below[thickest] + values[thickest] / 2, name, ha="center", va="center", fontsize=7,
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
        )  # fmt: skip
        below = [low + value for low, value in zip(below, values, strict=True)]
