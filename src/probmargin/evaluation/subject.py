"""What is judged: a run of ours or anybody's model, on which images, at which radius."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from probmargin.attacks.balls import Norm
from probmargin.core.errors import UsageError, unknown_name
from probmargin.core.records import coerce, parse_number
from probmargin.data.dataset import DataSet
from probmargin.data.loader import load
from probmargin.engine.checkpoints import load_weights
from probmargin.engine.devices import pick_device
from probmargin.engine.environment import commit, hardware, versions
from probmargin.engine.files import write_json
from probmargin.evaluation.evaluate import EvaluationSettings, evaluate
from probmargin.evaluation.protocol import PROTOCOLS
from probmargin.models.build import build_model, check_model
from probmargin.runs.run import Run, open_run


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """An evaluation as asked for; what is None comes from the run, the protocol or the defaults."""

    run: Path | None = None
    model: str | None = None
    checkpoint: Path | None = None
    data: str | None = None
    data_dir: Path | None = None
    attacks: tuple[str, ...] = ("nat", "pgd-20")
    num_examples: int | None = None
    norm: str | None = None
    eps: str | None = None
    protocol: str | None = None
    seed: int = 0
    device: str | None = None
    batch_size: int | None = None


def evaluate_subject(request: EvaluationRequest, log: Callable[[str], None]) -> tuple[dict[str, Any], Path | None]:
    """Judge what the request names; the results of a run are written into its folder."""
    run, model, data = _subject(request)
    settings = _settings(request, run)
    device = pick_device(request.device)
    test = data.test
    if request.num_examples is not None:
        if not 1 <= request.num_examples <= len(test):
            raise UsageError(f"--num-examples must be from 1 to {len(test)}, not {request.num_examples}")
        test = test.take(range(request.num_examples))
    test = test.to(device)
    results = evaluate(
        model.to(device), test.floats(), test.labels, attacks=request.attacks, settings=settings, log=log
    )
    results |= {"data": data.name, "hardware": hardware(device), "commit": commit(), "versions": versions()}
    if run is None:
        return results, None
    write_json(run.evaluation_path, results)
    run.update_record(evaluation=results)
    return results, run.evaluation_path


def _subject(request: EvaluationRequest) -> tuple[Run | None, nn.Module, DataSet]:
    if request.run is not None:
        if request.model or request.checkpoint:
            raise UsageError("give a run's folder, or --model with --checkpoint, not both")
        run = open_run(request.run)
        return run, run.model, load(request.data or run.record["data"], request.data_dir)
    if request.model is None or request.data is None:
        raise UsageError("give a run's folder, or --model, --checkpoint and --data")
    data = load(request.data, request.data_dir)
    model = build_model(request.model, num_classes=data.num_classes, in_channels=data.channels)
    if request.checkpoint is not None:
        weights = load_weights(request.checkpoint)
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise UsageError(f"{request.checkpoint} does not fit {request.model}: {_short(error)}") from None
    check_model(model, (data.channels, *data.image_size), data.num_classes, request.model)
    return None, model, data


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _settings(request: EvaluationRequest, run: Run | None) -> EvaluationSettings:
    """Norm and radius: as typed, else the protocol's, else those the run was trained with, else the standard's."""
    protocol = None
    if request.protocol is not None:
        if request.protocol not in PROTOCOLS:
            raise unknown_name("protocol", request.protocol, PROTOCOLS)
        protocol = PROTOCOLS[request.protocol]
    standard = PROTOCOLS["standard"]
    trained = run.recipe.attack if run else None
    eps = getattr(trained, "eps", standard.eps) if protocol is None else protocol.eps
    norm = getattr(trained, "norm", standard.norm) if protocol is None else protocol.norm
    return EvaluationSettings(
        norm=coerce(request.norm or norm, Norm, "--norm"),
        eps=parse_number(request.eps) if request.eps else eps,
        seed=request.seed,
        batch_size=request.batch_size,
        protocol=protocol.name if protocol else "custom",
    )
