"""Start, resume and finish a run."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from probmargin.core.errors import UsageError
from probmargin.data.dataset import DataSet
from probmargin.engine.checkpoints import load_weights
from probmargin.engine.devices import pick_device, pick_precision, set_precision
from probmargin.engine.environment import commit, hardware, versions
from probmargin.engine.files import write_json
from probmargin.methods.method import Method
from probmargin.models.build import build_model, check_model
from probmargin.runs.run import Run
from probmargin.training.loop import LoopSettings, Trainer, trim_metrics
from probmargin.training.progress import Reporter
from probmargin.training.state import TrainState


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """Everything a run needs beside recipe and data."""

    out: Path
    model: str | nn.Module = "resnet18"
    seed: int = 1
    device: str | None = None
    precision: str | None = None
    resume: bool = False
    normalize: bool = False
    """Put the training data's mean and standard deviation inside the model."""
    checkpoint: Path | None = None
    """Weights to start from."""
    keep_epochs: tuple[int, ...] = ()
    save_seconds: float = 10.0


def train(method: Method, data: DataSet, request: TrainRequest, reporter: Reporter) -> tuple[Run, nn.Module]:
    """Train, or go on training, and return the run with the trained model."""
    device = pick_device(request.device)
    precision, note = pick_precision(request.precision, device)
    if note:
        reporter.say(note)
    set_precision(precision)
    run = Run(request.out)
    model, name, model_settings = _make_model(request, data)
    identity = {
        "id": request.out.name,
        "recipe": method.plain(),
        "recipe_hash": method.hash(),
        "seed": request.seed,
        "data": data.name,
        "data_fingerprint": data.fingerprint,
        "model": name,
        "model_settings": model_settings,
    }
    is_resumed = _claim_folder(run, identity, request)
    state = TrainState.fresh(model.to(device), method)
    if is_resumed:
        _restore(run, state, method, reporter)
    else:
        write_json(run.recipe_path, method.plain())
        environment = {"commit": commit(), "hardware": hardware(device), "versions": versions(), "precision": precision}
        write_json(run.record_path, {**identity, **environment})
    settings = LoopSettings(
        seed=request.seed, precision=precision, keep_epochs=request.keep_epochs, save_seconds=request.save_seconds
    )
    Trainer(run, method, state, data.train.to(device), settings=settings, reporter=reporter).fit()
    _close(run, state)
    return run, _trained(state)


def _make_model(request: TrainRequest, data: DataSet) -> tuple[nn.Module, str, dict[str, Any] | None]:
    """The network, its name, and what is needed to build it again (None for an object)."""
    settings: dict[str, Any] | None = None
    if isinstance(request.model, nn.Module):
        model, name = request.model, type(request.model).__name__
    else:
        name = request.model
        settings = {"num_classes": data.num_classes, "in_channels": data.channels}
        if request.normalize:
            settings["mean_std"] = data.mean_std()
        model = build_model(name, **settings, seed=request.seed)
    if request.checkpoint is not None:
        _load_into(model, request.checkpoint)
    check_model(model, (data.channels, *data.image_size), data.num_classes, name)
    return model, name, settings


def _load_into(model: nn.Module, path: Path) -> None:
    try:
        model.load_state_dict(load_weights(path))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{path} does not fit the model: {reason}") from None


def _claim_folder(run: Run, identity: dict[str, Any], request: TrainRequest) -> bool:
    """True where an earlier start of the same run is there to go on from."""
    if not run.record_path.exists():
        if request.resume and run.path.exists() and any(run.path.iterdir()):
            raise UsageError(f"{run.path} holds no run to resume")
        return False
    if not request.resume:
        raise UsageError(f"{run.path} already holds a run; go on with --resume, or choose another --out")
    differences = _differences(run.record, json.loads(json.dumps(identity)))
    if differences:
        raise UsageError(f"{run.path} is another run: {'; '.join(differences)}; choose another --out")
    return bool(run.states())


def _differences(found: dict[str, Any], wanted: dict[str, Any], path: str = "") -> list[str]:
    """The settings in which two runs differ, each with both values."""
    rows = []
    for key, value in wanted.items():
        where, other = f"{path}{key}", found.get(key)
        if key in ("id", "recipe_hash") or value == other:
            continue
        if isinstance(value, dict) and isinstance(other, dict):
            rows += _differences(other, value, f"{where}.")
        else:
            rows.append(f"{where.removeprefix('recipe.')} is {other!r} there and {value!r} here")
    return rows


def _restore(run: Run, state: TrainState, method: Method, reporter: Reporter) -> None:
    path, saved, notes = run.load_state()
    for note in notes:
        reporter.say(note)
    state.restore(saved)
    trim_metrics(run, state.epoch)
    if state.epoch >= method.epochs:
        reporter.say(f"{run.path} is finished: all {method.epochs} epochs are trained")
    else:
        reporter.say(f"going on from {path.name} of {run.path}")


def _close(run: Run, state: TrainState) -> None:
    rate = state.images / state.seconds if state.seconds else 0.0
    run.update_record(train_seconds=round(state.seconds, 3), images_per_second=round(rate, 1))


def _trained(state: TrainState) -> nn.Module:
    if state.average:
        state.model.load_state_dict(state.average.tensors)
    return state.model.eval()
