"""What a run would be, without starting it."""

from collections.abc import Callable

from torch import nn

from probmargin.data.dataset import DataSet
from probmargin.engine.devices import pick_device, pick_precision, set_precision
from probmargin.methods.method import Method
from probmargin.models.build import build_model
from probmargin.training.assemble import Hardware
from probmargin.training.forecast import SHAPES, Measured, forecast, measure

Shape = tuple[int, int, int, int, int]


def dry_run(method: Method, *, data: str, load: Callable[[], DataSet], model: str, device: str | None) -> str:
    """Build the model, time a few steps on images of the real shape, and say what the whole run would take."""
    shape = shape_of(data, load)
    network, hardware = _prepare(shape, model, device)
    return forecast(method, network, shape, hardware)


def timed(method: Method, *, shape: Shape, model: str, device: str | None) -> Measured:
    """Time a few steps on images of a shape."""
    network, hardware = _prepare(shape, model, device)
    return measure(method, network, shape, hardware)


def shape_of(data: str, load: Callable[[], DataSet]) -> Shape:
    """Training images, their shape and the number of classes; known data sets need not be there."""
    if data in SHAPES:
        return SHAPES[data]
    found = load()
    return (len(found.train), found.channels, *found.image_size, found.num_classes)


def _prepare(shape: Shape, model: str, device: str | None) -> tuple[nn.Module, Hardware]:
    chosen = pick_device(device)
    precision, _ = pick_precision(None, chosen)
    set_precision(precision)
    network = build_model(model, num_classes=shape[4], in_channels=shape[1], seed=0).to(chosen)
    return network, Hardware(precision)
