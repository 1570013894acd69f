"""What a run would be, without starting it."""

from collections.abc import Callable

from probmargin.data.dataset import DataSet
from probmargin.engine.devices import pick_device, pick_precision, set_precision
from probmargin.methods.method import Method
from probmargin.models.build import build_model
from probmargin.training.assemble import Hardware
from probmargin.training.forecast import SHAPES, forecast


def dry_run(method: Method, *, data: str, load: Callable[[], DataSet], model: str, device: str | None) -> str:
    """Build the model, time a few steps on images of the real shape, and say what the whole run would take."""
    shape = SHAPES.get(data)
    if shape is None:
        found = load()
        shape = (len(found.train), found.channels, *found.image_size, found.num_classes)
    chosen = pick_device(device)
    precision, _ = pick_precision(None, chosen)
    set_precision(precision)
    network = build_model(model, num_classes=shape[4], in_channels=shape[1], seed=0).to(chosen)
    return forecast(method, network, shape, Hardware(precision))
