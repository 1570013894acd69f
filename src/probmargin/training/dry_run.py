"""What a run would be, without starting it."""

from collections.abc import Callable

import torch

from probmargin.core.records import coerce
from probmargin.data.dataset import DataSet, ImageSet
from probmargin.engine.compile import CompileMode
from probmargin.engine.devices import pick_device, pick_precision, set_precision
from probmargin.engine.distributed import World
from probmargin.methods.method import Method
from probmargin.models.build import build_model
from probmargin.training.assemble import Hardware
from probmargin.training.forecast import SHAPES, Measured, forecast, measure
from probmargin.training.progress import Reporter
from probmargin.training.request import TrainRequest
from probmargin.training.train import Training
from probmargin.training.validation import parse_monitors

Shape = tuple[int, int, int, int, int]


def dry_run(method: Method, request: TrainRequest, *, data: str, load: Callable[[], DataSet]) -> str:
    """Check all that a run was asked for as it would, time a few steps, and say what the whole run would take.

    The files of a known data set need not be there, but for a fork: its run must have seen the same images.
    """
    shape = shape_of(data, load)
    images = _stand_in(data, shape) if data in SHAPES and not request.fork else load()
    device, notes = pick_device(request.device), _Notes()
    training = Training(method, images, request, notes, World(), device)
    training.introduce()
    if request.monitor is not None:
        parse_monitors(request.monitor, len(images.test))
    network, name, settings = training.network()
    if request.fork:
        training.beginning(network, name, settings).check()
    network = network.to(device)
    hardware = Hardware(training.precision, compile=coerce(request.compile, CompileMode, "--compile"))
    line = forecast(method, network, (len(training.images.train), *shape[1:]), hardware)
    return "\n".join([*notes.said, line])


def timed(method: Method, model: str, asked_device: str | None, *, shape: Shape) -> Measured:
    """Time a few steps on images of a shape."""
    device = pick_device(asked_device)
    precision, _ = pick_precision(None, device)
    set_precision(precision)
    network = build_model(model, num_classes=shape[4], in_channels=shape[1], seed=0).to(device)
    return measure(method, network, shape, Hardware(precision))


def shape_of(data: str, load: Callable[[], DataSet]) -> Shape:
    """Training images, their shape and the number of classes; known data sets need not be there."""
    if data in SHAPES:
        return SHAPES[data]
    found = load()
    return (len(found.train), found.channels, *found.image_size, found.num_classes)


class _Notes(Reporter):
    """Keeps what is said, for the end."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.said: list[str] = []

    def say(self, text: str) -> None:
        """Keep a line."""
        self.said.append(text)


def _stand_in(name: str, shape: Shape) -> DataSet:
    """Blank images in the place of those of a known data set, which take no memory."""
    count, classes = shape[0], tuple(map(str, range(shape[4])))
    images = torch.zeros(1, dtype=torch.uint8).expand(shape[:4])
    part = ImageSet(images, torch.arange(count) % shape[4], torch.arange(count))
    return DataSet(name, part, part, classes)
