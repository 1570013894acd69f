"""What is exported: a run's model, its data, and what is known about both."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from probmargin.attacks.balls import Norm
from probmargin.core.errors import UsageError
from probmargin.core.shell import judging, typed
from probmargin.core.speech import Say
from probmargin.data.dataset import DataSet
from probmargin.engine.files import read_json_object
from probmargin.engine.shapes import misfit_audit, misfit_evaluation
from probmargin.evaluation.parts import model_code_hash, weights_hash
from probmargin.evaluation.run_data import data_of, is_own
from probmargin.evaluation.subject import first_images
from probmargin.methods.method import Method
from probmargin.models.build import origin
from probmargin.models.checks import check_model
from probmargin.models.own_code import settings_of_layers
from probmargin.runs.run import Run, open_run
from probmargin.training.validation import ball_of

NUM_EXAMPLES = 256
"""Test images on which a file is compared with the original."""


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """An export as asked for."""

    run: Path
    format: str
    out: Path
    checkpoint: Path | None = None
    """A state of the run; its last unless given."""
    results: Path | None = None
    """What `evaluate --out` wrote of these very weights; the run's own results unless given."""
    data: str | None = None
    """The run's own unless given."""
    data_dir: Path | None = None
    licence: str | None = None
    num_examples: int | None = None
    model: nn.Module | None = None
    """The trained model where it cannot be built again from the run's record."""
    data_set: DataSet | None = None
    """The data where the run's record has no name that can be loaded."""


@dataclass(frozen=True)
class Exported:
    """A model on its way into a file."""

    run: Run
    record: dict[str, Any]
    recipe: Method
    model: nn.Module
    """In eval mode, on the CPU, normalisation inside."""
    data: DataSet
    x: torch.Tensor
    """Test images for the comparison, with labels."""
    labels: torch.Tensor
    evaluation: dict[str, Any] | None
    """What was measured on these very weights."""
    audit: dict[str, Any] | None
    """What an audit of these very weights found."""
    epochs: int
    """How many epochs these weights were trained."""
    changed: tuple[str, ...] = ()
    """Files that the network is written in and that are not as they were in training."""
    state: Path | None = None
    """Where these weights lie, if they are not the run's last."""

    @property
    def settings(self) -> dict[str, Any] | None:
        """What `build_model` takes beside the name; None for a model that was given as an object."""
        return self.record.get("model_settings")

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the model's classes, in the order of its outputs."""
        return tuple(self.record.get("class_counts") or self.data.classes)

    @property
    def ball(self) -> tuple[Norm, float]:
        """The norm and radius the recipe trains for."""
        return ball_of(self.recipe)


def open_exported(request: ExportRequest, log: Say) -> Exported:
    """Rebuild the run's model and read its data."""
    run = open_run(request.run)
    record = run.record
    if request.model is None and record.get("model_settings") and (line := origin(record["model"])):
        log(line)
    model, epochs = _model(run, request, log)
    model = model.to("cpu").eval()
    built = settings_of_layers(model)
    data = request.data_set or data_of(run, request.data, request.data_dir)
    if request.data_set is None and request.data is None and not is_own(run, data):
        raise UsageError(
            f"{data.name} is not what {run.path} was trained on, it has changed since: bring it back, or check the "
            f"file on it as other data with --data {typed(data.name)}"
        )
    count = min(NUM_EXAMPLES, len(data.test)) if request.num_examples is None else request.num_examples
    test = first_images(data.test, count)
    check_model(model, (data.channels, *data.image_size), data.num_classes, record["model"])
    identity = _Identity(weights_hash(model), model_code_hash(model, record["model"], built))
    if request.results is None:
        evaluation = _evaluation(run, identity, log, is_last=request.checkpoint is None)
    else:
        evaluation = _given(request.results, run, identity)
    return Exported(
        run=run,
        record=record,
        recipe=run.recipe,
        model=model,
        data=data,
        x=test.floats(),
        labels=test.labels,
        evaluation=evaluation,
        audit=_audit(run, identity),
        epochs=epochs,
        changed=tuple(run.changed_since(model)),
        state=request.checkpoint,
    )


@dataclass(frozen=True)
class _Identity:
    """What results of a model are known by."""

    weights: str
    code: str | None
    """Of a network of the user's own."""

    def misfit(self, found: dict[str, Any], *, unnamed: bool = False) -> str:
        """Of what else results are; "" where of this model, as those that name no weights may be known to be."""
        if found.get("weights", self.weights if unnamed else None) != self.weights:
            return "another state"
        return "the network as it was before" if found.get("model_code", self.code) != self.code else ""


def _model(run: Run, request: ExportRequest, log: Say) -> tuple[nn.Module, int]:
    """The model of the state asked for, as it was given, or of the latest whole state, and the epochs behind it."""
    if request.model is not None and request.checkpoint is None:
        return request.model, len(run.metrics)
    _, state, notes = run.load_state(request.checkpoint)
    model = run.rebuild(state.part("ema") or state.part("model"))
    for note in [*notes, *([] if request.checkpoint else run.unfinished(state)), *run.edited(model)]:
        log(note)
    return model, int(state.facts["epoch"])


def _evaluation(run: Run, identity: _Identity, log: Say, *, is_last: bool) -> dict[str, Any] | None:
    """The run's evaluation, unless it is of another model than this."""
    if not run.evaluation_path.exists():
        return None
    found = read_json_object(run.evaluation_path, misfit_evaluation)
    # Results that do not say of which weights they are, are of the run's last.
    if other := identity.misfit(found, unnamed=is_last):
        command = judging(run.record, "evaluate", run.path) if is_last else ""
        fix = f"; judge it with: {command}" if command else ""
        log(f"{run.evaluation_path} is of {other} and is left out{fix}")
        return None
    return found


def _audit(run: Run, identity: _Identity) -> dict[str, Any] | None:
    """The run's audit, unless it is of another model than this."""
    if not run.audit_path.exists():
        return None
    found = read_json_object(run.audit_path, misfit_audit)
    return None if identity.misfit(found) else found


def _given(path: Path, run: Run, identity: _Identity) -> dict[str, Any]:
    """Results that lie in a file of their own, if they are of this model and of the run's test images."""
    if not path.exists():
        raise UsageError(
            f"there are no results {path}; write them with: probmargin evaluate {typed(run.path)} --out FILE"
        )
    found = read_json_object(path, misfit_evaluation)
    if found.get("weights") != identity.weights:
        raise UsageError(f"--results {path} is of other weights; evaluate the state that is exported, by --checkpoint")
    if other := identity.misfit(found):
        raise UsageError(f"--results {path} is of {other}: evaluate it again")
    if found.get("data_fingerprint") != run.record.get("data_fingerprint"):
        raise UsageError(f"--results {path} is of other images than the run's; evaluate it without --data")
    return found
