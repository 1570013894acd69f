"""What the audit says of models trained on digits by the users' recipe, honest ones and masked ones.

python tests/audit_digits.py results/audit-digits.json
"""

import functools
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from masks import LowTemperature, NoisyInput, Quantised
from torch import nn

from probmargin.data.digits import load_digits
from probmargin.engine.environment import commit, hardware, versions
from probmargin.engine.files import write_json
from probmargin.evaluation.audit import audit
from probmargin.evaluation.audit_rules import RULES
from probmargin.methods.resolve import resolve
from probmargin.training.progress import Reporter
from probmargin.training.request import TrainRequest
from probmargin.training.train import train

SEEDS = range(5, 10)
"""Thresholds were set on seeds 0 to 4."""
NUM_EXAMPLES = 120
EPS = 0.15
METHODS = ("at", "trades", "gairat")
MASKS = {"at, quantised": Quantised, "at, low temperature": LowTemperature, "at, noisy input": NoisyInput}
"""Masks put on a model trained by AT."""


@functools.cache
def model_of(method: str, seed: int) -> nn.Module:
    recipe = resolve(method, data="digits", model="small-cnn")
    with tempfile.TemporaryDirectory() as folder:
        request = TrainRequest(out=Path(folder) / "run", model="small-cnn", seed=seed, device="cpu")
        _, model = train(recipe, load_digits(), request, Reporter(quiet=True))
    return model.eval()


def audited(name: str, seed: int) -> dict[str, Any]:
    """The audit of a method's model, or of a masked one."""
    model = MASKS[name](model_of("at", seed)).eval() if name in MASKS else model_of(name, seed)
    test = load_digits().test
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return audit(model, test.floats()[:NUM_EXAMPLES], test.labels[:NUM_EXAMPLES], "Linf", EPS)


def outcome(result: dict[str, Any], seed: int) -> dict[str, Any]:
    """An audit in short, for the record."""
    return {
        "seed": seed,
        "verdict": result["verdict"],
        "warned": [check["name"] for check in result["checks"] if check["verdict"] == "warn"],
        "values": {check["name"]: check["value"] for check in result["checks"]},
        "withstand_pgd_20": result["curves"]["restarts"][0],
    }


def main(path: Path) -> None:
    """Train, audit, and write the record, which is whole after each model."""
    models: dict[str, list[dict[str, Any]]] = {name: [] for name in (*METHODS, *MASKS)}
    record = {
        "id": "audit-digits",
        "data": "digits",
        "model": "small-cnn",
        "norm": "Linf",
        "eps": EPS,
        "num_examples": NUM_EXAMPLES,
        "thresholds": {name: rule.threshold for name, rule in RULES.items()},
        "hardware": hardware(torch.device("cpu")),
        "versions": versions(),
        "commit": commit(),
        "models": models,
    }
    for seed in SEEDS:
        for name, found in models.items():
            found.append(outcome(audited(name, seed), seed))
            sys.stdout.write(f"{name:<20} seed {seed} {found[-1]['verdict']} {' '.join(found[-1]['warned'])}\n")
            sys.stdout.flush()
            write_json(path, record)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
