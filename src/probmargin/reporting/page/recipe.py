"""How runs were made: settings side by side, and where they come from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probmargin.reporting.page.data import RunReport
from probmargin.reporting.page.words import duration, short


@dataclass(frozen=True)
class SettingRow:
    """One setting in all runs."""

    name: str
    values: list[str]

    @property
    def differs(self) -> bool:
        """Do the runs disagree?"""
        return len(set(self.values)) > 1


def flattened(plain: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Settings by path.

    >>> dict(flattened({"lr": 0.1, "attack": {"eps": 0.15}, "awp": None}))
    {'lr': '0.1', 'attack.eps': '0.15', 'awp': 'none'}
    """
    for key, value in plain.items():
        inner = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping):
            yield from flattened(value, inner)
        else:
            yield inner, short(value)


def recipe_rows(reports: Sequence[RunReport]) -> list[SettingRow]:
    """Every setting of every recipe."""
    return _side_by_side([dict(flattened(report.folder.recipe)) for report in reports])


def fact_rows(reports: Sequence[RunReport]) -> list[SettingRow]:
    """Seed, data, model, hardware, versions, times."""
    return _side_by_side([_facts(report) for report in reports])


def _side_by_side(columns: Sequence[Mapping[str, str]]) -> list[SettingRow]:
    names = dict.fromkeys(name for column in columns for name in column)
    return [SettingRow(name, [column.get(name, "-") for column in columns]) for name in names]


def _facts(report: RunReport) -> dict[str, str]:
    folder, record = report.folder, report.folder.record
    facts: dict[str, Any] = {"folder": str(folder.path), "id": folder.name}
    names = "data data_fingerprint model seed recipe_hash label_noise validation hardware precision processes commit"
    facts |= {name.replace("_", " "): record[name] for name in names.split() if record.get(name) is not None}
    if "train_seconds" in record:
        facts["training time"] = duration(float(record["train_seconds"]))
    if "images_per_second" in record:
        facts["images a second"] = f"{record['images_per_second']:,.0f}"
    facts |= {f"version of {name}": version for name, version in (record.get("versions") or {}).items()}
    return {name: short(value) for name, value in facts.items()}
