"""The label-noise bench: how much weight each method gives to wrong labels, and what they cost."""

from typing import Any

from probmargin.core.stats import mean_std
from probmargin.experiments.inspect import labels_of
from probmargin.experiments.plan import shared_epochs
from probmargin.experiments.study import PARENTS, Bench, Study
from probmargin.experiments.work import Parent, Task
from probmargin.methods.method import Method
from probmargin.methods.resolve import DIGITS_SCALE, resolve
from probmargin.reporting.cells import verdicts
from probmargin.reporting.dynamics import noise_summary, read_history, suspects
from probmargin.reporting.spec import ColumnSpec

METHODS = ("at", "gairat", "mail-at", "mail-trades")
NOISE = "symmetric:0.2"
ATTACKS = ("pgd-20", "cw")
"""CW too: weights can bring accuracy under PGD alone."""
TRIALS = 3


def _recipe(bench: Bench, method: str) -> Method:
    return resolve(method, data=bench.data_name, model=bench.model_name)


def _name(bench: Bench, method: str, noise: str | None, seed: int) -> str:
    labels = noise.replace(":", "-") if noise else "clean"
    return f"label-noise-{bench.data_name}-{bench.model_name}-{method}-{labels}-s{seed}"


def _task(bench: Bench, method: str, noise: str | None, seed: int) -> Task:
    recipe, parent = _recipe(bench, method), None
    if method in PARENTS:
        epochs = shared_epochs(_recipe(bench, PARENTS[method]), recipe)
        parent = Parent(run=_name(bench, PARENTS[method], noise, seed), epochs=epochs)
    eps = DIGITS_SCALE.eps if bench.is_smoke else 8 / 255
    protocol = "custom" if bench.is_smoke else "standard"
    columns = [
        ColumnSpec(title=name, attack=name, protocol=protocol, norm="Linf", eps=eps) for name in ("nat", *ATTACKS)
    ]
    return Task(
        id=_name(bench, method, noise, seed),
        recipe=recipe,
        seed=seed,
        data=bench.data_name,
        data_dir=bench.data_dir,
        model=bench.model_name,
        out=bench.out.resolve(),
        device=bench.device_name,
        columns=tuple(columns),
        parent=parent,
        dynamics=True,
        label_noise=noise,
    )


def tasks(bench: Bench) -> list[Task]:
    """Every method with clean and with noisy labels, over the seeds; those others start from come first."""
    seeds = range(1, (bench.trials or TRIALS) + 1)
    return [_task(bench, method, noise, seed) for seed in seeds for noise in (None, NOISE) for method in METHODS]


def _accuracies(task: Task) -> dict[str, float]:
    found = {column.attack: verdicts(task.run.record, column)[0] for column in task.columns}
    return {name: text.count("1") / len(text) for name, text in found.items()}


def _trial(bench: Bench, method: str, seed: int) -> dict[str, Any]:
    """One seed of one method: with noise, beside the same without."""
    with_noise, without_noise = (_task(bench, method, noise, seed) for noise in (NOISE, None))
    noisy = with_noise.run
    history = read_history(noisy.dynamics_path)
    known = labels_of(noisy, history.index)
    late = noise_summary(history.since(noisy.recipe.burn_in_epochs), known)
    found = suspects(history, known, 0)["judged"]
    assert late is not None
    judged, without = _accuracies(with_noise), _accuracies(without_noise)
    return {
        "seed": seed,
        "weight_on_wrong": late["share_of_weight"],
        "learnt": late["learnt"],
        **judged,
        **{f"{name}_clean": accuracy for name, accuracy in without.items()},
        **{f"{name}_cost": without[name] - accuracy for name, accuracy in judged.items()},
        "suspects_precision": found["precision"],
        "suspects_recall": found["recall"],
        "suspects_auc": found["auc"],
    }


def _row(bench: Bench, method: str) -> dict[str, Any]:
    """A method over its seeds: mean and standard deviation of each number, and the numbers."""
    trials = [_trial(bench, method, seed) for seed in range(1, (bench.trials or TRIALS) + 1)]
    row: dict[str, Any] = {"method": method, "trials": trials}
    for key in [key for key in trials[0] if key != "seed"]:
        values = [float(value) for trial in trials if (value := trial[key]) is not None]
        mean, std = mean_std(values) if values else (None, None)
        row[key] = {"mean": mean, "std": std}
    return row


def _sentence(row: dict[str, Any]) -> str:
    weight, pgd, cw = (row[key]["mean"] for key in ("weight_on_wrong", "pgd-20_cost", "cw_cost"))
    return (
        f"{row['method']} gives {weight:.1%} of its weight to wrong labels; they cost {100 * pgd:.1f} points of "
        f"accuracy under PGD-20 and {100 * cw:.1f} under CW-20."
    )


def measure(bench: Bench) -> dict[str, Any]:
    """Weight on wrong labels after burn-in, and accuracy on clean test labels, beside the same without noise."""
    rows = [_row(bench, method) for method in METHODS]
    recipe = _recipe(bench, "at")
    return {
        "noise": NOISE,
        "share_of_wrong": float(NOISE.partition(":")[2]),
        "attacks": list(ATTACKS),
        "eps": getattr(recipe.final_attack, "eps", None),
        "epochs": recipe.epochs,
        "burn_in_epochs": recipe.burn_in_epochs,
        "num_test": len(bench.data.test),
        "rows": rows,
        "summary": [_sentence(row) for row in rows],
    }


LABEL_NOISE = Study(
    name="label-noise",
    title="Weight on wrong labels, and what they cost",
    measure=measure,
    make_tasks=tasks,
)
