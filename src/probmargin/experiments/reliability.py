"""The paper's words measured: how far LPS and PM of one example depend on the path of the attack.

Two measures of different kind are compared by shares of variance: a value varies between examples, which is what it is
for, and within an example over attack paths, which is noise. The path's share is 1 - ICC(1), 0 for a measure that a
path cannot change and 1 for one that says nothing else. Orders are compared by Spearman's correlation between paths.
"""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from probmargin.attacks.lm_pgd import LMPGD
from probmargin.attacks.pgd import PGD
from probmargin.core.errors import UsageError
from probmargin.core.losses import logit_margin, probabilistic_margin
from probmargin.core.stats import intraclass_correlation, rank_correlation
from probmargin.experiments.figure1a import attacks as paper_attacks
from probmargin.experiments.followed import Followed, Subject, follow, subject_of
from probmargin.experiments.study import Bench, Study
from probmargin.reporting.dynamics import areas, read_history
from probmargin.weights.gairat import GairatTanh
from probmargin.weights.sigmoid import Sigmoid

Array = npt.NDArray[Any]

ROWS = ("at", "gairat", "mail-at")
EXAMPLES = {"smoke": None, "full": 5000}
SEEDS = range(5)
STEP_SHARES = (0.1, 0.15, 0.25, 0.4, 0.6)
"""Step sizes, as shares of the radius."""


def paths(subject: Subject) -> dict[str, list[Followed]]:
    """The same examples along many paths: random starts, step sizes, and LM-PGD beside PGD."""
    attack = subject.attack
    assert isinstance(attack, PGD)
    scattered = replace(attack, start="uniform_eps", clamp_start=True)
    lm_pgd = paper_attacks(subject.eps, attack.num_steps)["lm_pgd"]
    assert isinstance(lm_pgd, LMPGD)
    return {
        "starts": [follow(subject, scattered, seed) for seed in SEEDS],
        "step sizes": [follow(subject, replace(attack, step_size=share * subject.eps)) for share in STEP_SHARES],
        "LM-PGD": [follow(subject, one) for one in (attack, lm_pgd, replace(lm_pgd, lookahead=True))],
    }


def _mean_one(weight: Array) -> Array:
    return np.asarray(weight / weight.mean())


def measures(found: list[Followed], pm_nat: Array, num_steps: int) -> dict[str, Array]:
    """What each path says of each example, shaped (examples, paths): measures, and the weights made of them."""
    lps = np.stack([path.lps for path in found], axis=1)
    pm = np.stack([path.pm for path in found], axis=1)
    tanh, sigmoid = GairatTanh(lam=-1.0, num_steps=num_steps), Sigmoid(slope=10.0, bias=-0.5)
    columns = range(lps.shape[1])
    return {
        "LPS": lps,
        "PM-adv": pm,
        "PM-nat": np.repeat(pm_nat[:, None], len(found), axis=1),
        "weight by LPS": np.stack([_mean_one(tanh(torch.from_numpy(lps[:, c])).numpy()) for c in columns], axis=1),
        "weight by PM-adv": np.stack([_mean_one(sigmoid(torch.from_numpy(pm[:, c])).numpy()) for c in columns], axis=1),
    }


def spread(values: Array, scale: float) -> dict[str, Any]:
    """How far repeated measurements of the same examples, shaped (examples, paths), differ.

    `scale` is the length of the measure's range, so that spreads of different measures can be put side by side.

    >>> found = spread(np.array([[0.0, 2.0], [4.0, 6.0], [8.0, 8.0]]), scale=10.0)
    >>> found["mean_std"], found["mean_range"], found["share_changed"], found["rank_agreement"]
    (0.094281, 0.133333, 0.666667, 1.0)
    """
    pairs = [rank_correlation(values[:, a], values[:, b]) for a, b in combinations(range(values.shape[1]), 2)]
    known = [value for value in pairs if value is not None]
    agreement = intraclass_correlation(values)
    return {
        "paths": values.shape[1],
        "mean_std": float(values.std(axis=1, ddof=1).mean()) / scale,
        "mean_range": float(np.ptp(values, axis=1).mean()) / scale,
        "share_changed": float((np.ptp(values, axis=1) > 0).mean()),
        "path_share": None if agreement is None else 1.0 - agreement,
        "rank_agreement": float(np.mean(known)) if known else None,
        "least_rank_agreement": min(known, default=None),
        "distinct": len(np.unique(values)),
    }


def _scales(num_steps: int, values: dict[str, Array]) -> dict[str, float]:
    """Length of each measure's range; a weight has none, so its mean of one is the unit.

    >>> _scales(10, dict.fromkeys(("LPS", "PM-adv", "PM-nat", "weight by LPS"), np.zeros((1, 2))))
    {'LPS': 10.0, 'PM-adv': 2.0, 'PM-nat': 2.0, 'weight by LPS': 1.0}
    """
    known = {"LPS": float(num_steps), "PM-adv": 2.0, "PM-nat": 2.0}
    return {name: known.get(name, 1.0) for name in values}


