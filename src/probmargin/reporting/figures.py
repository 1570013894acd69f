"""Draw a study's record: plain data in, PNG and PDF out."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmargin.core.errors import UsageError
from probmargin.reporting.figures_attack import figure1a, figure2
from probmargin.reporting.figures_bench import label_noise, reliability
from probmargin.reporting.figures_geometry import figure3, weight_functions
from probmargin.reporting.figures_lps import figure1b, figure4
from probmargin.reporting.figures_style import GREY, STYLE, origin, save
from probmargin.reporting.figures_training import figure1c

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWINGS: Mapping[str, Callable[[Mapping[str, Any]], "Figure"]] = {
    "figure1a": figure1a,
    "figure1b": figure1b,
    "figure1c": figure1c,
    "figure2": figure2,
    "figure3": figure3,
    "figure4": figure4,
    "weight-functions": weight_functions,
    "reliability": reliability,
    "label-noise": label_noise,
}


def draw(record: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw a record into a folder, as PNG and PDF named by its id."""
    from matplotlib import rc_context

    name = str(record.get("id"))
    if name not in DRAWINGS:
        raise UsageError(f"nothing is known to draw of a record named {name!r}; choose one of {', '.join(DRAWINGS)}")
    with rc_context(STYLE):
        figure = DRAWINGS[name](record["data"])
        if record["runs"]:
            figure.supxlabel(origin(record), fontsize=6, color=GREY, x=0.995, ha="right")
        return save(figure, folder, name)
