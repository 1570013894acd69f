"""What an evaluation knows of each example; shards are joined by joining these."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from probmargin.core.arrays import UNREADABLE, read_arrays
from probmargin.core.errors import UsageError
from probmargin.core.words import counted
from probmargin.engine.files import written_aside

Array: TypeAlias = npt.NDArray[Any]

SCORES = ("margin", "pm", "predicted")


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write named arrays as a compressed npz, whole or not at all."""
    # numpy's stub takes the names for its own options.
    save: Any = np.savez_compressed
    with written_aside(path) as aside, aside.open("wb") as file:
        save(file, **arrays)


@dataclass(frozen=True)
class EntryVerdicts:
    """What one named attack left of the examples it looked at."""

    ids: Array
    after: dict[str, Array]
    """Which of them stand after each stage; the last stage is the verdict. Clean images have the one stage `nat`."""
    seconds: dict[str, float]
    facts: dict[str, Any] = field(default_factory=dict)
    """What the attack means, whether it may be called standard, warnings."""

    @property
    def correct(self) -> Array:
        """The verdict of each example."""
        return list(self.after.values())[-1]


@dataclass(frozen=True)
class Verdicts:
    """Everything that is known of the examples, in the order of their places in the test set."""

    ids: Array
    labels: Array
    num_classes: int
    clean: dict[str, Array]
    """`margin`, `pm` and `predicted` of the clean images."""
    worst: dict[str, Array]
    """The same for the image of least logit margin that any attack returned, and its norm as `size`."""
    broken_by: tuple[str, ...]
    """The first attack that broke an example; "clean" where it was wrong as it stood, "" where it holds."""
    entries: dict[str, EntryVerdicts]
    facts: dict[str, Any]
    """Protocol, norm, eps, seed and what identifies model and data."""
    index: Array | None = None
    """Their places in the data's own file or list of files, which may lie in another order; None where nobody knows."""

    def places(self) -> dict[str, Array]:
        """The index as arrays are named in files; nothing where it is not known."""
        return {} if self.index is None else {"index": self.index}

    def save(self, path: Path) -> None:
        """Write one file, whole or not at all."""
        arrays: dict[str, Array] = {"ids": self.ids, **self.places(), "labels": self.labels}
        arrays |= {f"clean/{name}": values for name, values in self.clean.items()}
        arrays |= {f"worst/{name}": values for name, values in self.worst.items()}
        header: dict[str, Any] = {"num_classes": self.num_classes, "broken_by": self.broken_by, "facts": self.facts}
        header["entries"] = {}
        for name, entry in self.entries.items():
            arrays[f"{name}/ids"] = entry.ids
            arrays |= {f"{name}/after/{stage}": flags for stage, flags in entry.after.items()}
            header["entries"][name] = {"seconds": entry.seconds, "facts": entry.facts, "stages": list(entry.after)}
        arrays["header"] = np.array(json.dumps(header))
        write_arrays(path, arrays)

    @classmethod
    def load(cls, path: Path) -> "Verdicts":
        """Read what `save` wrote."""
        try:
            arrays = read_arrays(path)
        except UNREADABLE as error:
            raise UsageError(f"{path} cannot be read ({error}); delete it and evaluate that shard again") from None
        header = json.loads(str(arrays["header"]))
        entries = {
            name: EntryVerdicts(
                arrays[f"{name}/ids"],
                {stage: arrays[f"{name}/after/{stage}"] for stage in plain["stages"]},
                plain["seconds"],
                plain["facts"],
            )
            for name, plain in header["entries"].items()
        }
        return cls(
            ids=arrays["ids"],
            labels=arrays["labels"],
            num_classes=header["num_classes"],
            clean={name: arrays[f"clean/{name}"] for name in SCORES},
            worst={name: arrays[f"worst/{name}"] for name in (*SCORES, "size")},
            broken_by=tuple(header["broken_by"]),
            entries=entries,
            facts=header["facts"],
            index=arrays.get("index"),
        )


