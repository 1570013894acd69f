"""The experiments by name."""

from collections.abc import Mapping

from probmargin.core.errors import unknown_name
from probmargin.experiments.experiment import Experiment
from probmargin.experiments.figure1a import FIGURE1A
from probmargin.experiments.figure1b import FIGURE1B
from probmargin.experiments.figure1c import FIGURE1C
from probmargin.experiments.figure2 import FIGURE2
from probmargin.experiments.figure3 import FIGURE3
from probmargin.experiments.figure4 import FIGURE4
from probmargin.experiments.label_noise import LABEL_NOISE
from probmargin.experiments.reliability import RELIABILITY
from probmargin.experiments.study import Study
from probmargin.experiments.table1 import TABLE1
from probmargin.experiments.table2 import TABLE2
from probmargin.experiments.table3 import TABLE3
from probmargin.experiments.table4 import TABLE4_CIFAR100, TABLE4_SVHN
from probmargin.experiments.table5 import TABLE5
from probmargin.experiments.table6 import TABLE6
from probmargin.experiments.table7 import TABLE7
from probmargin.experiments.two_by_two import TWO_BY_TWO
from probmargin.experiments.weight_functions import WEIGHT_FUNCTIONS

_SINGLE = (TABLE1, TABLE2, TABLE3, TABLE4_SVHN, TABLE4_CIFAR100, TABLE5, TABLE6, TABLE7, TWO_BY_TWO)

EXPERIMENTS: Mapping[str, tuple[Experiment, ...]] = {
    **{experiment.name: (experiment,) for experiment in _SINGLE},
    "table4": (TABLE4_SVHN, TABLE4_CIFAR100),
}
"""What `probmargin reproduce` takes; table4 stands for both of its halves."""

_STUDIES = (
    FIGURE1A,
    FIGURE1B,
    FIGURE1C,
    FIGURE2,
    FIGURE3,
    FIGURE4,
    WEIGHT_FUNCTIONS,
    RELIABILITY,
    LABEL_NOISE,
)
STUDIES: Mapping[str, Study] = {study.name: study for study in _STUDIES}
"""Figures and benches, which it takes too."""


def find(name: str | None) -> tuple[Experiment, ...]:
    """The experiments a name stands for; all of them without a name."""
    if name is None:
        return _SINGLE
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, [*EXPERIMENTS, *STUDIES])
    return EXPERIMENTS[name]
