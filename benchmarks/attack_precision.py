"""How strong the training attack is in each precision, judged in float32 on one trained network.

python -m benchmarks.attack_precision RUN --data-dir DIR [--num-examples 2000] [--out FILE]
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from probmargin.core.frozen import frozen
from probmargin.core.losses import cross_entropy, directed_kl, is_correct
from probmargin.core.noise import KeyedNoise
from probmargin.core.types import Classifier, Images, Labels, Logits
from probmargin.data.loader import load
from probmargin.engine.devices import pick_device
from probmargin.engine.environment import commit, hardware, versions
from probmargin.engine.files import write_json
from probmargin.evaluation.network import folded_form
from probmargin.evaluation.search import full_float32
from probmargin.methods.resolve import resolve
from probmargin.runs.run import open_run

_CHUNK = 500


def rounded(call: Classifier) -> Classifier:
    """The same network over pixels rounded to bfloat16, straight through for the gradient."""

    def forward(x: Images) -> Logits:
        return call(x + (x.bfloat16().float() - x).detach())

    return forward


def autocast(model: Classifier) -> Classifier:
    """The network as autocast runs it."""

    def forward(x: Images) -> Logits:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(x)
        return logits.float()

    return forward


def forms(model: nn.Module, device: torch.device) -> dict[str, Classifier]:
    """The network in the ways an attack may see it."""
    exact: Classifier = model.eval()
    found = {"float32": exact, "float32, pixels in bf16": rounded(exact)}
    if device.type == "cuda":
        found["bf16, folded"] = folded_form(model, torch.bfloat16)
        found["bf16, autocast"] = autocast(exact)
    return found


def reached(call: Classifier, judge: Classifier, x: Images, labels: Labels, attack: Any) -> dict[str, float]:
    """What an attack on one form does to the float32 network: mean KL, mean cross-entropy, accuracy."""
    noise = KeyedNoise(seed=0, ids=torch.arange(len(x), device=x.device))
    x_adv = attack(call, x, labels, noise=noise).x_adv
    with torch.no_grad(), full_float32(x):
        clean, attacked = judge(x), judge(x_adv)
    return {
        "kl": float(directed_kl(clean, attacked, "nat_adv").mean()),
        "ce": float(cross_entropy(attacked, labels).mean()),
        "accuracy": float(is_correct(attacked, labels).float().mean()),
        "clean_accuracy": float(is_correct(clean, labels).float().mean()),
    }


def mean(parts: list[dict[str, float]]) -> dict[str, float]:
    """Means over the parts."""
    return {key: round(sum(part[key] for part in parts) / len(parts), 5) for key in parts[0]}


def measure(model: nn.Module, x: Images, labels: Labels, attack: Any) -> dict[str, dict[str, float]]:
    """Each form under an attack."""
    results = {}
    with frozen(model, "eval") as judge:
        for name, call in forms(model, x.device).items():
            with full_float32(x):
                pieces = zip(x.split(_CHUNK), labels.split(_CHUNK), strict=True)
                parts = [reached(call, judge, images, wanted, attack) for images, wanted in pieces]
            results[name] = mean(parts)
            shown = "  ".join(f"{key} {value:.4f}" for key, value in results[name].items())
            sys.stdout.write(f"{name:<26}{shown}\n")
            sys.stdout.flush()
    return results


def main(arguments: list[str]) -> None:
    """Measure, print, save a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--num-examples", type=int, default=2000)
    parser.add_argument("--device", default=None)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    device = pick_device(options.device)
    run = open_run(options.run)
    data = load(run.record["data"], options.data_dir)
    test = data.test.take(range(min(options.num_examples, len(data.test)))).to(device)
    model = run.model.to(device)
    results = {}
    for loss in ("mail-trades", "at"):
        attack = resolve(loss, data=run.record["data"], model=run.record["model"]).attack
        sys.stdout.write(f"training attack of {loss}\n")
        results[loss] = measure(model, test.floats(), test.labels, attack)
    if options.out:
        record = {"id": "bench-attack-precision", "run": run.record["id"], "num_examples": len(test), "rows": results}
        write_json(options.out, record | {"hardware": hardware(device), "versions": versions(), "commit": commit()})


if __name__ == "__main__":
    main(sys.argv[1:])