def join(parts: Sequence[Verdicts]) -> Verdicts:
    """Put shards together in the order of the test set; seconds add up."""
    first = parts[0]
    order = np.argsort(np.concatenate([part.ids for part in parts]), kind="stable")

    def together(pieces: Sequence[Array]) -> Array:
        joined: Array = np.concatenate(pieces)[order]
        return joined

    names = [name for part in parts for name in part.broken_by]
    places = [part.index for part in parts if part.index is not None]
    return replace(
        first,
        ids=together([part.ids for part in parts]),
        labels=together([part.labels for part in parts]),
        clean={name: together([part.clean[name] for part in parts]) for name in first.clean},
        worst={name: together([part.worst[name] for part in parts]) for name in first.worst},
        broken_by=tuple(names[place] for place in order),
        entries={name: _join_entries(name, _placed(parts, name)) for name in first.entries},
        index=together(places) if len(places) == len(parts) else None,
    )


def _placed(parts: Sequence[Verdicts], name: str) -> list[EntryVerdicts]:
    """An attack's entries, each with its hardware where one of them was not made on its shard's own."""
    entries = [part.entries[name] for part in parts]
    if not any("hardware" in entry.facts for entry in entries):
        return entries
    own = ({"hardware": part.facts.get("hardware", "")} for part in parts)
    return [replace(entry, facts={**hardware, **entry.facts}) for entry, hardware in zip(entries, own, strict=True)]


def _join_entries(name: str, parts: Sequence[EntryVerdicts]) -> EntryVerdicts:
    ids = np.concatenate([part.ids for part in parts])
    order = np.argsort(ids, kind="stable")
    after = {stage: np.concatenate([part.after[stage] for part in parts])[order] for stage in parts[0].after}
    seconds = {stage: sum(part.seconds[stage] for part in parts) for stage in parts[0].seconds}
    warnings = [line for part in parts for line in part.facts.get("warnings", [])]
    facts = dict(parts[0].facts)
    if any("warnings" in part.facts for part in parts):
        facts["warnings"] = list(dict.fromkeys(warnings))
    for key in ("hardware", "search_precision"):
        if key in facts:
            facts[key] = ", ".join(dict.fromkeys(part.facts[key] for part in parts))
    if "thin_breaks" in facts:
        facts["thin_breaks"] = sum(part.facts["thin_breaks"] for part in parts)
    if outside := sum(part.facts.get("outside", 0) for part in parts):
        facts |= {"outside": outside, "warnings": [outside_line(name, outside)]}
    looks = [part.facts["recheck"] for part in parts if "recheck" in part.facts]
    if looks:
        facts["recheck"] = looks[0] | {
            key: sum(look[key] for look in looks) for key in ("examples", "broken", "seconds")
        }
    return EntryVerdicts(ids[order], after, seconds, facts)


def outside_line(name: str, count: int) -> str:
    """What is said of an attack of the user's own that left the threat model."""
    return f"{name} left the ball or [0, 1] on {counted(count, 'image')}, which count unattacked"


def seen_by_all(verdicts: Verdicts) -> Array:
    """Which examples every attack looked at."""
    seen: Array = np.ones(len(verdicts.ids), dtype=bool)
    for entry in verdicts.entries.values():
        seen &= np.isin(verdicts.ids, entry.ids)
    return seen


def worst_case(verdicts: Verdicts) -> Array:
    """Which of those examples are right as they stand and under every attack: never an average over attacks."""
    seen = seen_by_all(verdicts)
    ids = verdicts.ids[seen]
    right: Array = (verdicts.clean["predicted"] == verdicts.labels)[seen]
    for entry in verdicts.entries.values():
        right &= entry.correct[np.isin(entry.ids, ids)]
    return right


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What two sets of facts disagree on, in words.

    >>> differences({"eps": 0.1, "seed": 0}, {"eps": 0.2, "seed": 0})
    ['eps is 0.1 and 0.2']
    """
    keys = dict.fromkeys([*ours, *theirs])
    return [f"{key} is {ours.get(key)} and {theirs.get(key)}" for key in keys if ours.get(key) != theirs.get(key)]
