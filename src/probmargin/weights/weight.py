"""The contracts of a weight function and of a normaliser, and their registries."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, Self

from probmargin.core.registry import Registry
from probmargin.core.types import PerExample, Reduce


class Weight(ABC):
    """Turns margins into weights: >= 0, monotone in the declared direction, not normalised."""

    registered_name: ClassVar[str]
    direction: ClassVar[Literal["falls", "rises", "constant"]] = "falls"
    """How the weight moves as the margin grows."""
    reads: ClassVar[Literal["margin", "steps"]] = "margin"
    """Whether it is made for margins around 0, or for attack steps survived."""

    @abstractmethod
    def __call__(self, margin: PerExample) -> PerExample:
        """Weigh a batch."""

    def resolve(self, *, epoch: int, epochs: int, num_steps: int) -> Self:
        """This function as it is in one epoch (counted from 0) of a run, for an attack of `num_steps`."""
        return self


class Normalizer(ABC):
    """Scales a batch of weights. A batch of zeros becomes ones."""

    registered_name: ClassVar[str]

    @abstractmethod
    def __call__(self, weight: PerExample, *, reduce: Reduce) -> PerExample:
        """Scale the weights; `reduce` sums a tensor over all processes, so that the batch is the global one."""


WEIGHTS: Registry[Weight] = Registry("weight", "probmargin.weights")
NORMALIZERS: Registry[Normalizer] = Registry("normalizer", "probmargin.weights")
