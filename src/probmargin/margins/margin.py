"""The contract of a margin and the registry of all of them."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from probmargin.core.batch import BatchView, Need
from probmargin.core.registry import Registry
from probmargin.core.types import PerExample


class Margin(ABC):
    """Measures how safe each example of a batch is.

    The value is detached, finite, and that of an example alone: no other example enters it.
    """

    registered_name: ClassVar[str]
    needs: ClassVar[frozenset[Need]]
    """What the training step must provide."""
    direction: ClassVar[Literal["safer", "none"]] = "safer"
    """`safer`: larger is safer. `none`: no monotone measure of safety."""

    @abstractmethod
    def __call__(self, view: BatchView) -> PerExample:
        """Measure the batch."""


MARGINS: Registry[Margin] = Registry("margin", "probmargin.margins")
