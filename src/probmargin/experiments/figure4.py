"""Figure 4: PM of examples with the same LPS, as box plots."""

from typing import Any

import numpy as np

from probmargin.core.losses import probabilistic_margin
from probmargin.core.stats import rank_correlation
from probmargin.experiments.followed import follow, subject_of
from probmargin.experiments.study import Bench, Study

EXAMPLES = {"smoke": None, "full": 10_000}
OUTLIERS = 150
"""Drawn at most, in each box; all are counted."""


def box(values: Any) -> dict[str, Any]:
    """Quartiles, whiskers at 5 and 95 percent, and what lies beyond them.

    >>> found = box(np.arange(101.0))
    >>> found["low"], found["q1"], found["median"], found["q3"], found["high"], found["num_outliers"]
    (5.0, 25.0, 50.0, 75.0, 95.0, 10)
    """
    low, q1, median, q3, high = (float(value) for value in np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95)))
    beyond = np.sort(values[(values < low) | (values > high)])
    step = -(-len(beyond) // OUTLIERS) or 1
    return {
        "count": len(values),
        "low": low,
        "q1": q1,
        "median": median,
        "q3": q3,
        "high": high,
        "num_outliers": len(beyond),
        "outliers": beyond[::step].tolist(),
    }


def boxes(lps: Any, margin: Any, num_steps: int) -> list[dict[str, Any]]:
    """One box for each LPS that occurs."""
    present = [value for value in range(num_steps + 1) if (lps == value).any()]
    return [{"lps": value, **box(margin[lps == value])} for value in present]


def measure(bench: Bench) -> dict[str, Any]:
    """LPS of the training images against PM of the clean and of the attacked image."""
    subject = subject_of(bench, "at", EXAMPLES[bench.scale])
    path = follow(subject, subject.attack)
    nat = probabilistic_margin(subject.logits(subject.x), subject.labels).cpu().numpy()
    num_steps = int(getattr(subject.attack, "num_steps", 0))
    margins = {"pm_nat": nat, "pm_adv": path.pm}
    correlation = {name: rank_correlation(path.lps, margin) or 0.0 for name, margin in margins.items()}
    summary = [
        f"Rank correlation of LPS with PM-nat {correlation['pm_nat']:.2f}, with PM-adv {correlation['pm_adv']:.2f}, "
        f"over {len(nat):,} training images; {float((path.lps == num_steps).mean()):.1%} share the highest LPS."
    ]
    return {
        "eps": subject.eps,
        "num_steps": num_steps,
        "examples": len(nat),
        "boxes": {name: boxes(path.lps, margin, num_steps) for name, margin in margins.items()},
        "rank_correlation": correlation,
        "summary": summary,
    }


FIGURE4 = Study(name="figure4", title="PM of examples with the same LPS", rows=("at",), measure=measure)
