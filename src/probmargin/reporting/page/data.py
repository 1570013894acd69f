"""What a page is made from: runs as plain data, pictures as data URIs. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from probmargin.reporting.folder import Folder
from probmargin.reporting.page.spreads import Dynamics


@dataclass(frozen=True)
class Picture:
    """An image inside the page."""

    source: str
    """A data URI."""
    alt: str


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A test image before and after an attack."""

    place: int
    label: str
    clean: Picture
    adversarial: Picture
    difference: Picture
    predicted_nat: str
    predicted_adv: str
    confidence_nat: float
    confidence_adv: float

    @property
    def holds(self) -> bool:
        """Is the attacked image still taken for what it is?"""
        return self.predicted_adv == self.label


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Attacked test images, or why there are none."""

    samples: tuple[Sample, ...] = ()
    attack: str = ""
    """In words."""
    scale: str = ""
    """How the difference is drawn, in words."""
    reason: str = ""
    command: str = ""
    """What would make the pictures."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A row the paper prints for the same method, data and model."""

    place: str
    numbers: Mapping[str, tuple[float, float]]
    """Mean and standard deviation in percent, by attack."""
    source: str
    doubts: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    """Where the run's recipe is not the one the row stands for."""
    judged_otherwise: tuple[str, ...] = ()
    """Where the run was judged by another yardstick than the paper's."""


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """One run and everything that was made for its page."""

    folder: Folder
    label: str
    """Its name, told apart from the other runs' names."""
    classes: tuple[str, ...] = ()
    gallery: Gallery = field(default_factory=Gallery)
    published: Published | None = None
    dynamics: Dynamics | None = None
    pictures: Mapping[int, Picture] = field(default_factory=dict)
    """Of training images, by their place in the data set."""
    data_dir: str = "DIR"
    """What commands on the page say after --data-dir, for data that lies in files; "" leaves it out."""

    def class_name(self, number: int) -> str:
        """A class's name; its number where the data set is not at hand."""
        return self.classes[number] if number < len(self.classes) else str(number)
