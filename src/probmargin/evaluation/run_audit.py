"""An audit of a run's model on its own test images, kept in its folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.speech import Say
from probmargin.data.dataset import DataSet
from probmargin.engine.devices import pick_device
from probmargin.engine.environment import surroundings
from probmargin.engine.files import check_file, check_replaces, holds_json, write_json
from probmargin.evaluation.audit import audit, lines
from probmargin.evaluation.parts import weights_hash
from probmargin.evaluation.run_data import say_radius
from probmargin.evaluation.subject import EvaluationRequest, first_images, open_subject, settings_of
from probmargin.models.build import check_model
from probmargin.models.checks import check_gradient
from probmargin.runs.run import Run, open_run

NUM_EXAMPLES = 200


def audit_subject(request: EvaluationRequest, surrogate: Path | None, log: Say) -> tuple[dict[str, Any], Path | None]:
    """Audit what the request names; a run's audit.json lies in its folder, another model's at `out`."""
    if request.out is not None and (
        request.run is None or request.out.resolve() != Run(request.run).audit_path.resolve()
    ):
        check_replaces(request.out, "--out", "audit", lambda path: holds_json(path, "verdict", "checks"))
    subject = open_subject(request, log)
    run, model, data = subject.run, subject.model, subject.data
    path = run.audit_path if run is not None and request.out is None else request.out
    if path is not None:
        check_file(path, "--out FILE.json")
    check_gradient(model, (data.channels, *data.image_size), str(request.run or request.model))
    count = min(NUM_EXAMPLES, len(data.test)) if request.num_examples is None else request.num_examples
    settings = settings_of(replace(request, num_examples=count), run, len(data.test))
    say_radius(run, request.eps, settings.eps, log)
    device = pick_device(request.device)
    other = None if surrogate is None else _surrogate(surrogate, data, model).to(device)
    test = first_images(data.test, count).to(device)
    result = audit(
        # A new network is in training mode; this one was built here, so that says nothing about its owner's habits.
        model.to(device).eval(),
        test.floats(),
        test.labels,
        settings.norm,
        settings.eps,
        surrogate=other,
        seed=settings.seed,
    )
    result |= {"data": data.name, "weights": weights_hash(model), "surrogate": str(surrogate) if surrogate else None}
    result |= {"model_code": subject.code} if subject.code else {}
    result |= surroundings(device)
    for line in lines(result):
        log(line)
    if path is not None:
        write_json(path, result)
    return result, path


def _surrogate(path: Path, data: DataSet, audited: nn.Module) -> Any:
    model = open_run(path).model
    # A network that masks another has its weights, and is of another kind.
    if type(model) is type(audited) and weights_hash(model) == weights_hash(audited):
        raise UsageError(f"--surrogate {path} has the weights of the model that is audited: name another model's run")
    try:
        check_model(model, (data.channels, *data.image_size), data.num_classes, str(path))
    except UsageError as error:
        raise UsageError(f"--surrogate: {error}; give a run on the same data") from None
    return model
