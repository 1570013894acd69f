"""May FAB and Square search in fewer digits? Their verdicts on the same images, form by form of the network.

    python -m benchmarks.search_precision RUN --data-dir DIR [--num-examples 500] [--forms tf32,bf16]

Each claimed break is confirmed in float32 whatever the search asked. Prints seconds, how many images broke, and which
verdicts differ from those of the first form.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import nn

from probmargin.core.types import Classifier, Images
from probmargin.data.loader import load
from probmargin.engine.devices import pick_device
from probmargin.engine.environment import commit, hardware, versions
from probmargin.engine.files import write_json
from probmargin.evaluation.autoattack import build_attack
from probmargin.evaluation.network import Form, captured_form
from probmargin.evaluation.opening import Threat, opened
from probmargin.evaluation.quick import quick_copy
from probmargin.evaluation.search import Stage, Subject, run_stage
from probmargin.runs.run import open_run

PLAIN: dict[str, Callable[[nn.Module, Images], Classifier]] = {"float32": lambda model, x: model, "folded": quick_copy}
CAPTURED: tuple[Form, ...] = get_args(Form)


def with_form(subject: Subject, model: nn.Module, name: str) -> Subject:
    """The subject, with one form that all searches ask."""
    if name in PLAIN:
        return replace(subject, call=PLAIN[name](model, subject.x), forms={}, rounds=name != "float32")
    call = captured_form(model, subject.x, 4096, cast(Form, name))
    return replace(subject, forms=dict.fromkeys(CAPTURED, call), rounds=True)


def main(arguments: list[str]) -> None:
    """Attack with each form, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--num-examples", type=int, default=500)
    parser.add_argument("--attacks", default="fab-t,square")
    parser.add_argument("--forms", default="tf32,bf16")
    parser.add_argument("--device", default=None)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    run, device = open_run(options.run), pick_device(options.device)
    test = load(run.record["data"], options.data_dir).test
    test = test.take(range(min(options.num_examples, len(test)))).to(device)
    eps = float(getattr(run.recipe.attack, "eps", 8 / 255))
    model = run.model.to(device).eval().requires_grad_(False)
    rows: list[dict[str, Any]] = []
    with opened(model, test.floats(), test.labels, Threat("Linf", eps), None) as (subject, _):
        chosen = subject.correct.nonzero()[:, 0]
        subjects = {name: with_form(subject, model, name) for name in options.forms.split(",")}
        for attack in options.attacks.split(","):
            first: torch.Tensor | None = None
            for name, asked in subjects.items():
                began = time.perf_counter()
                findings = list(run_stage(asked, Stage(attack, build_attack(attack, "Linf", eps)), chosen))
                broken = torch.cat([finding.broken for finding in findings])
                first = broken if first is None else first
                row = {
                    "attack": attack,
                    "form": name,
                    "seconds": round(time.perf_counter() - began, 2),
                    "attacked": len(chosen),
                    "broken": int(broken.sum()),
                    "differ": chosen[broken != first].tolist(),
                }
                rows.append(row)
                sys.stdout.write(f"{row}\n")
                sys.stdout.flush()
    record = {"id": "bench-search-precision", "norm": "Linf", "eps": eps, "num_examples": len(test), "rows": rows}
    if options.out:
        told = {"hardware": hardware(device), "versions": versions(), "commit": commit()}
        write_json(options.out, {**record, **told})


if __name__ == "__main__":
    main(sys.argv[1:])
