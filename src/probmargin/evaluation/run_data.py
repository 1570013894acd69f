"""The data a run is judged on: its own, or other data whose classes are the same."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.shell import is_named, typed
from probmargin.core.speech import Say
from probmargin.core.words import radius
from probmargin.data.dataset import DataSet
from probmargin.data.loader import load
from probmargin.models.checks import check_model
from probmargin.runs.run import Run


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
    if data is None and not is_named(name):
        raise UsageError(
            f"{run.path} was trained on data from Python ({name}); give the same with --data npz:FILE, or data="
        )
    shape = image_shape_of(record, name)
    found = load(name, data_dir, download=download, image_shape=shape, needs_train=needs_train)
    if is_own(run, found):
        return found
    _check_shape(run, found)
    own = tuple(record.get("class_counts") or ())
    found = with_names(own, str(run.path), found)
    if own and len(own) != found.num_classes:
        raise UsageError(
            f"{found.name} has {found.num_classes} classes and {run.path} {len(own)}; give data with the run's own"
        )
    return found


def image_shape_of(record: Mapping[str, Any], name: str) -> tuple[int, int, int] | None:
    """What a run brought the pictures of a folder to, (C, H, W); None where they are no folder's."""
    shape = record.get("image_shape") if name.startswith("folder:") else None
    return (int(shape[0]), int(shape[1]), int(shape[2])) if shape else None


def _check_shape(run: Run, data: DataSet) -> None:
    """Refuse images of another size or colour than the run's, which many networks take without a word."""
    own, other = run.record.get("image_shape"), (data.channels, *data.image_size)
    if own and tuple(own) != other:
        trained, found = ("x".join(map(str, shape)) for shape in (own, other))
        raise UsageError(f"{data.name} has images of {found}, {run.path} was trained on {trained}: bring them to that")


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


def with_names(own: tuple[str, ...], whose: str, data: DataSet) -> DataSet:
    """The data with a model's classes; refuse as many that stand for something else than the model's."""
    if data.open_ended and own != numbered(own) and set(own) == set(numbered(own)):
        raise UsageError(
            f"the classes of {whose} are called by numbers, in the order {_listed(own)}, and {data.name} has labels "
            "without names: add an array `classes` with the names of its labels 0, 1, ..."
        )
    if not len(data.train):
        data = _among(own, data)
    elif set(own) == set(data.classes) and numbered(own) not in (own, data.classes):
        data = _in_order(own, data)
    _check_classes(own, whose, data)
    return data


def _among(own: tuple[str, ...], data: DataSet) -> DataSet:
    """Test images alone with a model's classes, of which some may not occur; those of other classes stay."""
    names = own[: data.num_classes] if data.open_ended else data.classes
    if len(names) < data.num_classes or not set(names) <= set(own):
        return data
    return _in_order(own, replace(data, classes=names))


def _in_order(own: tuple[str, ...], data: DataSet) -> DataSet:
    """The data with its labels by a model's order of the names."""
    if own[: data.num_classes] == data.classes:
        return replace(data, classes=own)
    places = torch.tensor([own.index(name) for name in data.classes])
    train, test = (replace(part, labels=places[part.labels]) for part in (data.train, data.test))
    note = f"the classes of {data.name} are found by their names, and numbered as the model has them: {_listed(own)}"
    return replace(data, train=train, test=test, classes=own, notes=(*data.notes, note), as_read=data.fingerprint)


def _check_classes(own: tuple[str, ...], whose: str, data: DataSet) -> None:
    """Refuse classes that stand for something else than a model's.

    Numbers are no names, so they are let pass, unless they are the model's own names in another order.
    """
    other = data.classes
    is_numbered = numbered(own) in (own, other)
    if own == other or len(own) != len(other) or (is_numbered and set(own) != set(other)):
        return
    if unknown := [name for name in other if name not in own]:
        raise UsageError(
            f"{data.name} has a class {unknown[0]!r}, which {whose} does not know; name its classes as the run does "
            f"({_listed(own)})"
        )
    place = next(place for place, (ours, theirs) in enumerate(zip(own, other, strict=True)) if ours != theirs)
    raise UsageError(
        f"class {place} of {data.name} is {other[place]!r}, of {whose} {own[place]!r}; name its classes as the run "
        f"does, in this order ({_listed(own)})"
    )


def numbered(names: tuple[str, ...]) -> tuple[str, ...]:
    """What as many classes are called that have no names."""
    return tuple(str(number) for number in range(len(names)))


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")


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


def lowest_label(data: DataSet) -> str:
    """A line on class numbers from 1 on, which the labels of test images alone do not betray."""
    if not data.open_ended or int(data.test.labels.min()) != 1:
        return ""
    return f"the lowest label of {data.name} is 1: class numbers start at 0; subtract 1 if yours start at 1"