def path_dependence(subject: Subject, pm_nat: Array) -> dict[str, Any]:
    """Spread of each measure in each group of paths, and over all of them."""
    found = paths(subject)
    num_steps = int(getattr(subject.attack, "num_steps", 0))
    groups = {**found, "all": [path for group in found.values() for path in group]}
    table = {}
    for name, group in groups.items():
        values = measures(group, pm_nat, num_steps)
        scales = _scales(num_steps, values)
        table[name] = {measure: spread(value, scales[measure]) for measure, value in values.items()}
    return table


def class_scale(margin: Array, labels: Array, classes: tuple[str, ...]) -> dict[str, Any]:
    """Mean size of a margin in each class, and how unequal classes are: largest over smallest, and std over mean.

    >>> found = class_scale(np.array([1.0, -1.0, 3.0, 3.0]), np.array([0, 0, 1, 1]), ("a", "b"))
    >>> [row["mean_size"] for row in found["rows"]], found["largest_over_smallest"], found["variation"]
    ([1.0, 3.0], 3.0, 0.5)
    """
    size = np.abs(margin)
    rows = [
        {
            "class": name,
            "mean": float(margin[labels == label].mean()),
            "std": float(margin[labels == label].std()),
            "mean_size": float(size[labels == label].mean()),
        }
        for label, name in enumerate(classes)
        if (labels == label).any()
    ]
    means = np.array([row["mean_size"] for row in rows])
    return {
        "rows": rows,
        "largest_over_smallest": float(means.max() / means.min()),
        "variation": float(means.std() / means.mean()),
    }


def areas_by_epoch(bench: Bench) -> list[dict[str, Any]]:
    """Shares of safe, boundary and wrong training images over the epochs of each run."""
    curves = []
    for row in ROWS:
        run = bench.run(row)
        path = run.dynamics_path
        if not path.exists():
            raise UsageError(f"{run.path} has no dynamics.npz: train with --dynamics, or give another --out")
        history = read_history(path)
        shares = [areas(margin) for margin in history.margin]
        values = {name: [share[name] for share in shares] for name in ("safe", "boundary", "wrong")}
        curves.append({"row": row, "epochs": (history.epochs + 1).tolist(), **values})
    return curves


def _summary(table: dict[str, Any], scales: dict[str, Any]) -> list[str]:
    sentences = []
    for group in table:
        lps, pm = table[group]["LPS"], table[group]["PM-adv"]
        sentences.append(
            f"Over {lps['paths']} paths ({group}): the path makes {lps['path_share']:.1%} of the variance of LPS and "
            f"{pm['path_share']:.1%} of that of PM-adv; orders agree by {lps['rank_agreement']:.3f} and "
            f"{pm['rank_agreement']:.3f}. PM-nat does not look at the path."
        )
    mm, pm = scales["nat"]["MM"], scales["nat"]["PM"]
    sentences.append(
        f"Between classes the mean size of MM varies by a factor of {mm['largest_over_smallest']:.2f} and that of PM "
        f"by {pm['largest_over_smallest']:.2f} (clean images)."
    )
    return sentences


def measure(bench: Bench) -> dict[str, Any]:
    """Path dependence of LPS and PM, their scale per class, and the three areas over the epochs."""
    curves = areas_by_epoch(bench)
    subject = subject_of(bench, "at", EXAMPLES[bench.scale])
    logits_nat = subject.logits(subject.x)
    attacked = follow(subject, subject.attack)
    labels = subject.labels.cpu().numpy()
    margins = {
        "nat": {
            "MM": logit_margin(logits_nat, subject.labels).cpu().numpy(),
            "PM": probabilistic_margin(logits_nat, subject.labels).cpu().numpy(),
        },
        "adv": {"MM": attacked.mm, "PM": attacked.pm},
    }
    classes = tuple(subject.classes)
    scales = {
        kind: {name: class_scale(margin, labels, classes) for name, margin in both.items()}
        for kind, both in margins.items()
    }
    table = path_dependence(subject, margins["nat"]["PM"])
    return {
        "eps": subject.eps,
        "examples": len(labels),
        "num_steps": int(getattr(subject.attack, "num_steps", 0)),
        "step_shares": list(STEP_SHARES),
        "path_dependence": table,
        "class_scale": scales,
        "areas": curves,
        "burn_in_epochs": bench.run("at").recipe.burn_in_epochs,
        "summary": _summary(table, scales),
    }


RELIABILITY = Study(
    name="reliability", title="How far LPS and PM depend on the attack's path", rows=ROWS, measure=measure
)
