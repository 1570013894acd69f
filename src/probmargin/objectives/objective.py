"""The contract of an objective and the registry of all of them."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from probmargin.core.batch import BatchView, LossTerms, Need
from probmargin.core.registry import Registry

Pass = Literal["nat", "adv", "second"]
"""A forward pass in training mode: clean images, adversarial images, images of the second attack."""


class Objective(ABC):
    """A per-example loss in two parts: what an example's weight multiplies, and what it does not."""

    registered_name: ClassVar[str]
    passes: ClassVar[tuple[Pass, ...]]
    """Default order of the forward passes; batch-norm statistics depend on it."""

    @property
    @abstractmethod
    def needs(self) -> frozenset[Need]:
        """What the training step must provide."""

    @abstractmethod
    def __call__(self, view: BatchView) -> LossTerms:
        """Compute the loss of each example."""


OBJECTIVES: Registry[Objective] = Registry("objective", "probmargin.objectives")
