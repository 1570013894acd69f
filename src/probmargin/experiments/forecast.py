"""How long an experiment will take: one recipe is timed, the others follow from the passes they make."""

from collections.abc import Sequence
from dataclasses import dataclass

from probmargin.data.loader import load
from probmargin.experiments.plan import Planned
from probmargin.experiments.work import Task
from probmargin.methods.method import Method
from probmargin.reporting.spec import ColumnSpec
from probmargin.training.dry_run import Shape, shape_of, timed

TEST_IMAGES = {"cifar10": 10_000, "cifar100": 10_000, "svhn": 26_032, "digits": 360}
_STEPS = {"nat": 1, "cw": 20, "apgd-ce": 100, "aa": 2_200}
"""Passes an image costs; AutoAttack's is what it costs on a model that keeps about half of its accuracy."""


def training_passes(recipe: Method) -> int:
    """Forward and backward passes a training image costs in one epoch.

    >>> from probmargin.methods.resolve import named
    >>> training_passes(named("at")), training_passes(named("mail-trades"))
    (11, 12)
    """
    attacks = sum(int(getattr(attack, "num_steps", 0)) for attack in (recipe.attack, recipe.second_attack))
    return attacks + len(recipe.passes) * (2 if recipe.awp else 1)


def judging_passes(columns: Sequence[ColumnSpec], images: int) -> int:
    """Passes an evaluation makes, all images together."""
    total = 0
    for column in columns:
        _, _, number = column.attack.partition("-")
        steps = _STEPS.get(column.attack) or int(number)
        total += steps * min(column.first or images, images)
    return total


@dataclass(frozen=True)
class Forecast:
    """Seconds a run will take."""

    training: float
    judging: float

    @property
    def total(self) -> float:
        """Both."""
        return self.training + self.judging


class Forecaster:
    """Times one step of the first recipe it is asked about on each kind of data and model."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], tuple[Shape, float]] = {}

    def _seconds_per_pass(self, task: Task) -> tuple[Shape, float]:
        key = (task.data, task.model)
        if key not in self.known:
            shape = shape_of(task.data, lambda: load(task.data, task.data_dir))
            found = timed(task.recipe, task.model, task.device, shape=shape)
            self.known[key] = shape, found.seconds_per_image / training_passes(task.recipe)
        return self.known[key]

    def run(self, planned: Planned) -> Forecast:
        """What is left to do of a run."""
        task = planned.task
        if planned.is_done:
            return Forecast(0.0, 0.0)
        shape, seconds = self._seconds_per_pass(task)
        begun = max(task.parent.epochs if task.parent else 0, task.epochs_done)
        epochs = [] if task.is_trained else [epoch for epoch in task.recipe.epoch_plan() if epoch >= begun]
        training = len(epochs) * shape[0] * training_passes(task.recipe) * seconds
        return Forecast(training, judging_passes(task.columns_left, TEST_IMAGES[task.data]) * seconds)
