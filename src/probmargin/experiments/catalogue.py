"""The experiments by name."""

from collections.abc import Mapping

from probmargin.core.errors import unknown_name
from probmargin.experiments.experiment import Experiment
from probmargin.experiments.table1 import TABLE1
from probmargin.experiments.table2 import TABLE2
from probmargin.experiments.table3 import TABLE3
from probmargin.experiments.table4 import TABLE4_CIFAR100, TABLE4_SVHN
from probmargin.experiments.table5 import TABLE5
from probmargin.experiments.table6 import TABLE6
from probmargin.experiments.table7 import TABLE7
from probmargin.experiments.two_by_two import TWO_BY_TWO

_SINGLE = (TABLE1, TABLE2, TABLE3, TABLE4_SVHN, TABLE4_CIFAR100, TABLE5, TABLE6, TABLE7, TWO_BY_TWO)

EXPERIMENTS: Mapping[str, tuple[Experiment, ...]] = {
    **{experiment.name: (experiment,) for experiment in _SINGLE},
    "table4": (TABLE4_SVHN, TABLE4_CIFAR100),
}
"""What `probmargin reproduce` takes; table4 stands for both of its halves."""


def find(name: str | None) -> tuple[Experiment, ...]:
    """The experiments a name stands for; all of them without a name."""
    if name is None:
        return _SINGLE
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
