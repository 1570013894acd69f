"""What a run would be, without starting it."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from probmargin.core.records import coerce
from probmargin.data.dataset import DataSet
from probmargin.engine.compile import CompileMode
from probmargin.engine.devices import pick_device, pick_precision, set_precision
from probmargin.methods.method import Method
from probmargin.models.build import build_model
from probmargin.training.assemble import Hardware
from probmargin.training.forecast import SHAPES, Measured, forecast, measure

Shape = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Asked:
    """The network, and what it would run on."""

    model: str
    device: str | None = None
    precision: str | None = None
    compile: str = "default"


def dry_run(method: Method, asked: Asked, *, data: str, load: Callable[[], DataSet]) -> str:
    """Build the model, time a few steps on images of the real shape, and say what the whole run would take."""
    shape = shape_of(data, load)
    network, hardware, note = _prepare(shape, asked)
    line = forecast(method, network, shape, hardware)
    return f"{note}\n{line}" if note else line


def timed(method: Method, asked: Asked, *, shape: Shape) -> Measured:
    """Time a few steps on images of a shape."""
    network, hardware, _ = _prepare(shape, asked)
    return measure(method, network, shape, hardware)


def shape_of(data: str, load: Callable[[], DataSet]) -> Shape:
    """Training images, their shape and the number of classes; known data sets need not be there."""
    if data in SHAPES:
        return SHAPES[data]
    found = load()
    return (len(found.train), found.channels, *found.image_size, found.num_classes)


def _prepare(shape: Shape, asked: Asked) -> tuple[nn.Module, Hardware, str | None]:
    device = pick_device(asked.device)
    precision, note = pick_precision(asked.precision, device)
    set_precision(precision)
    network = build_model(asked.model, num_classes=shape[4], in_channels=shape[1], seed=0).to(device)
    return network, Hardware(precision, compile=coerce(asked.compile, CompileMode, "--compile")), note
