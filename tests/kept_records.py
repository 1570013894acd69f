"""Records of CIFAR-10 runs made up from a real one, for pages that are made from a folder of records."""

import json
from pathlib import Path
from typing import Any

from page_blocks import ROOT

from probmargin.experiments.catalogue import find
from probmargin.experiments.grid import make_grid

TEMPLATE = ROOT / "results" / "smoke" / "digits-small-cnn-at-s1.json"
IMAGES = 2000


def made_up(row: str, right: int, seed: int = 1, experiment: str = "table2") -> dict[str, Any]:
    """A record of a row that every attack leaves right on its first images."""
    grid = make_grid(find(experiment)[0])
    record: dict[str, Any] = json.loads(TEMPLATE.read_text(encoding="utf-8"))
    recipe = grid.recipes[row]
    record |= {"id": f"cifar10-resnet18-{row}-s{seed}", "recipe": recipe.plain(), "recipe_hash": recipe.hash()}
    record |= {"seed": seed, "data": "cifar10", "model": "resnet18"}
    old = record["evaluation"]
    kept = {name: value for name, value in old.items() if not isinstance(value, dict) or name == "versions"}
    kept |= {"protocol": "standard", "eps": 8 / 255, "test_images": IMAGES, "data": "cifar10"}
    kept["weights"] = record["id"]
    for column in (column for column in grid.columns if column.protocol == "standard"):
        entry = old["pgd-20" if column.attack == "pgd-100" else column.attack]
        kept[column.attack] = {**entry, "attack": column.meaning, "correct": "1" * right + "0" * (IMAGES - right)}
    return {**record, "evaluation": kept}


def keep(folder: Path, record: dict[str, Any]) -> None:
    """Put a record into a folder of records."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{record['id']}.json").write_text(json.dumps(record), encoding="utf-8")
