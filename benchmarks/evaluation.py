"""AutoAttack: ours beside a plain implementation, on the same images with the same noise, in one run.

    python -m benchmarks.evaluation                          digits on a CPU; the model is trained first
    python -m benchmarks.evaluation RUN --device cuda        a run's model on its own data

Prints seconds an attack, the ratio, and each verdict that differs with the margins of both.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import OUT, save
from benchmarks.plain_autoattack import PlainAutoAttack
from probmargin.attacks.balls import Norm
from probmargin.core.losses import logit_margin
from probmargin.data.dataset import ImageSet
from probmargin.data.loader import load
from probmargin.engine.devices import pick_device
from probmargin.engine.environment import commit, hardware, versions
from probmargin.evaluation.autoattack import VERSIONS
from probmargin.evaluation.evaluate import EvaluationSettings, Keep, judge
from probmargin.methods.resolve import resolve
from probmargin.runs.run import open_run
from probmargin.training.progress import Reporter
from probmargin.training.request import TrainRequest
from probmargin.training.train import train


def clock_of(device: torch.device) -> Callable[[], float]:
    """Processor time on a CPU, so that other work on the machine does not count; else wall time of finished work."""
    if device.type != "cuda":
        return time.process_time

    def wall() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return wall


def subject(options: argparse.Namespace) -> tuple[nn.Module, ImageSet, float]:
    """The model, its test images and the radius it was trained for."""
    if options.run is not None:
        run = open_run(options.run)
        data = load(options.data or run.record["data"], options.data_dir)
        return run.model, data.test, float(getattr(run.recipe.attack, "eps", 8 / 255))
    recipe = resolve("at", data="digits", model="small-cnn")
    data = load("digits")
    with tempfile.TemporaryDirectory() as folder:
        request = TrainRequest(out=Path(folder) / "run", model="small-cnn", seed=0, device="cpu")
        _, model = train(recipe, data, request, Reporter(quiet=True))
    return model.eval(), data.test, float(recipe.attack.eps)  # type: ignore[union-attr]


def ours(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, norm: Norm, eps: float, clock: Callable[[], float]
) -> tuple[dict[str, tuple[torch.Tensor, float]], torch.Tensor]:
    """The same figures of our ensemble, and its worst images; checks before the first attack count for it."""
    marks = [clock()]

    def note(line: str) -> None:
        if line.startswith("robust accuracy after"):
            marks.append(clock())

    settings = EvaluationSettings(norm=norm, eps=eps, recheck=0)
    verdicts, x_adv = judge(model, x, y, attacks=["aa"], settings=settings, log=note, keep=Keep(images=True))
    assert x_adv is not None
    spent = [after - before for before, after in pairwise(marks)]
    left = {name: torch.from_numpy(flags).to(x.device) for name, flags in verdicts.entries["aa"].after.items()}
    return {name: (flags, spent[place]) for place, (name, flags) in enumerate(left.items())}, x_adv.to(x.device)


def main(arguments: list[str]) -> None:
    """Measure, print a table, save a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, default=None)
    parser.add_argument("--data", default=None)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--num-examples", type=int, default=None)
    parser.add_argument("--norm", default="Linf", choices=["Linf", "L2"])
    parser.add_argument("--eps", type=float, default=None)
    parser.add_argument("--device", default=None)
    parser.add_argument("--ours-only", action="store_true", help="leave the plain one out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT / "evaluation.json")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    model, test, trained_eps = subject(options)
    device = pick_device(options.device)
    eps = options.eps or trained_eps
    test = test.take(range(min(options.num_examples or len(test), len(test)))).to(device)
    x, y, clock = test.floats(), test.labels, clock_of(device)
    model = model.to(device)
    # The plain one first: ours changes how the process keeps its memory, which a plain program does not.
    other = PlainAutoAttack(model, options.norm, eps)
    plain = None if options.ours_only else other.run(x, y, clock)
    fast, x_adv = ours(model, x, y, options.norm, eps, clock)
    rows = report_ours(fast) if plain is None else report(fast, plain, margins(model, y, x_adv, other.x_adv))
    record = {
        "id": "bench-evaluation",
        "norm": options.norm,
        "eps": eps,
        "num_examples": len(x),
        "hardware": hardware(device),
        "versions": versions(),
        "commit": commit(),
        **rows,
    }
    save(options.out, record)


def report_ours(fast: dict[str, tuple[torch.Tensor, float]]) -> dict[str, Any]:
    """Print our seconds alone."""
    rows = [{"attack": name, "seconds": round(seconds, 2)} for name, (_, seconds) in fast.items()]
    for row, (standing, _) in zip(rows, fast.values(), strict=True):
        sys.stdout.write(f"{row['attack']:<10}{row['seconds']:>9}{100 * float(standing.double().mean()):>8.2f}%\n")
    total = round(sum(seconds for _, seconds in fast.values()), 2)
    sys.stdout.write(f"{'all':<10}{total:>9}\n")
    return {"rows": rows, "seconds": total}


@torch.no_grad()
def margins(model: nn.Module, y: torch.Tensor, *images: torch.Tensor) -> list[list[float]]:
    """The logit margins of images as each ensemble left them: below zero where it broke them."""
    parts = [[model(part) for part in each.split(250)] for each in images]
    return [logit_margin(torch.cat(each), y).tolist() for each in parts]


def report(
    fast: dict[str, tuple[torch.Tensor, float]],
    plain: dict[str, tuple[torch.Tensor, float]],
    found: list[list[float]],
) -> dict[str, Any]:
    """Print the table and the verdicts that differ."""
    sys.stdout.write(f"{'attack':<10}{'plain s':>9}{'ours s':>9}{'ratio':>7}{'plain':>8}{'ours':>8}\n")
    rows = []
    for name in VERSIONS["standard"]:
        (theirs, slow), (own, quick) = plain[name], fast[name]
        rows.append({"attack": name, "plain_seconds": round(slow, 2), "seconds": round(quick, 2)})
        shares = f"{100 * float(theirs.double().mean()):>7.2f}%{100 * float(own.double().mean()):>7.2f}%"
        sys.stdout.write(f"{name:<10}{slow:>9.1f}{quick:>9.1f}{slow / quick:>7.1f}{shares}\n")
    slow, quick = (sum(seconds for _, seconds in results.values()) for results in (plain, fast))
    others = (plain["square"][0] != fast["square"][0]).nonzero()[:, 0].tolist()
    differ = [{"example": i, "margin": found[0][i], "plain_margin": found[1][i]} for i in others]
    sys.stdout.write(f"{'all':<10}{slow:>9.1f}{quick:>9.1f}{slow / quick:>7.1f}\n")
    sys.stdout.write(f"final verdicts that differ: {len(differ)} of {len(found[0])} {differ}\n")
    return {"rows": rows, "ratio": round(slow / quick, 2), "verdicts_that_differ": differ}


if __name__ == "__main__":
    main(sys.argv[1:])
