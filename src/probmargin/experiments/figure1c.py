"""Figure 1c: accuracy under PGD and CW while AT, GAIRAT and MAIL-AT train."""

from typing import Any

from probmargin.core.errors import UsageError
from probmargin.core.stats import binomial_error
from probmargin.experiments.study import Bench, Study
from probmargin.runs.run import Run

ROWS = ("at", "gairat", "mail-at")
ATTACKS = ("pgd-20", "cw")


def curve(run: Run, row: str) -> dict[str, Any]:
    """A run's monitors, epoch by epoch; epochs count from 1."""
    looks = [line for line in run.metrics if line.get("monitors")]
    missing = [name for name in ATTACKS if not looks or name not in looks[0]["monitors"]]
    if missing:
        raise UsageError(
            f"{run.path} was trained without monitors of {', '.join(missing)}: "
            "train with --monitor pgd-20:1000,cw:1000, or give another --out to figure1c"
        )
    accuracy = {name: [line["monitors"][name] for line in looks] for name in ATTACKS}
    return {"row": row, "epochs": [line["epoch"] + 1 for line in looks], "accuracy": accuracy}


def measure(bench: Bench) -> dict[str, Any]:
    """The curves of the three methods, and where they end."""
    curves = [curve(bench.run(row), row) for row in ROWS]
    run = bench.run(ROWS[0])
    count = min(run.record["monitors"]["counts"].values())
    ends = {found["row"]: {name: values[-1] for name, values in found["accuracy"].items()} for found in curves}
    error = binomial_error(ends["at"]["cw"], count)
    summary = [
        f"{row} ends at {end['pgd-20']:.1%} under PGD-20 and {end['cw']:.1%} under CW-20: a drop of "
        f"{100 * (end['pgd-20'] - end['cw']):.1f} points."
        for row, end in ends.items()
    ]
    return {
        "curves": curves,
        "burn_in_epochs": run.recipe.burn_in_epochs,
        "epochs": run.recipe.epochs,
        "num_images": count,
        "standard_error": error,
        "eps": getattr(run.recipe.final_attack, "eps", None),
        "ends": ends,
        "summary": summary,
    }


FIGURE1C = Study(
    name="figure1c",
    title="Accuracy under PGD and CW while training",
    rows=ROWS,
    from_curves=True,
    measure=measure,
)
