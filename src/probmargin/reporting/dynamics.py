"""What the examples of a run did, epoch by epoch, in a few numbers: arrays of dynamics.npz in, plain data out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from probmargin.core.arrays import read_arrays
from probmargin.core.stats import effective_sample_size, gini, rank_correlation, ranks

Array = npt.NDArray[Any]

ROWS = ("margin", "weight", "correct", "lps", "recipe_margin")
"""What dynamics.npz holds of each example in each epoch."""
SOME_EPOCHS = ("lps", "recipe_margin")
"""Rows that an epoch may lack, where they are NaN, and a file that lacks them in all."""
MARGIN_NAMES = "recipe_margin_name"
"""The array with the name of the recipe's own margin in each epoch."""
SAFE_ABOVE = 0.2
"""A margin above it (0.6 against 0.4) is safe, one of 0 or less wrong; what lies between is near the boundary."""
SUSPECT_MARGIN = -0.25
"""Chosen on digits with a fifth of the labels wrong: nine in ten below it are wrong, and nine in ten of those fall."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_BINS = 40


@dataclass(frozen=True, eq=False)
class History:
    """The arrays of dynamics.npz: one row an epoch, one column an example."""

    index: Array
    """Each example's place in the data set's own order."""
    epochs: Array
    margin: Array
    """Probabilistic margin of the loss pass."""
    weight: Array
    correct: Array
    lps: Array | None = None
    """Attack steps survived; NaN where they were not counted, None where they never were."""
    recipe_margin: Array | None = None
    """What the recipe weighs by where that is another measure; NaN in epochs without weights."""
    margin_names: tuple[str, ...] = ()
    """What that measure is called, epoch by epoch."""

    def since(self, epoch: int) -> "History":
        """The epochs from one on; all of them where that leaves none."""
        rows = self.epochs >= epoch
        rows = rows if rows.any() else np.ones_like(rows)
        names = tuple(name for name, is_taken in zip(self.margin_names, rows, strict=False) if is_taken)
        return replace(self._each(lambda part: part[rows], epochs=self.epochs[rows]), margin_names=names)

    def take(self, places: Array) -> "History":
        """Some of the examples."""
        return self._each(lambda part: part[:, places], index=self.index[places])

    def _each(self, pick: Callable[[Array], Array], **changes: Any) -> "History":
        picked: dict[str, Any] = {name: pick(part) for name, part in self.parts.items()}
        return replace(self, **picked, **changes)

    @property
    def parts(self) -> dict[str, Array]:
        """What is known of each example in each epoch."""
        found = {name: getattr(self, name) for name in ROWS}
        return {name: part for name, part in found.items() if part is not None}


def read_history(path: Path) -> History:
    """Read a dynamics.npz; one of `UNREADABLE` where it is damaged."""
    file = read_arrays(path)
    parts: dict[str, Any] = {name: file.get(name) if name in SOME_EPOCHS else file[name] for name in ROWS}
    names = tuple(file[MARGIN_NAMES].tolist()) if MARGIN_NAMES in file else ()
    history = History(index=file["index"], epochs=file["epochs"], margin_names=names, **parts)
    if {part.shape for part in history.parts.values()} != {(len(history.epochs), len(history.index))}:
        raise ValueError("its arrays do not fit each other")
    return history


@dataclass(frozen=True, eq=False)
class Labels:
    """What is known of the examples beside their history, in the same order."""

    labels: Array
    """As trained on."""
    classes: Sequence[str] = ()
    is_wrong: Array | None = None
    """Which labels were made wrong on purpose; None where that is not known."""
    files: Sequence[str] = ()
    """Where examples are files, the name at each index of the data set."""

    def take(self, places: Array) -> "Labels":
        """Of some of the examples."""
        is_wrong = None if self.is_wrong is None else self.is_wrong[places]
        return Labels(self.labels[places], self.classes, is_wrong, self.files)

    def name(self, label: int) -> str:
        """A class in words."""
        return self.classes[label] if label < len(self.classes) else str(label)


def summarise(history: History, known: Labels | None = None, *, burn_in: int = 0, top: int = 10) -> dict[str, Any]:
    """All of it: `epochs`, `weight`, `classes`, `lps`, `suspects` and `noise`; what cannot be told is None.

    Averages are over the epochs after burn-in, where weights differ; over all where training did not get there.
    """
    late = history.since(burn_in)
    return {
        "examples": len(history.index),
        "averaged_epochs": [int(late.epochs[0]), int(late.epochs[-1])],
        "past_burn_in": bool(late.epochs[0] >= burn_in),
        "epochs": by_epoch(history),
        "weight": weight_summary(late, known, top),
        "classes": None if known is None else class_summary(late, known),
        "lps": lps_summary(late, known, top),
        "recipe_margin": recipe_margin_summary(late, known, top),
        "suspects": suspects(history, known, top, late),
        "noise": noise_summary(late, known),
    }


def areas(margin: Array) -> dict[str, float]:
    """Shares of safe, boundary and wrong examples.

    >>> areas(np.array([0.9, 0.21, 0.2, 0.0, -0.4]))
    {'safe': 0.4, 'boundary': 0.2, 'wrong': 0.4}
    """
    safe, wrong = float((margin > SAFE_ABOVE).mean()), float((margin <= 0).mean())
    boundary = float(((margin > 0) & (margin <= SAFE_ABOVE)).mean())
    return {"safe": safe, "boundary": boundary, "wrong": wrong}


def by_epoch(history: History) -> dict[str, Any]:
    """Each epoch's effective sample size, areas, and how margins and weights are spread."""
    edges = np.linspace(-1.0, 1.0, _BINS + 1)
    shares = [areas(row) for row in history.margin]
    return {
        "epoch": [int(epoch) for epoch in history.epochs],
        "effective_sample_size": [effective_sample_size(row) for row in history.weight],
        **{name: [share[name] for share in shares] for name in ("safe", "boundary", "wrong")},
        "quantiles": list(QUANTILES),
        "margin_quantiles": np.quantile(history.margin, QUANTILES, axis=1).T.tolist(),
        "weight_quantiles": np.quantile(history.weight, QUANTILES, axis=1).T.tolist(),
        "margin_edges": edges.tolist(),
        "margin_counts": [np.histogram(np.clip(row, -1, 1), edges)[0].tolist() for row in history.margin],
    }


