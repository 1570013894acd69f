"""What AutoAttack's attacks left standing, of runs whose last ones, Square above all, were not carried through.

    python -m benchmarks.before_square RUN RUN ... --out FILE

Reads what an evaluation stored as it went on; an attack counts where it has looked at all that stood before it. Runs
are compared after the last attack that counts in all of them, Square left out: it broke none where it was run.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from probmargin.engine.files import write_json
from probmargin.evaluation.autoattack import VERSIONS

STAGES = VERSIONS["standard"]


def standing(run: Path) -> dict[str, np.ndarray]:
    """By attack: which test images are right and were not broken by it or one before it."""
    record = json.loads((run / "record.json").read_text(encoding="utf-8"))
    right = np.array([mark == "1" for mark in record["evaluation"]["nat"]["correct"]])
    folder = _folder(run, record.get("weights"))
    found = {}
    for stage in STAGES:
        looked, broken = np.zeros_like(right), np.zeros_like(right)
        for path in folder.glob(f"{stage}@*.npz"):
            with np.load(path) as part:
                looked[part["ids"]], broken[part["ids"][part["broken"]]] = True, True
        if not looked[right].all():
            break
        right = right & ~broken
        found[stage] = right
    return found


def _folder(run: Path, weights: str | None) -> Path:
    """Where AutoAttack at 8/255 in L-inf left what it found of these weights; of several places the fullest."""
    found = []
    for path in (run / "evaluation").glob("aa-*/identity.json"):
        told = json.loads(path.read_text(encoding="utf-8"))
        if abs(told["eps"] - 8 / 255) < 1e-9 and told["norm"] == "Linf" and told["weights"] == weights:
            found.append(path.parent)
    if not found:
        raise SystemExit(f"{run} has nothing of AutoAttack at 8/255: run probmargin evaluate {run} --attacks nat,aa")
    return max(found, key=lambda folder: len(list(folder.iterdir())))


def row(run: Path, found: dict[str, np.ndarray], stage: str) -> dict[str, Any]:
    """A run's accuracies after each attack, and who stands after the one at which runs are compared."""
    record = json.loads((run / "record.json").read_text(encoding="utf-8"))
    return {
        "run": record["id"],
        "seed": record["seed"],
        "robust_accuracy": {name: round(float(right.mean()), 4) for name, right in found.items()},
        "correct": "".join("1" if right else "0" for right in found[stage].tolist()),
    }


def main(arguments: list[str]) -> None:
    """Read, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    found = {run: standing(run) for run in options.runs}
    reached = [stage for stage in STAGES[:-1] if all(stage in stages for stages in found.values())]
    if not reached:
        raise SystemExit("a run has no finished attack: run probmargin evaluate RUN --attacks nat,aa")
    rows = [row(run, stages, reached[-1]) for run, stages in found.items()]
    for one in rows:
        sys.stdout.write(f"{one['run']}: {one['robust_accuracy']}\n")
    record = json.loads((options.runs[0] / "record.json").read_text(encoding="utf-8"))
    told = {key: record[key] for key in ("hardware", "versions", "commit", "seed")}
    write_json(options.out, {"id": options.out.stem, "stage": reached[-1], "rows": rows, **told})


if __name__ == "__main__":
    main(sys.argv[1:])
