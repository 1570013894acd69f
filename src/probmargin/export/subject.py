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
from probmargin.evaluation.parts import weights_hash
from probmargin.evaluation.run_data import data_of, is_own
from probmargin.evaluation.subject import first_images
from probmargin.methods.method import Method
from probmargin.models.build import origin
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
    data = request.data_set or data_of(run, request.data, request.data_dir)
    if request.data_set is None and request.data is None and not is_own(run, data):
        raise UsageError(
            f"{data.name} is not what {run.path} was trained on, it has changed since: bring it back, or check the "
            f"file on it as other data with --data {typed(data.name)}"
        )
    count = min(NUM_EXAMPLES, len(data.test)) if request.num_examples is None else request.num_examples
    test = first_images(data.test, count)
    if request.results is None:
        evaluation = _evaluation(run, model, log, is_last=request.checkpoint is None)
    else:
        evaluation = _given(request.results, run, model)
    measured = (test.floats(), test.labels, evaluation, _audit(run, model), epochs, request.checkpoint)
    return Exported(run, record, run.recipe, model, data, *measured)


def _model(run: Run, request: ExportRequest, log: Say) -> tuple[nn.Module, int]:
    """The model of the state asked for, as it was given, or of the latest whole state, and the epochs behind it."""
    if request.model is not None and request.checkpoint is None:
        return request.model, len(run.metrics)
    _, state, notes = run.load_state(request.checkpoint)
    for note in [*notes, *([] if request.checkpoint else run.unfinished(state))]:
        log(note)
    return run.rebuild(state.part("ema") or state.part("model")), int(state.facts["epoch"])


def _evaluation(run: Run, model: nn.Module, log: Say, *, is_last: bool) -> dict[str, Any] | None:
    """The run's evaluation, unless it is of other weights than these."""
    if not run.evaluation_path.exists():
        return None
    found = read_json_object(run.evaluation_path, misfit_evaluation)
    judged = found.get("weights")
    # Results that do not say of which weights they are, are of the run's last.
    if judged != weights_hash(model) if judged is not None else not is_last:
        command = judging(run.record, "evaluate", run.path) if is_last else ""
        fix = f"; judge it with: {command}" if command else ""
        log(f"{run.evaluation_path} is of another state and is left out{fix}")
        return None
    return found


def _audit(run: Run, model: nn.Module) -> dict[str, Any] | None:
    """The run's audit, unless it is of other weights than these."""
    if not run.audit_path.exists():
        return None
    found = read_json_object(run.audit_path, misfit_audit)
    return found if found.get("weights") == weights_hash(model) else None


def _given(path: Path, run: Run, model: nn.Module) -> dict[str, Any]:
    """Results that lie in a file of their own, if they are of this model and of the run's test images."""
    if not path.exists():
        raise UsageError(
            f"there are no results {path}; write them with: probmargin evaluate {typed(run.path)} --out FILE"
        )
    found = read_json_object(path, misfit_evaluation)
    if found.get("weights") != weights_hash(model):
        raise UsageError(f"--results {path} is of other weights; evaluate the state that is exported, by --checkpoint")
    if found.get("data_fingerprint") != run.record.get("data_fingerprint"):
        raise UsageError(f"--results {path} is of other images than the run's; evaluate it without --data")
    return found
