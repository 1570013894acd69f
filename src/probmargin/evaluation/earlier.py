"""What was found before under the same conditions stays when other attacks are asked for."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from probmargin.core.errors import UsageError
from probmargin.core.records import canonical_hash
from probmargin.engine.files import read_json_object
from probmargin.evaluation.verdicts import Array, EntryVerdicts, Verdicts

CONDITIONS = ("protocol", "norm", "eps", "seed", "search", "weights", "data_fingerprint")
"""What results that stand side by side agree in, beside the images."""
_SUBJECT = ("weights", "data_fingerprint")
_MACHINE = ("hardware", "commit", "versions")


def known_path(folder: Path, verdicts: Verdicts) -> Path:
    """Where all that is known under these conditions, of these images, is kept."""
    plain = {key: verdicts.facts.get(key) for key in CONDITIONS} | {"ids": verdicts.ids.tolist()}
    return folder / f"known-{canonical_hash(plain)}.npz"


def with_earlier(verdicts: Verdicts, folder: Path | None) -> Verdicts:
    """These verdicts and those of other attacks that were carried out before under the same conditions."""
    path = None if folder is None else known_path(folder, verdicts)
    if path is None or not path.exists():
        return verdicts
    try:
        known = Verdicts.load(path)
    except (ValueError, KeyError):
        # Damaged: as good as none, and what is lost is said where the results are replaced.
        return verdicts
    others = {name: _marked(entry, known, verdicts) for name, entry in known.entries.items()}
    merged = {**others, **verdicts.entries}
    entries = {name: merged[name] for name in dict.fromkeys(["nat", *merged]) if name in merged}
    was_broken = np.array([bool(name) for name in known.broken_by])
    is_broken = np.array([bool(name) for name in verdicts.broken_by])
    lower = (verdicts.worst["margin"] < known.worst["margin"]) | (is_broken & ~was_broken)
    worst: dict[str, Array] = {key: np.where(lower, values, known.worst[key]) for key, values in verdicts.worst.items()}
    broken_by = tuple(before or now for before, now in zip(known.broken_by, verdicts.broken_by, strict=True))
    return replace(verdicts, entries=entries, worst=worst, broken_by=broken_by)


def _marked(entry: EntryVerdicts, known: Verdicts, now: Verdicts) -> EntryVerdicts:
    """An entry of before, with what it was made by where that has changed."""
    made = {key: known.facts.get(key) for key in _MACHINE if known.facts.get(key) != now.facts.get(key)}
    return replace(entry, facts={**made, **entry.facts})


def is_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Are two results of the same weights and images, under the same conditions?"""
    return all(one.get(key) == other.get(key) for key in (*CONDITIONS, "num_examples"))


def kept_apart(found: Iterable[Mapping[str, Any]], latest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Results under other conditions than the latest, by protocol; those of other weights or images are gone.

    >>> before = [{"protocol": "custom", "eps": 0.1}, {"protocol": "custom", "eps": 0.3}, {"eps": 1, "weights": "a"}]
    >>> kept = kept_apart(before, {"protocol": "custom", "eps": 0.2})
    >>> [entry["eps"] for entry in kept.values()], next(iter(kept))
    ([0.1, 0.3], 'custom')
    """
    kept: dict[str, dict[str, Any]] = {}
    for results in found:
        if is_alike(results, latest) or any(results.get(key) != latest.get(key) for key in _SUBJECT):
            continue
        name = str(results.get("protocol", "custom"))
        if name in kept:
            name += f"-{canonical_hash({key: results.get(key) for key in (*CONDITIONS, 'num_examples')})}"
        kept[name] = dict(results)
    return kept


def kept_line(asked: Mapping[str, Any], together: Mapping[str, Any]) -> str:
    """Which attacks stay from before; empty where none does."""
    kept = [name for name in together if name not in asked]
    return f"kept from before, under the same conditions: {', '.join(kept)}" if kept else ""


def replaced_line(path: Path, results: Mapping[str, Any]) -> str:
    """What a file of results held that it will not hold any more, and why; empty where nothing is lost."""
    try:
        before = read_json_object(path) if path.exists() else {}
    except UsageError:
        return ""
    names = [name for name, entry in before.items() if isinstance(entry, dict) and "attack" in entry]
    keys = (*CONDITIONS, "num_examples")
    apart = [key for key in keys if before.get(key) != results.get(key)]
    lost = names if apart else [name for name in names if name not in results]
    if not lost:
        return ""
    line = f"{path} held {', '.join(lost)}"
    if not apart:
        return f"{line}: left out now"
    found = ", ".join(f"{key} was {_short(before.get(key))} and is {_short(results.get(key))}" for key in apart)
    stays = "" if set(_SUBJECT) & set(apart) else "; judged so again, they come back"
    return f"{line} under other conditions ({found}): replaced{stays}"


def _short(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
