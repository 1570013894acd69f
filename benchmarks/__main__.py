"""All benchmarks that `make bench` runs: training, AutoAttack and --dynamics, each beside its plain counterpart.

    python -m benchmarks                             digits on a CPU; random images for training where there is CUDA
    python -m benchmarks RUN [--data-dir DIR]        AutoAttack on a run's own model and test images, 500 of them
    python -m benchmarks --dry-run                   only the commands

Without RUN a model is trained on digits for AutoAttack. Minutes on two cores.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import dynamics, evaluation, training
from probmargin.engine.devices import pick_device

MAINS: dict[str, Callable[[list[str]], None]] = {
    "training": training.main,
    "evaluation": evaluation.main,
    "dynamics": dynamics.main,
}


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """The arguments of each benchmark."""
    device = pick_device(options.device).type
    small = [] if device == "cuda" else ["--digits", "--seconds", "3"]
    judged = ["--device", "cpu"]
    if options.run is not None:
        judged = [str(options.run), "--num-examples", "500", "--device", device]
        judged += ["--data-dir", str(options.data_dir)] if options.data_dir else []
    return {
        "training": [*small, "--device", device],
        "evaluation": judged,
        "dynamics": [*small[:1], "--device", device],
    }


def main(arguments: list[str]) -> None:
    """Run one after another."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", type=Path, default=None)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--device", default=None)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(arguments)
    for name, given in commands(options).items():
        sys.stdout.write(f"python -m benchmarks.{name} {' '.join(given)}\n")
        sys.stdout.flush()
        if not options.dry_run:
            MAINS[name](given)
            sys.stdout.write("\n")


if __name__ == "__main__":
    main(sys.argv[1:])
