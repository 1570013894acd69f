"""Look at the weights of a run: who carries them, who gains and loses, who looks mislabelled."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from probmargin.core.arrays import UNREADABLE
from probmargin.core.errors import UsageError
from probmargin.data.dataset import DataSet
from probmargin.data.label_noise import read_wrong_labels
from probmargin.data.loader import load
from probmargin.engine.devices import pick_device
from probmargin.evaluation.run_data import image_shape_of
from probmargin.experiments.followed import Subject, follow
from probmargin.methods.resolve import title
from probmargin.reporting.dynamics import History, Labels, disagreement, read_history, summarise
from probmargin.reporting.folder import read_folder
from probmargin.reporting.page.missing import train_command
from probmargin.runs.run import Run, open_run

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class InspectRequest:
    """Which run to look at, and how closely."""

    run: Path
    top: int = 10
    """Examples in each list."""
    measure_lps: int | None = None
    """Attack so many training images anew, to count the steps they survive."""
    data_dir: Path | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if self.top < 1 or (self.measure_lps is not None and self.measure_lps < 2):
            raise UsageError("a count is too small: give --top 1 or more and --measure-lps 2 or more")


def inspect_run(request: InspectRequest) -> dict[str, Any]:
    """Everything the dynamics of a run tell, as plain data."""
    run = open_run(request.run)
    history = _history(run, request.data_dir)
    record, recipe = run.record, run.recipe
    data, note = _data(run, request.data_dir)
    known = labels_of(run, history.index, data)
    found = summarise(history, known, burn_in=recipe.burn_in_epochs, top=request.top)
    if request.measure_lps is not None:
        if data is None or known is None:
            raise UsageError(f"--measure-lps needs the images ({note}); give the run's data with --data-dir")
        if recipe.attack is not None and not recipe.attack.records_steps:
            raise UsageError(
                f"--measure-lps needs an attack that records its steps, as pgd does, and {run.path} was trained with "
                f"{recipe.attack.registered_name}; leave it out"
            )
        found["lps"] = _measured(run, data, history, known, request)
    elif found["lps"] is not None:
        found["lps"]["source"] = "counted while training"
    facts = {
        "run": str(run.path),
        "method": title(recipe),
        "data": record["data"],
        "seed": record["seed"],
        "label_noise": record.get("label_noise"),
        "burn_in_epochs": recipe.burn_in_epochs,
        "is_attacked": recipe.attack is not None,
        "counts_steps": recipe.attack is not None and recipe.attack.records_steps,
        "notes": [note] if note else [],
    }
    return facts | found


def _history(run: Run, data_dir: Path | None) -> History:
    path = run.dynamics_path
    if path.exists():
        try:
            return read_history(path)
        except UNREADABLE as error:
            raise UsageError(
                f"{path} cannot be read ({error}); train again with --dynamics into another --out"
            ) from None
    command = train_command(read_folder(run.path), str(data_dir or ""), f"{run.path}-dynamics", "--dynamics")
    raise UsageError(
        f"{run.path} has no dynamics.npz: make a run that has one with {command or 'pm.train(dynamics=True)'}"
    )


def _data(run: Run, data_dir: Path | None) -> tuple[DataSet | None, str]:
    """The run's data set; or why it is not there, which costs no more than labels and names of classes."""
    record = run.record
    try:
        data = load(record["data"], data_dir, image_shape=image_shape_of(record, record["data"]))
    except UsageError as error:
        return None, f"labels and classes are not known: {error}"
    if data.fingerprint != record.get("data_fingerprint"):
        return None, f"labels and classes are not known: {record['data']} here is not the data the run was trained on"
    return data, ""


def labels_of(run: Run, index: Array, data: DataSet | None = None) -> Labels | None:
    """The labels a run trained on, and which of them were made wrong; None where neither file nor data tells."""
    path = run.label_noise_path
    classes, files = (data.classes, data.train_files) if data else ((), ())
    if path.exists() or run.record.get("label_noise"):
        known = read_wrong_labels(path)
        places = _places(known["index"], index)
        return Labels(known["labels"][places], classes, known["is_wrong"][places], files)
    if data is None:
        return None
    places = _places(data.train.index.cpu().numpy(), index)
    return Labels(data.train.labels.cpu().numpy()[places], classes, files=files)


def _places(source: Array, wanted: Array) -> Array:
    """Where each wanted example lies in the source."""
    order = np.argsort(source, kind="stable")
    found = order[np.clip(np.searchsorted(source[order], wanted), 0, len(source) - 1)]
    if not np.array_equal(source[found], wanted):
        raise UsageError("the run's examples are not those of its data set: give the same data")
    return np.asarray(found)


def _measured(run: Run, data: DataSet, history: History, known: Labels, request: InspectRequest) -> dict[str, Any]:
    """LPS and PM of the trained network on the first examples, by the attack of training."""
    first = np.arange(min(request.measure_lps or 0, len(history.index)))
    some, labels = history.take(first), known.take(first)
    device = pick_device(request.device)
    images = data.train.take(torch.from_numpy(_places(data.train.index.cpu().numpy(), some.index))).to(device)
    subject = Subject(
        run,
        run.model.to(device),
        images.floats(),
        torch.from_numpy(labels.labels).to(device),
        images.index,
        data.classes,
    )
    path = follow(subject, subject.attack)
    shown = some.since(run.recipe.burn_in_epochs)
    found = disagreement(shown, labels, "lps", path.lps, path.pm, request.top)
    return found | {"source": f"measured on the trained network, {len(first):,} examples"}
