"""One whole epoch of a table's network on its own data, and what the table's runs would take.

    python -m benchmarks.epoch table3 --data-dir DIR --out FILE
    python -m benchmarks.epoch table3 --scale smoke --device cpu      # digits

The first steps, in which the network is compiled, are not counted. The other runs follow from the passes they make.
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
from probmargin.experiments.forecast import Forecaster, training_passes
from probmargin.experiments.reproduce import make_plan
from probmargin.experiments.request import ReproduceRequest
from probmargin.methods.resolve import resolve
from probmargin.training.dry_run import shape_of
from probmargin.training.progress import Reporter
from probmargin.training.request import TrainRequest
from probmargin.training.train import train

UNCOUNTED = 4


class Clock(Reporter):
    """Notes when the steps that are not counted are done, and when the epoch is."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = time.perf_counter()
        self.steps, self.compiled, self.done = 0, 0.0, 0.0

    def advance(self) -> None:
        """One step is done."""
        super().advance()
        self.steps += 1
        if self.steps == UNCOUNTED:
            self.compiled = time.perf_counter()

    def epoch(self, metrics: dict[str, Any], epochs: int) -> None:
        """All are."""
        self.done = time.perf_counter()
        super().epoch(metrics, epochs)

    @property
    def seconds(self) -> float:
        """Of all the epoch's steps at the pace of those that were counted."""
        return (self.done - self.compiled) * self.steps / (self.steps - UNCOUNTED)


def main(arguments: list[str]) -> None:
    """Train an epoch, forecast, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("--method", default="mail-trades")
    parser.add_argument("--scale", default="full")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--device", default=None)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    device, clock = pick_device(options.device), Clock()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        request = ReproduceRequest(name=options.table, scale=options.scale, trials=1, device=str(device), out=out)
        planned = make_plan(request)
        task = planned[0].task
        recipe = resolve(options.method, data=task.data, model=task.model, epochs=1)
        data = load(task.data, options.data_dir)
        run, _ = train(recipe, data, TrainRequest(out=out / "run", model=task.model, device=str(device)), clock)
        precision = run.record["precision"]
    forecaster, shape = Forecaster(), shape_of(task.data, lambda: data)
    forecaster.known[task.data, task.model] = shape, clock.seconds / shape[0] / training_passes(recipe)
    rows: list[dict[str, Any]] = []
    for entry in planned:
        found = forecaster.run(entry)
        rows.append({"row": entry.row, "hours_training": found.training / 3600, "hours_judging": found.judging / 3600})
    record = {
        "id": f"forecast-{options.table}",
        "data": task.data,
        "model": task.model,
        "method": options.method,
        "precision": precision,
        "epoch_seconds": round(clock.seconds, 2),
        "images_per_second": round(shape[0] / clock.seconds, 1),
        "seconds_to_the_first_steps": round(clock.compiled - clock.begun, 1),
        "rows": [
            {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()} for row in rows
        ],
        "hours": round(sum(row["hours_training"] + row["hours_judging"] for row in rows), 2),
        "hardware": hardware(device),
        "versions": versions(),
        "commit": commit(),
        "seed": 0,
    }
    for key in ("epoch_seconds", "images_per_second", "hours"):
        sys.stdout.write(f"{key}: {record[key]}\n")
    if options.out:
        write_json(options.out, record)


if __name__ == "__main__":
    main(sys.argv[1:])