def example(history: History, known: Labels | None, place: int) -> dict[str, Any]:
    """One example in a list."""
    label = None if known is None else int(known.labels[place])
    entry = {
        "index": int(history.index[place]),
        "label": label,
        "class": None if known is None or label is None else known.name(label),
        "weight": float(history.weight[:, place].mean()),
        "margin": float(history.margin[:, place].mean()),
        "correct": float(history.correct[:, place].mean()),
    }
    if known is not None and known.is_wrong is not None:
        entry["is_wrong"] = bool(known.is_wrong[place])
    if known is not None and known.files:
        entry["file"] = known.files[int(history.index[place])]
    return entry


def _share(weight: Array, chosen: Array) -> float:
    """Their part of all the weight; 0 where there is none."""
    total = float(weight.sum())
    return float(weight[chosen].sum()) / total if total > 0 else 0.0


def weight_summary(history: History, known: Labels | None, top: int) -> dict[str, Any]:
    """Which examples carry the weight: the heaviest and the lightest, and how much lies on how few."""
    weight = history.weight.mean(axis=0)
    falling = np.argsort(-weight, kind="stable")
    rising = np.argsort(weight, kind="stable")
    heaviest = {share: falling[: max(1, round(share * len(weight)))] for share in (0.01, 0.1)}
    return {
        "is_uniform": bool(np.ptp(history.weight) <= 1e-6),
        "effective_sample_size": float(np.mean([effective_sample_size(row) for row in history.weight])),
        "gini": gini(weight),
        **{f"top_{share:.0%}": _share(weight, places) for share, places in heaviest.items()},
        "largest": [example(history, known, place) for place in falling[:top].tolist()],
        "smallest": [example(history, known, place) for place in rising[:top].tolist()],
    }


def class_summary(history: History, known: Labels) -> dict[str, Any]:
    """Which classes gain and lose weight: each class's share of the weight against its share of the examples."""
    weight, margin = history.weight.mean(axis=0), history.margin.mean(axis=0)
    correct = history.correct.mean(axis=0)
    rows: list[dict[str, Any]] = []
    for label in sorted(set(known.labels.tolist())):
        own = known.labels == label
        share, uniform = _share(weight, own), float(own.mean())
        rows.append(
            {
                "label": int(label),
                "class": known.name(int(label)),
                "examples": int(own.sum()),
                "weight_share": share,
                "uniform_share": uniform,
                "ratio": share / uniform,
                "margin": float(margin[own].mean()),
                "correct": float(correct[own].mean()),
            }
        )
    return {
        "rows": sorted(rows, key=lambda row: -row["ratio"]),
        "gini": gini([row["ratio"] for row in rows]),
        "largest_ratio": max(row["ratio"] for row in rows),
        "smallest_ratio": min(row["ratio"] for row in rows),
    }


def lps_summary(history: History, known: Labels | None, top: int) -> dict[str, Any] | None:
    """How attack steps survived and margins disagree: over the epochs that counted both of all; None if none did."""
    both = _means(history, history.lps)
    return None if both is None else disagreement(history, known, "lps", *both, top)


