"""The demo: two methods on embedded data, judged and compared."""

import shutil
import time
from pathlib import Path
from typing import Any

from probmargin.core.errors import Interrupted
from probmargin.core.speech import Say, silent
from probmargin.data.digits import load_digits
from probmargin.evaluation.subject import EvaluationRequest, evaluate_subject
from probmargin.experiments.report import ReportRequest, write_report
from probmargin.methods.resolve import resolve
from probmargin.training.progress import Reporter, percent
from probmargin.training.request import TrainRequest
from probmargin.training.train import train

METHODS = ("at", "mail-trades")
ATTACKS = ("nat", "pgd-20", "cw")
MODEL = "small-cnn"


def demo_run(method: str, out: Path, seed: int, reporter: Reporter) -> dict[str, Any]:
    """Train one method on digits by the recipe a user gets, and judge it at the radius it was trained for."""
    data = load_digits()
    recipe = resolve(method, data=data.name, model=MODEL)
    request = TrainRequest(out=out, model=MODEL, seed=seed, device="cpu", dynamics=True)
    train(recipe, data, request, reporter)
    eps = resolve("at", data=data.name).attack.eps  # type: ignore[union-attr]
    judged = EvaluationRequest(run=out, attacks=ATTACKS, eps=repr(eps), device="cpu")
    results, _ = evaluate_subject(judged, log=silent)
    return results


def run_demo(out: Path, seed: int, say: Say) -> None:
    """Train, judge, compare; an earlier demo in the same folder is replaced."""
    began = time.perf_counter()
    say("Embedded data: 8x8 handwritten digits, 1,437 to train on and 360 to test.")
    rows = []
    for method in METHODS:
        folder = out / method
        if (folder / "recipe.json").exists():
            shutil.rmtree(folder)
        say(f"\n{method}")
        try:
            rows.append((method, demo_run(method, folder, seed, Reporter())))
        except Interrupted:
            raise Interrupted("interrupted; start the demo again, it takes a minute") from None
    eps = rows[0][1]["eps"]
    say(f"\nAccuracy on the 360 test images; attacks in an L-inf ball of {eps:g} (95% interval of PGD-20)")
    say(table(rows))
    say(f"\nRecipes, curves, checkpoints and results: {out}/{{{','.join(METHODS)}}}")
    folders = tuple(out / method for method in METHODS)
    write_report(ReportRequest(runs=folders, out=out / "report.html", device="cpu"), say)
    say(f"Done in {time.perf_counter() - began:.0f} s. Next: probmargin train --help")


def table(rows: list[tuple[str, dict[str, Any]]]) -> str:
    """Methods against attacks, as text."""
    lines = [f"{'method':<14}{'natural':>9}{'PGD-20':>9}{'CW-20':>9}   interval"]
    for method, results in rows:
        low, high = results["pgd-20"]["interval"]
        shares = [results["nat"]["accuracy"], results["pgd-20"]["robust_accuracy"], results["cw"]["robust_accuracy"]]
        columns = "".join(f"{percent(share):>9}" for share in shares)
        lines.append(f"{method:<14}{columns}   [{percent(low)}, {percent(high)}]")
    return "\n".join(lines)
