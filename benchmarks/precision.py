"""Does the fast path train the same classifier? bf16 and compiled, over seeds, against float32 operation by operation.

python -m benchmarks.precision --data-dir DIR --out FILE [--epochs 5] [--seconds 400]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from probmargin.data.loader import load
from probmargin.engine.devices import pick_device
from probmargin.engine.environment import commit, hardware, versions
from probmargin.engine.files import write_json
from probmargin.evaluation.evaluate import EvaluationSettings, evaluate
from probmargin.methods.resolve import resolve
from probmargin.training.progress import Reporter
from probmargin.training.request import TrainRequest
from probmargin.training.train import train

RUNS = [("bf16", "default", 1), ("bf16", "default", 2), ("bf16", "default", 3), ("fp32", "off", 1)]
"""The slow one last: what came before it is saved."""


def main(arguments: list[str]) -> None:
    """Train each run, judge it on all test images, save what there is after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--method", default="mail-trades")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=400.0, help="start no run after this time")
    parser.add_argument("--device", default=None)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    data, device = load(options.data, options.data_dir), pick_device(options.device)
    recipe = resolve(options.method, data=options.data, model=options.model, epochs=options.epochs)
    rows: list[dict[str, Any]] = []
    for precision, mode, seed in RUNS:
        if time.monotonic() - began > options.seconds:
            break
        with tempfile.TemporaryDirectory() as folder:
            request = TrainRequest(
                out=Path(folder) / "run",
                model=options.model,
                seed=seed,
                device=str(device),
                precision=precision,
                compile=mode,
            )
            run, model = train(recipe, data, request, Reporter())
            record, losses = run.record, [round(row["loss"], 4) for row in run.metrics]
        test = data.test.to(device)
        results = evaluate(
            model, test.floats(), test.labels, attacks=("nat", "pgd-20"), settings=EvaluationSettings(batch_size=1000)
        )
        rows.append(
            {
                "precision": precision,
                "compile": mode,
                "seed": seed,
                "nat": results["nat"]["accuracy"],
                "pgd-20": results["pgd-20"]["robust_accuracy"],
                "losses": losses,
                "train_seconds": record["train_seconds"],
                "images_per_second": record["images_per_second"],
            }
        )
        sys.stdout.write(f"{rows[-1]}\n")
        sys.stdout.flush()
        write_json(
            options.out,
            {
                "id": "bench-precision",
                "recipe": recipe.plain(),
                "recipe_hash": recipe.hash(),
                "hardware": hardware(device),
                "versions": versions(),
                "commit": commit(),
                "rows": rows,
            },
        )


if __name__ == "__main__":
    main(sys.argv[1:])
