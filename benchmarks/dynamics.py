"""What --dynamics costs: the same steps with and without it, a few of each in turn.

python -m benchmarks.dynamics [--model resnet18] [--methods mail-trades] [--batch-size 128] [--rounds 40]
python -m benchmarks.dynamics --digits --device cpu      # embedded images, small-cnn, one thread

`without` is what `probmargin train` does, which notes margin, weight and verdict of each example in any case; `with`
counts the attack's steps as well; `bare` notes nothing. At an epoch's end --dynamics copies and writes what was noted:
those seconds are spread over the epoch's steps. On a CPU processor time is measured.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks import OUT, save
from benchmarks.training import fast_steps, synthetic
from probmargin.data.digits import load_digits
from probmargin.engine.devices import pick_device
from probmargin.engine.environment import commit, hardware, versions
from probmargin.reporting.dynamics import ROWS
from probmargin.training.examples import Dynamics

KINDS: dict[str, dict[str, bool]] = {
    "bare": {"notes_examples": False},
    "without": {},
    "with": {"counts_steps": True},
}
WRITTEN_EPOCHS = 100
"""The last epoch of a long run writes the most."""
SAVE_SECONDS = 30.0
"""A run saves its state, and with it what was noted, at most this often."""


def kinds_of(
    method: str, name: str, data: Any, options: argparse.Namespace, device: torch.device
) -> dict[str, Callable[[], None]]:
    """A step of each kind. On a CPU one network takes them all: where weights lie in memory is worth 2% of a step."""
    if device.type == "cuda":
        return {kind: fast_steps(method, name, data, options, device, **given).step for kind, given in KINDS.items()}
    fast = fast_steps(method, name, data, options, device)
    stepper, examples = fast.stepper, fast.stepper.state.examples

    def of(notes_examples: bool = True, counts_steps: bool = False) -> Callable[[], None]:
        def step() -> None:
            stepper.state.examples = examples if notes_examples else None
            stepper.counts_steps = counts_steps
            fast.step()

        return step

    return {kind: of(**given) for kind, given in KINDS.items()}


def block(step: Callable[[], None], count: int, device: torch.device) -> float:
    """Seconds of one step, over a few."""
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    wait()
    began = clock()
    for _ in range(count):
        step()
    wait()
    return (clock() - began) / count


def in_turn(
    steps: dict[str, Callable[[], None]], rounds: int, count: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of a step of each kind, a block each in every round; none always follows the same other."""
    names = list(steps)
    found: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        block(steps[name], 2, device)
    for turn in range(rounds):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in order if turn % 2 else reversed(order):
            found[name].append(block(steps[name], count, device))
    return found


def seconds_of_writing(count: int) -> tuple[float, float]:
    """Seconds to take in an epoch of so many examples, and to write the file of a long run."""
    values = np.random.default_rng(0).random((len(ROWS), count), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        dynamics = Dynamics(Path(folder) / "dynamics.npz", torch.arange(count))
        began = time.perf_counter()
        for epoch in range(WRITTEN_EPOCHS):
            dynamics.add(epoch, values)
        added = (time.perf_counter() - began) / WRITTEN_EPOCHS
        began = time.perf_counter()
        dynamics.write()
        return added, time.perf_counter() - began


def row_of(method: str, seconds: dict[str, list[float]], at_the_end: float) -> dict[str, Any]:
    """Medians, and how much longer a step takes: by the rounds' own ratios, since a machine's pace drifts."""
    against = {
        name: median(own / other for own, other in zip(seconds["with"], seconds[name], strict=True)) - 1
        for name in ("without", "bare")
    }
    return {
        "method": method,
        **{f"milliseconds_{name}": round(1000 * median(values), 4) for name, values in seconds.items()},
        "slower_than_without": round(against["without"], 4),
        "slower_than_bare": round(against["bare"], 4),
        "slower_with_the_epochs_end": round(against["without"] + at_the_end / median(seconds["without"]), 4),
    }


def main(arguments: list[str]) -> None:
    """Measure, print a table, save a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", action="store_true")
    parser.add_argument("--model", default=None)
    parser.add_argument("--methods", default="at,mail-trades,mart,gairat")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=None, help="120 on a CPU, whose steps vary more; 40 on CUDA")
    parser.add_argument("--steps", type=int, default=None, help="of a block; 1 on a CPU, 20 on CUDA")
    parser.add_argument("--compile", default="default", choices=["default", "max-autotune", "off"])
    parser.add_argument("--one-stream", action="store_true", help="no pass beside the attack")
    parser.add_argument("--device", default=None)
    parser.add_argument("--out", type=Path, default=OUT / "dynamics.json")
    options = parser.parse_args(arguments)
    device = pick_device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    data = load_digits().train.to(device) if options.digits else synthetic(50_000, 32, 3, device)
    name = options.model or ("small-cnn" if options.digits else "resnet18")
    count = options.steps or (20 if device.type == "cuda" else 1)
    rounds = options.rounds or (40 if device.type == "cuda" else 120)
    added, written = seconds_of_writing(len(data))
    num_steps = math.ceil(len(data) / options.batch_size)
    rows = []
    sys.stdout.write(f"{'method':<14}{'bare ms':>10}{'without':>10}{'with':>10}{'slower':>9}{'with writing':>14}\n")
    for method in options.methods.split(","):
        seconds = in_turn(kinds_of(method, name, data, options, device), rounds, count, device)
        # A file is written at an epoch's end, and no sooner than the last one's waiting time is over.
        epoch = num_steps * median(seconds["without"])
        row = row_of(method, seconds, (added + written * min(1.0, epoch / SAVE_SECONDS)) / num_steps)
        rows.append(row)
        shown = "".join(f"{row[f'milliseconds_{kind}']:>10.3f}" for kind in KINDS)
        slower, whole = row["slower_than_without"], row["slower_with_the_epochs_end"]
        sys.stdout.write(f"{method:<14}{shown}{slower:>9.2%}{whole:>14.2%}\n")
        sys.stdout.flush()
    record = {
        "id": "bench-dynamics",
        "model": name,
        "images": "digits" if options.digits else "random",
        "batch_size": options.batch_size,
        "rounds": rounds,
        "steps_of_a_block": count,
        "seconds_to_take_in_an_epoch": round(added, 6),
        "seconds_to_write_100_epochs": round(written, 4),
        "clock": "wall" if device.type == "cuda" else "processor time, one thread",
        "hardware": hardware(device),
        "versions": versions(),
        "commit": commit(),
        "rows": rows,
    }
    save(options.out, record)


if __name__ == "__main__":
    main(sys.argv[1:])
