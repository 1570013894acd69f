"""How figures look: sizes of a paper's columns, colours that colour-blind people tell apart, shapes that differ too."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmargin.engine.files import written_aside

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.35, 6.9
"""Widths in inches: one column, two columns."""
DPI = 200

# Okabe and Ito's colours.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE, GREY = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
    "#777777",
)
LINES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "linestyle": "-", "marker": "o"},
    {"color": VERMILION, "linestyle": "--", "marker": "s"},
    {"color": GREEN, "linestyle": "-.", "marker": "^"},
    {"color": PURPLE, "linestyle": ":", "marker": "D"},
    {"color": ORANGE, "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
)
"""Told apart by dashes and markers where colours are not."""
METHOD_LINES = {"at": LINES[0], "gairat": LINES[1], "mail-at": LINES[2], "mail-trades": LINES[3]}
METHOD_NAMES = {"at": "AT", "gairat": "GAIRAT", "mail-at": "MAIL-AT", "mail-trades": "MAIL-TRADES"}
AREA_COLOURS = {"safe": "#BFE3D5", "boundary": "#FBE3B5", "wrong": "#F3C4AE"}
AREA_HATCHES = {"safe": "", "boundary": "....", "wrong": "////"}

STYLE: Any = {
    "font.size": 8,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "hatch.linewidth": 0.4,
    "legend.frameon": False,
    "grid.linewidth": 0.4,
    "grid.color": "#DDDDDD",
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}
"""Type 42: fonts are embedded whole, so that text in a PDF can be searched and journals take it."""


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure that lays itself out; no window, no global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def grid(axes: "Axes", which: str = "y") -> None:
    """Faint lines behind the data."""
    axes.grid(axis=which, zorder=0)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def panel(axes: "Axes", letter: str, title: str) -> None:
    """A panel's letter and title."""
    axes.set_title(f"({letter}) {title}", loc="left")


def origin(record: Mapping[str, Any]) -> str:
    """Where the numbers come from, in one small line."""
    facts = [str(record["data_set"]), str(record["model"])]
    eps = record["data"].get("eps")
    if eps is not None:
        facts.append(f"eps {eps * 255:.3g}/255" if record["scale"] == "full" else f"eps {eps:g}")
    count = len({run["seed"] for run in record["runs"]})
    facts.append(f"{count} seeds" if count > 1 else f"seed {record['seed']}")
    return ", ".join(facts)


def save(figure: "Figure", folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and PDF; the same figure gives the same bytes."""
    figure.draw_without_rendering()
    # Laid out once: the second format would only repeat it.
    figure.set_layout_engine("none")
    paths = []
    for suffix, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        path = folder / f"{name}.{suffix}"
        with written_aside(path) as aside:
            figure.savefig(aside, format=suffix, dpi=DPI, metadata=metadata)
        paths.append(path)
    return paths
