"""The data a run is judged on: its own, or other data whose classes are the same."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.shell import typed
from probmargin.core.speech import Say
from probmargin.core.words import radius
from probmargin.data.dataset import DataSet
from probmargin.data.loader import DESCRIPTIONS, load
from probmargin.models.checks import check_model
from probmargin.runs.run import Run

KINDS = {known.partition(":")[0] for known in DESCRIPTIONS}
"""Of data that can be loaded by name."""


def data_of(
    run: Run,
    data: str | None = None,
    data_dir: Path | None = None,
    *,
    download: bool = False,
    needs_train: bool = True,
) -> DataSet:
    """The data a run was trained on, in the size it was trained in, or other data with the same classes."""
    record = run.record
    name = data or str(record["data"])
    if data is None and name.partition(":")[0] not in KINDS:
        raise UsageError(f"{run.path} was trained on data from Python ({name}); give the same with --data npz:FILE")
    size = image_size_of(record, name)
    found = load(name, data_dir, download=download, image_size=size, needs_train=needs_train)
    if not len(found.train):
        found = _among(tuple(record.get("class_counts") or ()), found)
    if not is_own(run, found):
        _check_classes(run, found)
    return found


def image_size_of(record: Mapping[str, Any], name: str) -> int | None:
    """The side that a run brought the pictures of a folder to; None where loading them says it."""
    _, height, width = record.get("image_shape") or (0, 0, 1)
    return int(height) if name.startswith("folder:") and height == width else None


def is_own(run: Run, data: DataSet) -> bool:
    """Whether this is what the run was trained on."""
    return run.record.get("data_fingerprint") in (None, data.fingerprint)


def check_data(run: Run, data: DataSet, *, is_named: bool, has_out: bool) -> None:
    """A run's results are of its own data: others must not take their place, nor training images be test images."""
    if is_own(run, data):
        return
    if not is_named and not len(data.train):
        raise UsageError(
            f"{data.name} has test images alone, and {run.path} was trained on more: bring the training images back, "
            f"or judge on it as other data with --data {typed(data.name)} --out FILE"
        )
    if not is_named:
        raise UsageError(
            f"{data.name} is not what {run.path} was trained on, it has changed since: bring it back, or judge on it "
            f"as other data with --data {typed(data.name)} --out FILE"
        )
    if not has_out:
        raise UsageError(f"{data.name} is not what {run.path} was trained on: give --out FILE, its own results stay")


def check_state(run: Run, state: Path | None, out: Path | None) -> None:
    """A run's results are of its last state: those of another must not take their place."""
    own = [run.evaluation_path.resolve(), run.audit_path.resolve()]
    if state is not None and (out is None or out.resolve() in own):
        raise UsageError(f"the results in {run.path} are of its last state: give an --out FILE for those of {state}")


def _among(own: tuple[str, ...], data: DataSet) -> DataSet:
    """Test images alone with a run's classes, of which some may not occur; those of other classes stay as they are."""
    names = own[: data.num_classes] if data.open_ended else data.classes
    if len(names) < data.num_classes or not set(names) <= set(own):
        return data
    numbers = torch.tensor([own.index(name) for name in names])
    return replace(data, test=replace(data.test, labels=numbers[data.test.labels]), classes=own)


def _check_classes(run: Run, data: DataSet) -> None:
    """Refuse classes that stand for something else than the run's; numbers are no names, so they are let pass."""
    own, other = tuple(run.record.get("class_counts") or data.classes), data.classes
    if len(own) != len(other):
        raise UsageError(
            f"{data.name} has {len(other)} classes and {run.path} {len(own)}; give data with the run's own"
        )
    if own == other or _is_numbered(own) or _is_numbered(other):
        return
    place = next(place for place, (ours, theirs) in enumerate(zip(own, other, strict=True)) if ours != theirs)
    raise UsageError(
        f"class {place} of {data.name} is {other[place]!r}, of {run.path} {own[place]!r}; name its classes as the run "
        f"does, in this order ({', '.join(own[:10])}{', ...' if len(own) > 10 else ''})"
    )


def _is_numbered(names: tuple[str, ...]) -> bool:
    return names == tuple(str(number) for number in range(len(names)))


def with_classes_of(model: nn.Module, data: DataSet, name: str) -> DataSet:
    """The data, with as many classes as the model has where test labels alone do not tell."""
    shape = (data.channels, *data.image_size)
    width = check_model(model, shape, data.num_classes, name, or_more=data.open_ended)
    more = tuple(map(str, range(data.num_classes, width)))
    return replace(data, classes=data.classes + more) if more else data


def say_radius(run: Run | None, asked: str | None, eps: float, log: Say) -> None:
    """The radius of a run that was trained for none, which other runs on the same data may not share."""
    if run is not None and asked is None and run.recipe.final_attack is None:
        log(f"{run.path} was trained without an attack: eps is {radius(eps)}; give --eps to judge it as another run is")


def say_lowest(data: DataSet, log: Say) -> None:
    """Class numbers from 1 on, which the labels of test images alone do not betray."""
    if data.open_ended and int(data.test.labels.min()) == 1:
        log(f"the lowest label of {data.name} is 1: class numbers start at 0; subtract 1 if yours start at 1")
