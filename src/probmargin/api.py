"""The public functions: tensors in, tensors out; each works without the rest."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from probmargin.attacks.attack import Attack
from probmargin.attacks.balls import Norm
from probmargin.core.arguments import checked
from probmargin.core.autocast import outside_autocast
from probmargin.core.batch import AttackResult, LossTerms
from probmargin.core.errors import UsageError
from probmargin.core.inference import outside_inference_mode
from probmargin.core.noise import KeyedNoise
from probmargin.core.types import Images, Labels
from probmargin.data.checks import Array
from probmargin.data.dataset import DataSet
from probmargin.data.given import Given, as_data_set
from probmargin.data.loader import load as load_data
from probmargin.evaluation.evaluate import EvaluationSettings
from probmargin.evaluation.given import evaluate_given
from probmargin.evaluation.protocol import aa_examples_of
from probmargin.export.export import export as export_run
from probmargin.export.formats import load_model as load_exported
from probmargin.export.importing import ImportRequest, import_weights as take_over
from probmargin.export.subject import ExportRequest
from probmargin.methods.method import Method
from probmargin.methods.pieces import (
    at_loss,
    attack,
    gairat_weight,
    hinge_weight,
    logit_margin,
    mart_loss,
    normalize_weights,
    probabilistic_margin,
    sigmoid_weight,
    step_weight,
    trades_loss,
)
from probmargin.methods.propose import propose
from probmargin.methods.resolve import resolve
from probmargin.models.checks import check_is_network
from probmargin.models.layers import Normalize
from probmargin.runs.run import Run as StoredRun, open_run
from probmargin.runs.trained import Run
from probmargin.training.drop_in import loss_recipe, recipe_loss
from probmargin.training.fork import is_tuned
from probmargin.training.names import catalogue
from probmargin.training.progress import Reporter
from probmargin.training.request import TrainRequest
from probmargin.training.train import train as run_training

__all__ = [
    "Attack",
    "AttackResult",
    "DataSet",
    "KeyedNoise",
    "LossTerms",
    "Method",
    "Normalize",
    "Run",
    "UsageError",
    "at_loss",
    "attack",
    "catalogue",
    "evaluate",
    "export",
    "gairat_weight",
    "hinge_weight",
    "import_weights",
    "load_data",
    "load_model",
    "logit_margin",
    "mail_loss",
    "mart_loss",
    "normalize_weights",
    "open_run",
    "probabilistic_margin",
    "resolve",
    "sigmoid_weight",
    "step_weight",
    "trades_loss",
    "train",
]


@checked
def mail_loss(
    model: nn.Module,
    x: Images,
    labels: Labels,
    method: str | Method = "mail-trades",
    *,
    weighted: bool = True,
    epoch: int | None = None,
    eps: float | None = None,
    step_size: float | None = None,
    num_steps: int | None = None,
    seed: int | None = None,
    all_processes: bool | None = None,
) -> torch.Tensor:
    """Attack a batch, weigh its examples and return the loss: a drop-in for anyone's own loop.

    The recipe is that of its last epoch, or, with `weighted=False`, of the last of burn-in, where every weight is one.
    Give `epoch`, from 0, where it has a schedule, as GAIRAT's lambda, FAT's steps and AWP's warm-up have: it then
    is as in that epoch of training, burn-in too, of which a named method has 100. With a method's name the attack
    takes 10 steps of 2/255 up to 8/255, unless given; a Method brings its own sizes. Without a seed, noise follows
    torch's global generator. Weights and loss are normalised over the images of all processes where the model is, or
    holds, a DistributedDataParallel, or as `all_processes` says; every process must then call.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loss = mail_loss(model, torch.rand(8, 1, 2, 2), torch.randint(3, (8,)), method="mail-at", seed=0)
    >>> loss.backward(); optimizer.step()
    """
    check_is_network(model)
    recipe = loss_recipe(method, weighted, epoch, eps=eps, step_size=step_size, num_steps=num_steps)
    return recipe_loss(model, x, labels, recipe, seed, all_processes)


@checked
@outside_autocast()
def train(
    method: str | Method = "mail-trades",
    *,
    model: str | nn.Module = "resnet18",
    data: Given = "cifar10",
    out: str | Path,
    preset: str = "paper",
    data_dir: str | Path | None = None,
    download: bool = False,
    epochs: int | None = None,
    batch_size: int | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int = 1,
    device: str | None = None,
    precision: str | None = None,
    compile: str = "default",
    resume: bool = False,
    normalize: bool = False,
    checkpoint: str | Path | None = None,
    new_head: bool = False,
    fork: str | None = None,
    keep_epochs: Sequence[int] = (),
    validation: int | None = None,
    validation_every: int | None = None,
    early_stopping: int | None = None,
    monitor: str | None = None,
    monitor_every: int = 5,
    dynamics: bool = False,
    label_noise: str | None = None,
    sync_bn: bool = False,
    placement: str = "auto",
    verbose: bool = False,
    reporter: Reporter | None = None,
) -> Run:
    """Train a model by a method and return the run, with .path, .model, .recipe and .metrics.

    `data` is a name, a DataSet, ((x, y), (x_test, y_test)) with images in [0, 1] or uint8, or two torch data sets;
    `model` a name, package.module:factory, or an nn.Module from [0, 1] images to logits. Where the data set is your
    own, eps and the length of training are proposed from it; with `verbose` that is said, and all that the command
    line says. The other arguments are those of `probmargin train`.
    """
    if not isinstance(model, str):
        check_is_network(model)
    if not isinstance(reporter, Reporter | None):
        raise UsageError(f"reporter is given as {type(reporter).__name__}: pass a Reporter, or verbose=True")
    in_files = None if placement == "auto" else placement == "files"
    dataset = as_data_set(data, data_dir, download=download, in_files=in_files)
    own = reporter or Reporter(quiet=not verbose)
    is_tuning = checkpoint is not None or is_tuned(fork)
    proposal = propose(dataset, is_tuning=is_tuning) if isinstance(method, str) else None
    recipe = resolve(
        method,
        preset=preset,
        data=proposal.scale if proposal else dataset.name,
        model=model if isinstance(model, str) else "",
        epochs=epochs,
        batch_size=batch_size,
        settings=settings or {},
    )
    if proposal:
        own.say(proposal.line(recipe))
    request = TrainRequest(
        out=Path(out),
        model=model,
        seed=seed,
        device=device,
        precision=precision,
        compile=compile,
        resume=resume,
        normalize=normalize,
        checkpoint=Path(checkpoint) if checkpoint else None,
        new_head=new_head,
        fork=fork,
        keep_epochs=tuple(keep_epochs),
        validation=validation,
        validation_every=validation_every,
        early_stopping=early_stopping,
        monitor=monitor,
        monitor_every=monitor_every,
        dynamics=dynamics,
        label_noise=label_noise,
        sync_bn=sync_bn,
        placement=placement,
    )
    run, trained = run_training(recipe, dataset, request, own)
    return Run(run.path, trained)


@checked
@outside_inference_mode()
@outside_autocast()
def evaluate(
    model: nn.Module,
    data: tuple[Array, Array] | DataLoader[Any],
    attacks: str | Sequence[str] = ("nat", "pgd-20"),
    *,
    aa_examples: int | None = None,
    norm: Norm = "Linf",
    eps: float | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Judge a model on (x, y) or a loader of both: result["nat"]["accuracy"], result["pgd-20"]["robust_accuracy"].

    Images and labels are tensors or arrays; a loader is read once, from first to last. `eps` is 8/255 in L-inf unless
    given. `aa_examples=N`: AutoAttack on the first N images, labelled so ("first"). The model is judged on the device
    it lies on, unless another is given.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    >>> result = evaluate(model, (torch.rand(6, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1, 2])), ["nat", "pgd-5"])
    >>> 0 <= result["nat"]["accuracy"] <= 1 and len(result["pgd-5"]["interval"]) == 2
    True
    """
    if eps is None and norm != "Linf":
        raise UsageError(f"eps 8/255 is a radius in Linf: pass eps as well as norm={norm!r}")
    names = tuple(name.strip() for name in attacks.split(",")) if isinstance(attacks, str) else attacks
    first = aa_examples_of(aa_examples, None, names)
    radius = 8 / 255 if eps is None else eps
    settings = EvaluationSettings(norm=norm, eps=radius, seed=seed, batch_size=batch_size, aa_examples=first)
    return evaluate_given(model, data, names, settings, device)


