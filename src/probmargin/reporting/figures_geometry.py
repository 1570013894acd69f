"""Figures of the margin itself: on the probability simplex (3), and the weights made of it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from probmargin.reporting.figures_style import (
    AREA_COLOURS,
    AREA_HATCHES,
    BLACK,
    BLUE,
    GREY,
    LINES,
    PAGE,
    VERMILION,
    grid,
    new_figure,
    panel,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]

CORNERS = np.array([[0.5, np.sqrt(3) / 2], [0.0, 0.0], [1.0, 0.0]])
"""Where the three classes lie: the label at the top."""
EXAMPLES = (
    ((0.6, 0.4, 0.0), "0.6, 0.4: PM 0.2"),
    ((0.5, 0.5, 0.0), "0.5, 0.5: PM 0"),
    ((0.4, 0.6, 0.0), "0.4, 0.6: PM -0.2"),
)
"""The paper's own."""


def place(probability: Any) -> Array:
    """Probabilities of three classes as points of the plane.

    >>> place([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]).tolist()
    [[0.5, 0.866025], [0.5, 0.0]]
    """
    return np.asarray(np.asarray(probability, dtype=np.float64) @ CORNERS)


def figure3(data: Mapping[str, Any]) -> "Figure":
    """The three areas of the simplex, and where clean and attacked images lie on it."""
    figure = new_figure(PAGE, 3.0)
    left, right = figure.subplots(1, 2)
    _areas(left, data["safe_above"], three_classes=True)
    _contours(left)
    _name_areas(left)
    for probability, note in EXAMPLES:
        x, y = place(probability)
        left.plot(x, y, marker="o", color=BLACK, ms=3.5, zorder=5)
        left.annotate(note, (x, y), (-5, 0), textcoords="offset points", ha="right", va="center", fontsize=6.5)
    _corners(left, ("label", "class j", "class k"))
    left.set_title("(a) PM with three classes", loc="left", pad=14)
    _areas(right, data["safe_above"], three_classes=False)
    for name, line in (("clean", {"color": BLUE, "marker": "o"}), ("attacked", {"color": VERMILION, "marker": "x"})):
        points = place(data["points"][name])
        share = data["areas"][name]
        text = f"{name}: {share['safe']:.1%} safe, {share['boundary']:.1%} boundary, {share['wrong']:.1%} wrong"
        face = {"mfc": "none"} if name == "clean" else {}
        right.plot(
            points[:, 0],
            points[:, 1],
            linestyle="",
            ms=2.6,
            mew=0.5,
            zorder=4,
            clip_on=False,
            label=text,
            **line,
            **face,
        )
    _corners(right, ("label", "most likely\nother class", "all the rest"))
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), handletextpad=0.2)
    right.set_title(f"(b) {data['examples']:,} training images", loc="left", pad=14)
    return figure


def _margins(*, three_classes: bool) -> tuple[Array, Array, Array]:
    """PM at every point of the simplex: against the larger of two classes, or against the second corner alone."""
    across = np.linspace(0, 1, 401)
    x, y = np.meshgrid(across, across * CORNERS[0, 1])
    label = y / CORNERS[0, 1]
    third = x - 0.5 * label
    second = 1 - label - third
    other = np.maximum(second, third) if three_classes else second
    return x, y, np.ma.masked_where((second < -1e-9) | (third < -1e-9), label - other)


def _areas(axes: "Axes", safe_above: float, *, three_classes: bool) -> None:
    """Fill what is safe, near the boundary and wrong."""
    x, y, pm = _margins(three_classes=three_classes)
    names = ("wrong", "boundary", "safe")
    axes.contourf(
        x, y, pm, levels=[-1.01, 0.0, safe_above, 1.01], colors=[AREA_COLOURS[name] for name in names],
        hatches=[AREA_HATCHES[name] for name in names], zorder=1,
    )  # fmt: skip
    axes.contour(x, y, pm, levels=[0.0], colors=BLACK, linewidths=1.0, zorder=2)
    axes.plot(*np.vstack([CORNERS, CORNERS[:1]]).T, color=BLACK, linewidth=0.8, zorder=3)
    axes.set_aspect("equal")
    axes.axis("off")


def _name_areas(axes: "Axes") -> None:
    """The areas' names, down the middle of the simplex."""
    for name, height in (("safe", 0.66), ("boundary", 0.345), ("wrong", 0.13)):
        axes.text(
            0.5, height, name, ha="center", va="center", fontsize=7, zorder=6,
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
        )  # fmt: skip


def _contours(axes: "Axes") -> None:
    """Lines of equal PM, named where they meet the right edge: there p of the label is (1 + PM) / 2."""
    x, y, pm = _margins(three_classes=True)
    levels = [-0.8, -0.4, 0.4, 0.8]
    axes.contour(x, y, pm, levels=levels, colors="#444444", linewidths=0.5, linestyles="-", zorder=2)
    for level in [*levels, 0.0]:
        share = (1 + level) / 2
        edge = place([share, 0.0, 1 - share])
        axes.annotate(
            f"PM {level:g}", tuple(edge), (4, 0), textcoords="offset points", va="center", fontsize=6, color="#444444"
        )


def _corners(axes: "Axes", names: tuple[str, str, str]) -> None:
    for (x, y), name, ha, va in zip(
        CORNERS, names, ("center", "center", "center"), ("bottom", "top", "top"), strict=True
    ):
        axes.annotate(
            name, (x, y), (0, 3 if va == "bottom" else -3), textcoords="offset points", ha=ha, va=va, fontsize=7
        )


def weight_functions(data: Mapping[str, Any]) -> "Figure":
    """Raw weights over the probabilistic margin, and over the attack steps survived."""
    figure = new_figure(PAGE, 2.7)
    left, right = figure.subplots(1, 2)
    for curve, line in zip(data["of_margin"], LINES, strict=True):
        left.plot(data["margin"], curve["weight"], **line, markevery=25, label=curve["name"])
    left.plot([0, 0], [0, 2], color=GREY, linewidth=0.6, zorder=1)
    left.set_xlabel("probabilistic margin: wrong below 0, safe towards 1")
    left.set_ylabel("weight before normalising")
    left.legend(loc="upper center")
    left.set_ylim(-0.05, 3.2)
    grid(left)
    panel(left, "a", "of the margin")
    for curve, line in zip(data["of_steps"], LINES, strict=False):
        right.plot(data["steps"], curve["weight"], **line, label=curve["name"])
    right.set_xlabel("attack steps survived (LPS)")
    right.set_xticks(data["steps"])
    right.legend(loc="upper right")
    grid(right)
    panel(right, "b", "of attack steps survived")
    return figure
