"""Does the fast path train the same classifier? bf16 and compiled, over seeds, against float32 operation by operation.

python -m benchmarks.precision --data-dir DIR --out FILE
python -m benchmarks.precision --data-dir DIR --out FILE --runs fp32:2,fp32:3      # two more seeds in float32
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

RUNS = "bf16:1,bf16:2,bf16:3,fp32:1"
"""The slow one last: what came before it is saved."""
MODES = {"bf16": "default", "fp32": "off"}
"""Whether the network is compiled, by precision."""


def parsed(runs: str) -> list[tuple[str, int]]:
    """Precision and seed of each run.

    >>> parsed("bf16:1,fp32:2")
    [('bf16', 1), ('fp32', 2)]
    """
    return [(precision, int(seed)) for precision, seed in (run.split(":") for run in runs.split(","))]


def main(arguments: list[str]) -> None:
    """Train each run, judge it on all test images, save what there is after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--method", default="mail-trades")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--runs", type=parsed, default=RUNS, help="PRECISION:SEED of each")
    parser.add_argument("--seconds", type=float, default=400.0, help="start no run after this time")
    parser.add_argument("--device", default=None)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    data, device = load(options.data, options.data_dir), pick_device(options.device)
    recipe = resolve(options.method, data=options.data, model=options.model, epochs=options.epochs)
    rows: list[dict[str, Any]] = []
    for precision, seed in options.runs:
        if time.monotonic() - began > options.seconds:
            break
        with tempfile.TemporaryDirectory() as folder:
            request = TrainRequest(
                out=Path(folder) / "run",
                model=options.model,
                seed=seed,
                device=str(device),
                precision=precision,
                compile=MODES[precision],
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
                "compile": MODES[precision],
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