@checked
def export(
    run: str | Path | StoredRun,
    out: str | Path,
    *,
    format: str = "safetensors",
    checkpoint: str | Path | None = None,
    results: str | Path | None = None,
    data: Given | None = None,
    data_dir: str | Path | None = None,
    licence: str | None = None,
    num_examples: int | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write a run's model to a file, or a bundle's folder, with a model card; the file is read again and checked.

    `format` is safetensors, torch-export, onnx or robustbench. `checkpoint` is a file of the run's checkpoints, such
    as best.safetensors; its last state unless given. `results` is a file of `probmargin evaluate --out` for the card of
    such a state. `data` is what the file is checked on: the run's own unless given, which it must be where training
    data was given as arrays.
    """
    if not isinstance(run, str | Path | StoredRun):
        raise UsageError(f"run is given as {type(run).__name__}: pass its folder, or what pm.train returned")
    chosen = run if isinstance(run, StoredRun) else open_run(run)
    request = ExportRequest(
        run=chosen.path,
        format=format,
        out=Path(out),
        checkpoint=Path(checkpoint) if checkpoint else None,
        results=Path(results) if results else None,
        data_dir=Path(data_dir) if data_dir else None,
        licence=licence,
        num_examples=num_examples,
        model=chosen.trained if isinstance(chosen, Run) else None,
        data_set=None if data is None else as_data_set(data, data_dir),
    )
    return export_run(request, log)


@checked
def load_model(path: str | Path, model: str | None = None) -> nn.Module:
    """The network of a file by `export` or `import_weights`, in eval mode; one's own is named by `model` as well."""
    return load_exported(Path(path), model)


@checked
def import_weights(
    weights: str | Path,
    out: str | Path,
    *,
    layout: str,
    model: str,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    partial: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> nn.Module:
    """Bring others' weights (layout trades, awp, gairat or robustbench) into one of our models and into a file."""
    request = ImportRequest(
        weights=Path(weights),
        layout=layout,
        model=model,
        out=Path(out),
        mean=None if mean is None else tuple(mean),
        std=None if std is None else tuple(std),
        partial=partial,
    )
    return take_over(request, log)
