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

CONDITIONS = ("protocol", "norm", "eps", "seed", "search", "weights", "model_code", "data_fingerprint")
"""What results that stand side by side agree in, beside the images."""
_SUBJECT = ("weights", "model_code", "data_fingerprint")
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
    shorter = {name for name, entry in verdicts.entries.items() if name in others and _is_part(entry, others[name])}
    merged = {**others, **{name: entry for name, entry in verdicts.entries.items() if name not in shorter}}
    entries = {name: merged[name] for name in dict.fromkeys(["nat", *merged]) if name in merged}
    was_broken = np.array([bool(name) for name in known.broken_by])
    is_broken = np.array([bool(name) for name in verdicts.broken_by])
    lower = (verdicts.worst["margin"] < known.worst["margin"]) | (is_broken & ~was_broken)
    worst: dict[str, Array] = {key: np.where(lower, values, known.worst[key]) for key, values in verdicts.worst.items()}
    broken_by = tuple(before or now for before, now in zip(known.broken_by, verdicts.broken_by, strict=True))
    return replace(verdicts, entries=entries, worst=worst, broken_by=broken_by)


def _is_part(entry: EntryVerdicts, known: EntryVerdicts) -> bool:
    """Did the same attack look at these images, and at more, before?"""
    is_same = entry.facts.get("attack") == known.facts.get("attack")
    return is_same and len(entry.ids) < len(known.ids) and bool(np.isin(entry.ids, known.ids).all())


def _marked(entry: EntryVerdicts, known: Verdicts, now: Verdicts) -> EntryVerdicts:
    """An entry of before, with what it was made by where that has changed."""
    return replace(entry, facts={**_made_by(known.facts, now.facts), **entry.facts})


def _made_by(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What results of before were made by, as far as that is not what is stated beside them now."""
    return {key: before.get(key) for key in _MACHINE if before.get(key) != now.get(key)}


def joined_results(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two results that are alike as one: of each attack the longer look, and the first where they are as long.

    The facts are those of the one that has more of them, and what comes from the other tells what it was made by.
    A worst case or margins that do not speak of all attacks are left out.

    >>> joined_results({"note": "a", "aa": {"correct": "1"}}, {"aa": {"correct": "10"}, "cw": {"correct": "1"}})
    {'aa': {'correct': '10'}, 'cw': {'correct': '1'}}
    """
    ours, theirs = _looks(first), _looks(second)
    entries = {
        name: (first if name in ours and len(ours[name]) >= len(theirs.get(name, "")) else second)[name]
        for name in {**ours, **theirs}
    }
    missing = [[name for name, entry in entries.items() if not _has(one, name, entry)] for one in (first, second)]
    base, other = (first, second) if len(missing[0]) <= len(missing[1]) else (second, first)
    taken = min(missing, key=len)
    if not taken:
        return dict(base)
    joined = {name: value for name, value in base.items() if name not in ("worst_case", "margins")}
    joined |= {name: {**_made_by(other, base), **other[name]} for name in taken}
    warnings = [*base.get("warnings", []), *(line for name in taken for line in other[name].get("warnings", []))]
    return joined | ({"warnings": list(dict.fromkeys(warnings))} if warnings else {})


def _has(results: Mapping[str, Any], name: str, entry: Mapping[str, Any]) -> bool:
    """Do results have the same verdicts by the same attack?"""
    return name in results and all(results[name].get(key) == entry.get(key) for key in ("correct", "attack"))


def _looks(results: Mapping[str, Any]) -> dict[str, str]:
    """The verdicts of each attack, as text."""
    entries = {name: entry for name, entry in results.items() if isinstance(entry, Mapping) and name != "worst_case"}
    return {name: str(entry["correct"]) for name, entry in entries.items() if "correct" in entry}


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


def kept_lines(asked: Mapping[str, EntryVerdicts], together: Mapping[str, EntryVerdicts]) -> list[str]:
    """Which attacks stay from before, and which of those asked for stay since they looked at more images then."""
    kept = [name for name in together if name not in asked]
    lines = [f"kept from before, under the same conditions: {', '.join(kept)}"] if kept else []
    counts = {name: (len(together[name].ids), len(entry.ids)) for name, entry in asked.items()}
    return lines + [
        f"kept from before: {name} of {before:,} images, which is more than {now:,}; --fresh puts these in its place"
        for name, (before, now) in counts.items()
        if before > now
    ]


def replaced_line(path: Path, results: Mapping[str, Any]) -> str:
    """What a file of results held that it will not hold any more, and why; empty where nothing is lost."""
    try:
        before = read_json_object(path) if path.exists() else {}
    except UsageError:
        return ""
    names = [name for name, entry in before.items() if isinstance(entry, dict) and "attack" in entry]
    keys = (*CONDITIONS, "num_examples")
    apart = [key for key in keys if before.get(key) != results.get(key)]
    if not apart:
        return _smaller_line(path, before, results)
    if not names:
        return ""
    found = ", ".join(f"{key} was {_short(before.get(key))} and is {_short(results.get(key))}" for key in apart)
    stays = "" if set(_SUBJECT) & set(apart) else "; judged so again, they come back"
    return f"{path} held {', '.join(names)} under other conditions ({found}): replaced{stays}"


def _smaller_line(path: Path, before: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """What is left out of results under the same conditions, or of fewer images than it was."""
    looks, after = _looks(before), _looks(results)
    gone = ", ".join(name for name in looks if name not in after)
    lost = [f"{gone}: left out now"] if gone else []
    for name, look in looks.items():
        if len(after.get(name, look)) < len(look):
            lost.append(f"{name} of {len(look):,} images: {len(after[name]):,} now")
    return f"{path} held {'; '.join(lost)}" if lost else ""


def _short(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
