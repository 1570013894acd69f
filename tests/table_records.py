"""Made-up records and a small table for them."""

from typing import Any

from probmargin.core.records import canonical_hash
from probmargin.reporting.spec import ColumnSpec, Contrast, RowSpec, TableSpec

EPS = 8 / 255
RECIPES: dict[str, dict[str, Any]] = {
    "at": {"method": "at", "lr": 0.1, "attack": {"name": "pgd", "eps": EPS}},
    "mail-at": {"method": "mail-at", "lr": 0.1, "attack": {"name": "pgd", "eps": EPS}},
}


def record(row: str, seed: int = 1, nat: str = "1110", aa: str = "1000", **changes: Any) -> dict[str, Any]:
    """A record of four test images."""
    recipe = changes.pop("recipe", RECIPES[row])
    evaluation = {
        "protocol": "standard",
        "norm": "Linf",
        "eps": EPS,
        "seed": 0,
        "test_images": 4,
        "nat": {"accuracy": nat.count("1") / len(nat), "correct": nat, "attack": {"name": "nat"}},
        "aa": {"robust_accuracy": aa.count("1") / len(aa), "correct": aa, "attack": {"name": "aa", "eps": EPS}},
    }
    evaluation |= changes.pop("evaluation", {})
    return {
        "id": f"blobs-net-{row}-s{seed}",
        "recipe": recipe,
        "recipe_hash": canonical_hash(recipe),
        "seed": seed,
        "data": "blobs",
        "data_fingerprint": "f",
        "model": "net",
        "precision": "fp32",
        "train_seconds": 1.0,
        "evaluation": evaluation,
        **changes,
    }


def column(title: str, attack: str, **changes: Any) -> ColumnSpec:
    return ColumnSpec(title=title, attack=attack, protocol="standard", norm="Linf", eps=EPS, **changes)


def row(name: str, **changes: Any) -> RowSpec:
    return RowSpec(id=name, run=f"blobs-net-{name}", recipe=RECIPES[name], **changes)


def table(**changes: Any) -> TableSpec:
    settings: dict[str, Any] = {
        "name": "table9",
        "title": "Two methods",
        "claim": "One is better.",
        "command": "probmargin reproduce table9",
        "data": "blobs",
        "model": "net",
        "rows": (row("at", published={"NAT": (80.0, 10.0)}), row("mail-at", is_extra=True)),
        "columns": (column("NAT", "nat"), column("AA", "aa")),
        "contrasts": (Contrast("mail-at - at", ("mail-at",), ("at",)),),
        "trials": 2,
        "source": "a paper",
        **changes,
    }
    return TableSpec(**settings)
