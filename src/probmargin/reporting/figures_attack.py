"""Figures of single attack paths: loss along two attacks (1a), steps and margin along one (2)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from probmargin.reporting.figures_style import (
    BLACK,
    BLUE,
    COLUMN,
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

NAMES = {"pgd": "PGD", "lm_pgd": "LM-PGD"}


def figure1a(data: Mapping[str, Any]) -> "Figure":
    """Loss against step: filled markers are still classified as their label, open ones are not."""
    figure = new_figure(COLUMN, 2.5)
    axes = figure.subplots()
    for (name, curve), line in zip(data["curves"].items(), LINES, strict=False):
        loss, correct = np.array(curve["loss"]), np.array(curve["correct"], dtype=bool)
        steps = np.arange(len(loss))
        axes.plot(steps, loss, **{**line, "marker": ""})
        for chosen, face in ((correct, line["color"]), (~correct, "white")):
            axes.plot(
                steps[chosen], loss[chosen], linestyle="", marker=line["marker"], color=line["color"], mfc=face, ms=3
            )
        # A line of no points that shows dash and marker together.
        axes.plot([], [], **line, label=f"{NAMES[name]}, LPS {int(curve['lps'])}")
        if not correct.all():
            first = int(np.argmin(correct))
            axes.axvline(first, color=line["color"], linewidth=0.6, linestyle=":")
    axes.plot([], [], linestyle="", marker="o", color=GREY, mfc="white", label="misclassified")
    axes.set_xlabel("attack step")
    axes.set_ylabel("cross-entropy")
    axes.set_xlim(-1, data["num_steps"] + 1)
    grid(axes)
    axes.legend(loc="best")
    return figure


def figure2(data: Mapping[str, Any]) -> "Figure":
    """The path over the plane it lies in, and its margin step by step."""
    figure = new_figure(PAGE, 2.7)
    left, right = figure.subplots(1, 2, width_ratios=(1.05, 1))
    _plane(left, data)
    _margin(right, data)
    return figure


def _plane(axes: "Axes", data: Mapping[str, Any]) -> None:
    ground = data["landscape"]
    pm = np.array(ground["pm"])
    shown = axes.contourf(ground["x"], ground["y"], pm, levels=np.linspace(-1, 1, 21), cmap="PuOr", vmin=-1.2, vmax=1.2)
    axes.contour(ground["x"], ground["y"], pm, levels=[0.0], colors=BLACK, linewidths=1.2)
    along, across = ground["along"], ground["across"]
    axes.plot(along, across, color=BLACK, linewidth=0.8)
    for step, (x, y, right) in enumerate(zip(along, across, data["correct"], strict=True)):
        face = BLUE if right else VERMILION
        axes.plot(x, y, marker="o" if right else "X", color=face, mec="white", ms=6.5, mew=0.6)
        if step in (0, data["lps"], len(along) - 1):
            note = {0: "start", data["lps"]: f"LPS = {data['lps']}"}.get(step, f"step {step}")
            axes.annotate(
                note,
                (x, y),
                (20, -14) if step == data["lps"] else (0, 9),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
            )
    panel(axes, "a", "path in input space; line: decision boundary")
    axes.set_xlabel("from start to end (L2 distance)")
    axes.set_ylabel("off that line")
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(True)
    axes.figure.colorbar(shown, ax=axes, label="PM", ticks=[-1, -0.5, 0, 0.5, 1])


def _margin(axes: "Axes", data: Mapping[str, Any]) -> None:
    pm, correct = np.array(data["pm"]), np.array(data["correct"], dtype=bool)
    steps = np.arange(len(pm))
    axes.axhline(0, color=BLACK, linewidth=0.8)
    axes.axvspan(data["lps"] - 0.5, len(pm) - 0.5, color="#EEEEEE", zorder=0)
    axes.plot(steps, pm, color=GREY, linewidth=0.8)
    axes.plot(steps[correct], pm[correct], linestyle="", marker="o", color=BLUE, ms=5, label="classified as its label")
    axes.plot(steps[~correct], pm[~correct], linestyle="", marker="X", color=VERMILION, ms=5.5, label="misclassified")
    lps = min(data["lps"], len(pm) - 1)
    axes.annotate(
        f"LPS = {data['lps']}: the first wrong step" if data["lps"] < len(pm) - 1 else f"LPS = {data['lps']}",
        (lps, pm[lps]),
        (0.98, 0.5),
        textcoords="axes fraction",
        fontsize=7,
        ha="right",
        arrowprops={"arrowstyle": "->", "linewidth": 0.6},
    )
    axes.set_xlabel("attack step")
    axes.set_ylabel("probabilistic margin (PM)")
    axes.set_xlim(-0.5, len(pm) - 0.5)
    axes.set_xticks(steps)
    grid(axes)
    axes.legend(loc="upper right")
    panel(axes, "b", "its PM, step by step")
