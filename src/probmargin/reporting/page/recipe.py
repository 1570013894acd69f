"""How runs were made: settings side by side, and where they come from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probmargin.core.words import counted, radius
from probmargin.reporting.folder import final_attack
from probmargin.reporting.page.data import RunReport
from probmargin.reporting.page.words import DASH, duration, joined, short


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


def in_words(plain: Mapping[str, Any]) -> str:
    """A recipe in a sentence; what it does not say is left out.

    >>> recipe = {"method": "at", "epochs": 4, "batch_size": 128, "lr": 0.1, "attack": {"name": "pgd", "num_steps": 10,
    ...           "norm": "Linf", "eps": 8 / 255}, "weight": {"name": "sigmoid"}, "margin": {"name": "pm_adv"}}
    >>> in_words(recipe)
    'Method at, 4 epochs, batches of 128, rate 0.1; pgd with 10 steps, Linf eps 8/255; weights by sigmoid of pm_adv.'
    >>> in_words(recipe | {"burn_in_epochs": 2}).rpartition("; ")[2]
    'weights by sigmoid of pm_adv, from epoch 3 on.'
    """
    attack, weight, margin, objective = (
        (plain.get(name) or {}) for name in ("attack", "weight", "margin", "objective")
    )
    length = counted(int(plain.get("epochs", 0)), "epoch")
    parts = [f"Method {plain.get('method')}, {length}, batches of {plain.get('batch_size')}"]
    by = "" if plain.get("optimizer", "sgd") == "sgd" else f"{plain['optimizer']} at "
    parts[0] += f", {by}rate {short(plain.get('lr'))}"
    drops = [str(epoch) for epoch in plain.get("lr_milestones") or () if epoch < int(plain.get("epochs", 0))]
    if drops:
        parts[0] += f" that drops after {'epoch' if len(drops) == 1 else 'epochs'} {joined(drops)}"
    if attack.get("eps") is not None:
        steps = f" with {counted(int(attack['num_steps']), 'step')}" if "num_steps" in attack else ""
        ended = final_attack(dict(plain))
        balls = [f"{one.get('norm')} eps {radius(float(one['eps']))}" for one in (attack, ended) if "eps" in one]
        then = f", {balls[-1]} at the end" if balls[-1] != balls[0] else ""
        parts.append(f"{attack.get('name')}{steps}, {balls[0]}{then}")
    if weight.get("name", "uniform") != "uniform":
        since = f", from epoch {plain['burn_in_epochs'] + 1} on" if plain.get("burn_in_epochs") else ""
        parts.append(f"weights by {weight['name']} of {margin.get('name')}{since}")
    if objective.get("name"):
        parts.append(f"objective {objective['name']}")
    return "; ".join(parts) + "."


def recipe_rows(reports: Sequence[RunReport]) -> list[SettingRow]:
    """Every setting of every recipe."""
    return _side_by_side([dict(flattened(report.folder.recipe)) for report in reports])


def fact_rows(reports: Sequence[RunReport]) -> list[SettingRow]:
    """Seed, data, model, hardware, versions, times."""
    return _side_by_side([_facts(report) for report in reports])


def _side_by_side(columns: Sequence[Mapping[str, str]]) -> list[SettingRow]:
    names = dict.fromkeys(name for column in columns for name in column)
    return [SettingRow(name, [column.get(name, DASH) for column in columns]) for name in names]


_FACTS = (
    "data data_fingerprint model weights seed recipe_hash label_noise validation hardware precision compile processes "
    "commit"
)
_OF_A_FILE = "data data_fingerprint model weights"
"""What results know of the model that they are of."""


def _facts(report: RunReport) -> dict[str, str]:
    folder, record = report.folder, report.folder.record
    if folder.is_run:
        facts = _trained({"folder": str(folder.path), "id": record.get("id") or folder.name}, record)
        versions = record.get("versions") or {}
    else:
        facts = _known({"file": str(folder.path)}, record, _OF_A_FILE)
        versions = (folder.evaluation or {}).get("versions") or {}
    facts |= _judged(folder.evaluation or {})
    facts |= {f"version of {name}": version for name, version in versions.items()}
    return {name: short(value) for name, value in facts.items()}


def _known(facts: dict[str, Any], record: Mapping[str, Any], names: str) -> dict[str, Any]:
    return facts | {name.replace("_", " "): record[name] for name in names.split() if record.get(name) is not None}


def _trained(facts: dict[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Where and how long a run was trained."""
    facts = _known(facts, record, _FACTS)
    if "train_seconds" in record:
        facts["training time"] = duration(float(record["train_seconds"]))
    if "train_seconds_after_fork" in record:
        facts["training time after the fork"] = duration(float(record["train_seconds_after_fork"]))
    if record.get("plugins"):
        facts["plugins"] = "; ".join(f"{plugin['file']} {plugin['sha256'][:16]}" for plugin in record["plugins"])
    if record.get("resumes"):
        facts["gone on from"] = "; ".join(_place(state) for state in record["resumes"])
    if "images_per_second" in record:
        facts["images a second"] = f"{record['images_per_second']:,.0f}"
    return facts


def _judged(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """How and where a run was judged."""
    if not {"norm", "eps", "protocol"} <= set(evaluation):
        return {}
    seen, there = evaluation.get("num_examples"), evaluation.get("test_images")
    ball = f"protocol {evaluation['protocol']}, {evaluation['norm']} eps {radius(float(evaluation['eps']))}"
    found = {"judged by": f"{ball}, seed {evaluation.get('seed')}"}
    found |= {"judged on images": f"{seen:,} of {there:,}"} if seen and there else {}
    facts = {f"judged: {name}": evaluation.get(name) for name in ("hardware", "commit")}
    return found | {name: value for name, value in facts.items() if value}


def _place(state: Mapping[str, int]) -> str:
    """Where a saved state stands."""
    return f"epoch {state['epoch']}" + (f", batch {state['batch']}" if state["batch"] else "")