def recipe_margin_summary(history: History, known: Labels | None, top: int) -> dict[str, Any] | None:
    """How the recipe's own margin lies and orders the examples; None where it weighs by the probabilistic one."""
    name, values = last_margin(history)
    both = _means(history, values)
    if both is None:
        return None
    quantiles = np.quantile(both[0], QUANTILES).tolist()
    return disagreement(history, known, "recipe_margin", *both, top) | {"name": name, "quantiles": quantiles}


def last_margin(history: History) -> tuple[str, Array | None]:
    """The margin that the recipe ends with, by its name, and its values; NaN where it weighed by another before."""
    if history.recipe_margin is None or not history.margin_names:
        return "", history.recipe_margin
    name = history.margin_names[-1]
    is_last = np.array([one == name for one in history.margin_names])
    return name, np.where(is_last[:, None], history.recipe_margin, np.nan)


def _means(history: History, values: Array | None) -> tuple[Array, Array] | None:
    """Values and margins of each example, over the epochs in which the value of all is known."""
    known = whole_epochs(values)
    if values is None or not known.any():
        return None
    return values[known].mean(axis=0), history.margin[known].mean(axis=0)


def whole_epochs(values: Array | None) -> Array:
    """In which epochs the value of every example is known."""
    return np.zeros(0, bool) if values is None else np.asarray(~np.isnan(values).any(axis=1))


def disagreement(
    history: History, known: Labels | None, name: str, values: Array, margin: Array, top: int
) -> dict[str, Any]:
    """Two orders of the same examples: their correlation, and where they differ most, in ranks as a share of all."""
    gap = (ranks(values) - ranks(margin)) / len(values)
    order = np.argsort(-np.abs(gap), kind="stable")[:top]
    examples = []
    for place in order.tolist():
        entry = example(history, known, place)
        examples.append(entry | {name: float(values[place]), "margin": float(margin[place]), "gap": float(gap[place])})
    return {
        "rank_correlation": rank_correlation(values, margin),
        f"{name}_values": len(np.unique(values)),
        "margin_values": len(np.unique(margin)),
        "examples": examples,
    }


def suspects(history: History, known: Labels | None, top: int, shown: History | None = None) -> dict[str, Any]:
    """Examples that look mislabelled: wrong in every epoch after the first quarter, by 0.25 or more in the mean.

    Weights in the list are averages over `shown`, so that one example has one everywhere; margins are what it is
    found by.
    """
    late = history.since(int(np.ceil(np.quantile(history.epochs, 0.25))))
    margin = late.margin.mean(axis=0)
    found = (late.margin < 0).all(axis=0) & (margin <= SUSPECT_MARGIN)
    rising = np.argsort(margin, kind="stable")
    listed = [int(place) for place in rising if found[place]]
    summary: dict[str, Any] = {
        "criterion": f"wrong in every epoch from {int(late.epochs[0]) + 1} to {int(late.epochs[-1]) + 1}, "
        f"with a mean margin of {SUSPECT_MARGIN:g} or less",
        "count": len(listed),
        "share": len(listed) / len(margin),
        "examples": [example(shown or late, known, place) | {"margin": float(margin[place])} for place in listed[:top]],
        "judged": None,
    }
    if known is not None and known.is_wrong is not None and known.is_wrong.any():
        summary["judged"] = judged(found, -margin, known.is_wrong)
    return summary


def judged(found: Array, score: Array, is_wrong: Array) -> dict[str, Any]:
    """A list of suspects against the labels that are known to be wrong, and the order it was taken from.

    >>> judged(np.array([True, True, False, False]), np.array([4, 3, 2, 1]), np.array([True, False, True, False]))
    {'wrong': 2, 'precision': 0.5, 'recall': 0.5, 'precision_at_wrong': 0.5, 'auc': 0.75}
    """
    is_wrong = is_wrong.astype(bool)
    wrong, hits = int(is_wrong.sum()), int((found & is_wrong).sum())
    first = np.argsort(-score, kind="stable")[:wrong]
    right = len(is_wrong) - wrong
    above = float(ranks(score)[is_wrong].sum()) - wrong * (wrong + 1) / 2
    return {
        "wrong": wrong,
        "precision": hits / int(found.sum()) if found.any() else None,
        "recall": hits / wrong,
        "precision_at_wrong": float(is_wrong[first].mean()),
        "auc": above / (wrong * right) if right else None,
    }


def noise_summary(history: History, known: Labels | None) -> dict[str, Any] | None:
    """How much of the weight lies on labels that are known to be wrong."""
    if known is None or known.is_wrong is None:
        return None
    wrong = known.is_wrong.astype(bool)
    weight = history.weight.mean(axis=0)
    share, uniform = _share(weight, wrong), float(wrong.mean())
    return {
        "examples": int(wrong.sum()),
        "share_of_examples": uniform,
        "share_of_weight": share,
        "ratio": share / uniform if uniform > 0 else None,
        "learnt": float(history.correct[:, wrong].mean()) if wrong.any() else None,
    }
