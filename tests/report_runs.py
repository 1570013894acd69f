"""Made-up runs for pages: folders with every file a run can have, written without training."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from probmargin.core.stats import wilson_interval
from probmargin.reporting.folder import read_folder
from probmargin.reporting.page.data import Gallery, Picture, RunReport, Sample
from probmargin.reporting.page.pictures import data_uri
from probmargin.reporting.page.spreads import describe, load_history

RECIPE: dict[str, Any] = {
    "method": "mail-trades",
    "preset": "paper",
    "epochs": 6,
    "lr": 0.1,
    "lr_milestones": [3, 5],
    "burn_in_epochs": 3,
    "attack": {"name": "pgd", "norm": "Linf", "eps": 0.1},
    "weight": {"name": "sigmoid", "slope": 2.0},
}


def entry(correct: str, clean: bool = False, **more: Any) -> dict[str, Any]:
    """One attack's result from its verdicts; classes are 0 and 1 by turns."""
    share = correct.count("1") / len(correct)
    halves = [correct[start::2] for start in (0, 1)]
    return {
        "accuracy" if clean else "robust_accuracy": share,
        "interval": list(wilson_interval(correct.count("1"), len(correct))),
        "num_examples": len(correct),
        "per_class": [half.count("1") / len(half) for half in halves],
        "correct": correct,
        "attack": {"name": "nat" if clean else "pgd"},
        **more,
    }


def evaluation(nat: str, pgd: str, aa: str | None = None, **more: Any) -> dict[str, Any]:
    """An evaluation as evaluation.json has it."""
    attacked = {"pgd-20": entry(pgd)} | ({} if aa is None else {"aa": entry(aa)})
    rows = [text for text in (nat, pgd, aa) if text is not None]
    worst = "".join("1" if all(text[place] == "1" for text in rows) else "0" for place in range(len(nat)))
    held = [worst[start::2].count("1") for start in (0, 1)]
    size = len(nat) // 2
    table = [[held[0], size - held[0]], [size - held[1], held[1]]]
    return {
        "protocol": "custom",
        "norm": "Linf",
        "eps": 0.1,
        "seed": 0,
        "num_examples": len(nat),
        "nat": entry(nat, clean=True),
        **attacked,
        "worst_case": entry(worst, attacks=list(attacked), confusion=table),
        **more,
    }


EVALUATION = evaluation("1" * 86 + "0" * 14, "1" * 60 + "0" * 40, "1" * 54 + "0" * 46)

AUDIT: dict[str, Any] = {
    "verdict": "warn",
    "norm": "Linf",
    "eps": 0.1,
    "num_examples": 50,
    "checks": [
        {
            "name": "zero_gradients",
            "measures": "m",
            "value": 0.5,
            "threshold": 0.05,
            "verdict": "warn",
            "advice": "Do.",
        },
        {"name": "noise", "measures": "n", "value": 0.0, "threshold": 0.025, "verdict": "pass", "advice": "a"},
        {"name": "transfer", "measures": "t", "value": None, "threshold": 0.025, "verdict": "not run", "advice": "a"}
        | {"reason": "no surrogate was given"},
    ],
}


def metrics(epochs: int) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl: monitors and held-out accuracy every second epoch."""
    rows = []
    for epoch in range(epochs):
        row: dict[str, Any] = {"epoch": epoch, "lr": 0.1, "loss": 2.0 / (epoch + 1), "natural_accuracy": None}
        row |= {"robust_accuracy": 0.4 + 0.5 * epoch / epochs, "weight_mean": 1.0, "images_per_second": 100.0}
        row["effective_sample_size"] = 40.0 if epoch < 3 else 30.0
        if epoch % 2:
            row["monitors"] = {"pgd-20": 0.5, "cw": 0.45}
            row["validation"] = {"natural_accuracy": 0.9, "robust_accuracy": 0.6}
        rows.append(row)
    return rows


def write_run(path: Path, *, epochs: int = 6, parts: str = "evaluation audit dynamics finished", **record: Any) -> Path:
    """A run's folder with these parts, trained for so many epochs of six."""
    path.mkdir(parents=True)
    facts: dict[str, Any] = {"id": path.name, "recipe": RECIPE, "seed": 1, "data": "digits", "model": "small-cnn"}
    facts |= {"model_settings": {"num_classes": 2, "in_channels": 1}}
    facts |= {"data_fingerprint": "f", "versions": {"torch": "2"}}
    facts |= {"train_seconds": 12.0} if "finished" in parts else {}
    facts |= record
    lines = "".join(json.dumps(row) + "\n" for row in metrics(epochs))
    files = {"record.json": json.dumps(facts), "recipe.json": json.dumps(facts["recipe"]), "metrics.jsonl": lines}
    if "evaluation" in parts:
        files["evaluation.json"] = json.dumps(EVALUATION)
    if "audit" in parts:
        files["audit.json"] = json.dumps(AUDIT)
    for name, text in files.items():
        (path / name).write_text(text, encoding="utf-8")
    if "dynamics" in parts:
        write_dynamics(path / "dynamics.npz", epochs)
    return path


def write_dynamics(path: Path, epochs: int, examples: int = 40) -> None:
    """Margins that rise, and weights that fall with them after three epochs."""
    draw = np.random.default_rng(0)
    margin = np.clip(draw.uniform(-1, 0.2, (1, examples)) + np.linspace(0, 0.8, epochs)[:, None], -1, 1)
    weight = np.where(np.arange(epochs)[:, None] < 3, 1.0, np.exp(-margin))
    arrays = {"margin": margin.astype(np.float32), "weight": weight.astype(np.float32), "correct": margin > 0}
    np.savez(path, index=np.arange(examples), epochs=np.arange(epochs), **arrays)  # type: ignore[arg-type]


def picture(alt: str, side: int = 8) -> Picture:
    """Noise, which compresses as badly as a picture can."""
    pixels = np.random.default_rng(len(alt)).integers(0, 256, (3, side, side), dtype=np.uint8)
    return Picture(data_uri(pixels), alt)


def sample(label: str = "cat", taken: str = "dog", side: int = 8) -> Sample:
    """One attacked image."""
    pictures = [picture(f"{kind} {label}", side) for kind in ("clean", "attacked", "difference of")]
    return Sample(
        place=3,
        label=label,
        clean=pictures[0],
        adversarial=pictures[1],
        difference=pictures[2],
        predicted_nat=label,
        predicted_adv=taken,
        confidence_nat=0.9,
        confidence_adv=0.6,
    )


def report(path: Path, **changes: Any) -> RunReport:
    """What a page is made from, of a folder and made-up pictures."""
    folder = read_folder(path)
    history = load_history(folder.dynamics_path)
    given: dict[str, Any] = {
        "folder": folder,
        "label": folder.name,
        "classes": ("cat", "dog"),
        "gallery": Gallery(samples=(sample(), sample("dog", "dog")), attack="PGD-20", scale="Amplified."),
        "dynamics": None if history is None else describe(history, None, 3),
        "pictures": {place: picture(f"training image {place}") for place in range(40)},
    }
    return RunReport(**(given | changes))
