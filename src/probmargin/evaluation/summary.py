"""Verdicts into the plain data of evaluation.json."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probmargin.core.records import canonical_hash
from probmargin.core.stats import wilson_interval
from probmargin.core.words import radius
from probmargin.evaluation.verdicts import Array, EntryVerdicts, Verdicts, seen_by_all, worst_case

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def per_class_accuracy(correct: Array, labels: Array, num_classes: int) -> list[float | None]:
    """Accuracy of each class; None where the class has no example.

    >>> per_class_accuracy(np.array([True, False, True]), np.array([0, 0, 2]), 3)
    [0.5, None, 1.0]
    """
    owns = [correct[labels == label] for label in range(num_classes)]
    return [float(own.mean()) if len(own) else None for own in owns]


def accuracy_entry(correct: Array, labels: Array, num_classes: int, *, clean: bool) -> dict[str, Any]:
    """Accuracy with its interval, by class and by example; the verdicts are a string of 0 and 1."""
    successes, total = int(correct.sum()), len(correct)
    shares = per_class_accuracy(correct, labels, num_classes)
    name = "accuracy" if clean else "robust_accuracy"
    share, label = min((share, label) for label, share in enumerate(shares) if share is not None)
    return {
        name: successes / total,
        "interval": list(wilson_interval(successes, total)),
        "num_examples": total,
        "per_class": shares,
        "worst_class": {"class": label, name: share, "num_examples": int((labels == label).sum())},
        "correct": "".join("1" if right else "0" for right in correct.tolist()),
    }


def confusion(labels: Array, predicted: Array, num_classes: int) -> list[list[int]]:
    """How many images of each true class (row) are taken for each class (column).

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
    [[1, 1], [0, 1]]
    """
    table = np.zeros((num_classes, num_classes), dtype=np.int64)
    np.add.at(table, (labels, predicted), 1)
    counts: list[list[int]] = table.tolist()
    return counts


def summarize(verdicts: Verdicts) -> dict[str, Any]:
    """The results as plain data: facts, one entry an attack, the worst case, margins."""
    results: dict[str, Any] = {**verdicts.facts, "num_examples": len(verdicts.ids)}
    for name, entry in verdicts.entries.items():
        results[name] = _entry(verdicts, name, entry)
    attacked = [name for name in verdicts.entries if name != "nat"]
    if attacked:
        results["worst_case"] = _worst_case(verdicts, attacked)
    results["margins"] = _margins(verdicts)
    lines = [line for entry in verdicts.entries.values() for line in entry.facts.get("warnings", [])]
    results["warnings"] = list(dict.fromkeys(lines))
    return results


def _entry(verdicts: Verdicts, name: str, entry: EntryVerdicts) -> dict[str, Any]:
    labels = verdicts.labels[np.isin(verdicts.ids, entry.ids)]
    plain = accuracy_entry(entry.correct, labels, verdicts.num_classes, clean=name == "nat")
    if len(entry.ids) < len(verdicts.ids):
        plain["first"] = len(entry.ids)
    plain["seconds"] = round(sum(entry.seconds.values()), 3)
    if len(entry.after) > 1:
        plain["steps"] = {stage: float(flags.mean()) for stage, flags in entry.after.items()}
        plain["seconds_by_step"] = {stage: round(value, 3) for stage, value in entry.seconds.items()}
    return plain | entry.facts | {"protocol_hash": _protocol_hash(verdicts.facts, name, entry, plain.get("first"))}


def _protocol_hash(facts: Mapping[str, Any], name: str, entry: EntryVerdicts, first: int | None) -> str:
    """What identifies how this number was made, whatever the model: images, ball, seed and attack in all settings."""
    asked = {"attack": entry.facts.get("attack"), "images": len(entry.ids), "first": first}
    if name != "nat":
        asked |= {key: facts.get(key) for key in ("protocol", "norm", "eps", "seed", "search")}
    return canonical_hash(asked)


def _worst_case(verdicts: Verdicts, attacked: list[str]) -> dict[str, Any]:
    seen, right = seen_by_all(verdicts), worst_case(verdicts)
    labels = verdicts.labels[seen]
    return {
        **accuracy_entry(right, labels, verdicts.num_classes, clean=False),
        "attacks": attacked,
        "confusion": confusion(labels, verdicts.worst["predicted"][seen], verdicts.num_classes),
    }


def _margins(verdicts: Verdicts) -> dict[str, Any]:
    """Quantiles of the margins; those of each example are kept in a file of arrays.

    The worst case is that of the images which every attack saw: elsewhere it is the worst of fewer.
    """
    everywhere = np.ones(len(verdicts.ids), dtype=bool)
    groups = {"clean": (verdicts.clean, everywhere), "worst_case": (verdicts.worst, seen_by_all(verdicts))}
    plain: dict[str, Any] = {"quantiles": list(QUANTILES)}
    for group, (arrays, seen) in groups.items():
        for name, key in (("logit_margin", "margin"), ("probabilistic_margin", "pm")):
            values = np.quantile(arrays[key][seen].astype(np.float64), QUANTILES)
            plain.setdefault(group, {})[name] = [round(float(value), 5) for value in values]
    return plain


def closing_lines(results: dict[str, Any]) -> list[str]:
    """What is said at the end of an evaluation.

    >>> closing_lines({"norm": "Linf", "eps": 8 / 255, "num_examples": 10, "protocol": "custom"})
    ['at Linf eps 8/255, 10 images, protocol custom']
    >>> closing_lines({"norm": "L2", "eps": 0.5, "num_examples": 10, "test_images": 40, "protocol": "custom"})
    ['at L2 eps 0.5, 10 of 40 images, protocol custom']
    >>> part = {"norm": "L2", "eps": 0.5, "num_examples": 10, "test_images": 40, "protocol": "custom", "shard": "1/4"}
    >>> closing_lines(part)
    ['at L2 eps 0.5, 10 images, protocol custom, shard 1/4']
    """
    is_whole = "shard" not in results
    lines = []
    if worst := results.get("worst_case"):
        low, high = worst["interval"]
        share, count = worst["robust_accuracy"], worst["num_examples"]
        attacks = ", ".join(worst["attacks"])
        of = f"the first {count}" if is_whole and count < results["num_examples"] else count
        lines.append(f"worst case over {attacks}: {share:.2%} of {of} [{low:.2%}, {high:.2%}]")
    if entry := results.get("worst_case") or results.get("nat"):
        lines.append(_worst_class(entry, results.get("classes")))
    shard = "" if is_whole else f", shard {results['shard']}"
    seen, there = results["num_examples"], results.get("test_images", 0)
    part = f" of {there}" if is_whole and seen < there else ""
    where = f"at {results['norm']} eps {radius(results['eps'])}, {seen}{part} images"
    return [*lines, f"{where}, protocol {results['protocol']}{shard}"]


def _worst_class(entry: Mapping[str, Any], classes: Sequence[str] | None) -> str:
    """The class that does worst, which an average over uneven classes hides.

    >>> _worst_class({"worst_class": {"class": 1, "robust_accuracy": 0.25, "num_examples": 4}}, ["cat", "dog"])
    'worst class: dog, 25.00% of 4'
    """
    found = entry["worst_class"]
    share = found["accuracy" if "accuracy" in found else "robust_accuracy"]
    name = classes[found["class"]] if classes else found["class"]
    return f"worst class: {name}, {share:.2%} of {found['num_examples']}"
