"""A run's folder as plain data, read without torch; a part that is not there is None or empty."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probmargin.core.errors import UsageError
from probmargin.core.records import parse_number
from probmargin.core.shell import typed
from probmargin.engine.files import read_json_lines, read_json_object
from probmargin.engine.shapes import misfit_audit, misfit_epoch, misfit_evaluation, misfit_recipe, misfit_record

Plain = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Folder:
    """What a run has written so far."""

    path: Path
    record: Plain
    recipe: Plain
    metrics: list[Plain]
    evaluation: Plain | None = None
    audit: Plain | None = None
    damaged: tuple[str, ...] = field(default=())
    """Files that are there and cannot be read."""
    outdated: tuple[str, ...] = field(default=())
    """Files of results that are of an earlier state than the run's last."""
    is_run: bool = True
    """False for a file of results alone, of a model that was not trained here: `path` is the file."""

    @property
    def name(self) -> str:
        """The folder's, or the file's: who renames a run looks for it by its new name."""
        return self.path.resolve().name if self.is_run else self.path.stem

    @property
    def epochs(self) -> int:
        """How many the recipe asks for."""
        return int(self.recipe.get("epochs", 0))

    @property
    def trained(self) -> int:
        """How many are behind it."""
        return int(self.metrics[-1]["epoch"]) + 1 if self.metrics else 0

    @property
    def is_finished(self) -> bool:
        """Is all of it trained? Only a run that ended by itself knows its time; patience may end it early."""
        return "train_seconds" in self.record or 0 < self.epochs <= self.trained

    @property
    def final_attack(self) -> Plain:
        """The settings of the attack that the run ends with; empty where it has none."""
        return final_attack(self.recipe)

    @property
    def metrics_path(self) -> Path:
        """A line an epoch."""
        return self.path / "metrics.jsonl"

    @property
    def method(self) -> str:
        """The method's name, with components that are not its own; records of earlier versions have the name alone."""
        return str(self.record.get("method") or self.recipe.get("method"))

    @property
    def dynamics_path(self) -> Path:
        """What each example did in each epoch, where the run was asked to keep it."""
        return self.path / "dynamics.npz"


def final_attack(recipe: Plain) -> Plain:
    """The settings of the attack that a recipe ends with, as far as they are written down: phases may change it.

    >>> phases = [{"from_epoch": 2, "set": {"attack.eps": "64/255"}}, {"from_epoch": 9, "set": {"attack.eps": 0.75}}]
    >>> final_attack({"epochs": 9, "attack": {"name": "pgd", "eps": 0.125}, "phases": phases})
    {'name': 'pgd', 'eps': 0.25098}
    >>> final_attack({"epochs": 9, "attack": {"eps": 0.125}, "phases": [{"from_epoch": 1, "set": {"attack": "none"}}]})
    {}
    """
    attack = dict(recipe.get("attack") or {})
    for phase in sorted(recipe.get("phases") or (), key=lambda phase: phase["from_epoch"]):
        if phase["from_epoch"] >= recipe.get("epochs", 0):
            continue
        for path, value in phase["set"].items():
            head, _, rest = path.partition(".")
            if head != "attack":
                continue
            if rest:
                attack[rest] = value
            elif isinstance(value, Mapping):
                attack = dict(value)
            else:
                attack = {} if value in (None, "none", "null") else {**attack, "name": value}
    if "eps" in attack:
        attack["eps"] = parse_number(str(attack["eps"]))
    return attack


def read_folder(path: Path | str) -> Folder:
    """Read what there is of a run; only a folder that holds no run at all is refused."""
    place = Path(path)
    if not place.exists():
        raise UsageError(f"there is no run at {path}; train one with --out {typed(path)}, or check the name")
    damaged: list[str] = []
    if not (place / "record.json").exists():
        raise UsageError(f"{path} is not a run's folder, it has no record.json; name another")
    record = read_json_object(place / "record.json", misfit_record)
    evaluation = _read(place / "evaluation.json", damaged, misfit_evaluation) or record.get("evaluation")
    results = {"evaluation.json": evaluation, "audit.json": _read(place / "audit.json", damaged, misfit_audit)}
    outdated = tuple(name for name, found in results.items() if found and _is_of_an_earlier_state(found, record))
    return Folder(
        path=place,
        record=record,
        recipe=_read(place / "recipe.json", damaged, misfit_recipe) or record["recipe"],
        metrics=_metrics(place / "metrics.jsonl", damaged),
        evaluation=None if "evaluation.json" in outdated else evaluation,
        audit=None if "audit.json" in outdated else results["audit.json"],
        damaged=tuple(damaged),
        outdated=outdated,
    )


def _is_of_an_earlier_state(found: Plain, record: Plain) -> bool:
    """Was this judged before training ended? A run that has not ended does not know its last weights."""
    return found.get("weights") is not None and record.get("weights") not in (None, found["weights"])


def _read(path: Path, damaged: list[str], shape: Callable[[Any], str]) -> Plain | None:
    if not path.exists():
        return None
    try:
        return read_json_object(path, shape)
    except (OSError, UsageError):
        damaged.append(path.name)
        return None


def _metrics(path: Path, damaged: list[str]) -> list[Plain]:
    try:
        return read_json_lines(path, misfit_epoch)
    except (OSError, UsageError):
        damaged.append(path.name)
        return []


def series(metrics: list[Plain], name: str, part: str | None = None) -> tuple[list[int], list[float]]:
    """Epochs (from 1) and values of a quantity, of a group's part where one is named; what is missing is left out.

    >>> series([{"epoch": 0, "loss": 2.0}, {"epoch": 1, "loss": None}], "loss")
    ([1], [2.0])
    """
    epochs, values = [], []
    for row in metrics:
        value = row.get(name) if part is None else (row.get(name) or {}).get(part)
        if isinstance(value, int | float) and math.isfinite(value):
            epochs.append(int(row["epoch"]) + 1)
            values.append(float(value))
    return epochs, values


def parts(metrics: list[Plain], name: str) -> list[str]:
    """The parts of a group that any epoch has, in the order they first come.

    >>> parts([{"epoch": 0}, {"epoch": 1, "monitors": {"cw": 0.5}}], "monitors")
    ['cw']
    """
    return list(dict.fromkeys(key for row in metrics for key in (row.get(name) or {})))
