"""How long a run will take and how much memory it needs, from its first steps."""

import math
import resource
import sys
import time
from dataclasses import dataclass, replace

import torch
from torch import nn

from probmargin.core.speech import Say
from probmargin.core.words import counted
from probmargin.data.dataset import ImageSet
from probmargin.methods.method import Method
from probmargin.training.assemble import Hardware, make_stepper
from probmargin.training.examples import empty_examples
from probmargin.training.progress import duration
from probmargin.training.state import TrainState
from probmargin.training.stepper import Chosen

_GIB = 2**30
_LONG_ENOUGH = 0.3
"""Seconds of a step that are worth scaling up."""
SHAPES = {"cifar10": (50_000, 3, 32, 32, 10), "cifar100": (50_000, 3, 32, 32, 100), "svhn": (73_257, 3, 32, 32, 10)}
"""Training images, their shape and the classes of data sets whose files need not be there for a forecast."""


def wait_for(device: torch.device) -> None:
    """Let the host wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory(device: torch.device) -> str:
    """The most memory used so far, in words."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        return f"{torch.cuda.max_memory_reserved(device) / _GIB:.1f} of {total / _GIB:.0f} GiB on the device"
    unit = 1 if sys.platform == "darwin" else 1024
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _GIB:.1f} GiB"


class Pace:
    """Times the first steps of a run, and then says once how long the rest will take."""

    skipped = 3
    """Steps that are not timed: the first ones compile, capture and allocate."""
    timed = 8

    def __init__(self, device: torch.device, say: Say) -> None:
        self.device = device
        self.say = say
        self.steps = 0
        self.began = 0.0

    def step(self, steps_left: int) -> None:
        """One more step is done."""
        self.steps += 1
        if self.steps == self.skipped:
            wait_for(self.device)
            self.began = time.perf_counter()
        if self.steps == self.skipped + self.timed:
            wait_for(self.device)
            seconds = (time.perf_counter() - self.began) / self.timed
            left = "the step that is left" if steps_left == 1 else f"the {steps_left} steps that are left"
            self.say(
                f"forecast: about {duration(seconds * steps_left)} for {left}, at "
                f"{1000 * seconds:.3g} ms each (measured over {self.timed}); memory {memory(self.device)}"
            )


def _blank(count: int, shape: tuple[int, ...], classes: int) -> ImageSet:
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, *shape), generator=draw, dtype=torch.uint8)
    labels = torch.randint(classes, (count,), generator=draw)
    return ImageSet(images, labels, torch.arange(count))


def _time_steps(method: Method, model: nn.Module, images: ImageSet, hardware: Hardware, runs: int) -> float:
    """Seconds a step on a batch of these images takes; one step before is not timed."""
    device = images.images.device
    state = TrainState.fresh(model.train(), method)
    state.examples = empty_examples(len(images), device)
    state.begin_epoch(0)
    stepper = make_stepper(state, images, method, 0, hardware)
    now, epoch = method.at(method.epochs - 1), method.epochs - 1
    positions = torch.arange(len(images), device=device)
    draws = torch.zeros(len(images), 3, dtype=torch.int64, device=device)
    began = 0.0
    for run in range(runs + 1):
        if run == 1:
            wait_for(device)
            began = time.perf_counter()
        stepper(now, epoch, method.lr_at(epoch), Chosen(positions, draws))
    wait_for(device)
    return (time.perf_counter() - began) / runs


@dataclass(frozen=True)
class Measured:
    """What a step took on images of the real shape."""

    seconds: float
    images: int
    """In that step; the batch, or a part of it."""
    steps: int

    @property
    def seconds_per_image(self) -> float:
        """Of training."""
        return self.seconds / self.images


def measure(method: Method, model: nn.Module, shape: tuple[int, int, int, int, int], hardware: Hardware) -> Measured:
    """Time steps on random images.

    On a CPU a step of the full batch may take minutes, so a part of it is timed and scaled up; a GPU gets it all.
    """
    count, size, classes = shape[0], shape[1:4], shape[4]
    device = next(model.parameters()).device
    whole = min(method.batch_size, count)
    measured, steps = (min(whole, 2), 1) if device.type == "cpu" else (whole, 2)
    while True:
        images = _blank(measured, size, classes).to(device)
        seconds = _time_steps(replace(method, batch_size=measured), model, images, hardware, steps)
        if seconds > _LONG_ENOUGH:
            # Once more: the first step pays for what is done once, and other work may have come between.
            again = _time_steps(replace(method, batch_size=measured), model, images, hardware, steps)
            seconds = min(seconds, again)
        if measured == whole or seconds > _LONG_ENOUGH:
            return Measured(seconds, measured, steps)
        measured, steps = min(whole, 8 * measured), 2


def _rate(images: float) -> str:
    """Images a second, with a digit that says something.

    >>> _rate(1234.5), _rate(0.4321)
    ('1234', '0.43')
    """
    return f"{images:.0f}" if images >= 10 else f"{images:.2g}"


def forecast(method: Method, model: nn.Module, shape: tuple[int, int, int, int, int], hardware: Hardware) -> str:
    """Time a few steps and say what a whole run would take."""
    count, device = shape[0], next(model.parameters()).device
    found = measure(method, model, shape, hardware)
    epochs, batches = len(method.epoch_plan()), math.ceil(count / method.batch_size)
    total = found.seconds_per_image * count * epochs
    scaled = "" if found.images == min(method.batch_size, count) else f", scaled to {method.batch_size}"
    return (
        f"forecast: about {duration(total)} for {counted(epochs, 'epoch')} of {counted(batches, 'step')}, "
        f"{_rate(1 / found.seconds_per_image)} images/s; memory {memory(device)} "
        f"(measured: {counted(found.steps, 'step')} of {counted(found.images, 'image')} on {device.type}{scaled})"
    )
