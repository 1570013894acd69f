"""Commands that make a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probmargin.cli.app import (
    DataDirOption,
    DataOption,
    DeviceOption,
    DownloadOption,
    ImageSizeOption,
    app,
    is_first_process,
    show,
)
from probmargin.core.errors import UsageError
from probmargin.core.settings import MOST_SEED
from probmargin.core.shell import typed

if TYPE_CHECKING:
    from probmargin.methods.method import Method


@app.command()
def train(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", help="folder of the run")],
    method: Annotated[str, typer.Option("--method", help="see: probmargin list methods")] = "mail-trades",
    data: DataOption = "cifar10",
    data_dir: DataDirOption = None,
    download: DownloadOption = False,
    image_size: ImageSizeOption = None,
    model: Annotated[str, typer.Option("--model", help="see: probmargin list models")] = "resnet18",
    preset: Annotated[str, typer.Option("--preset", help="paper, official or official-2021")] = "paper",
    epochs: Annotated[int | None, typer.Option("--epochs", help="scales the schedule to this length")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="over all processes")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MOST_SEED, help="of weights, order and noise")] = 1,
    settings: Annotated[list[str] | None, typer.Option("--set", help="PATH=VALUE, such as attack.eps=8/255")] = None,
    recipe: Annotated[Path | None, typer.Option("--recipe", help="a recipe.json, instead of --method")] = None,
    device: DeviceOption = None,
    precision: Annotated[str | None, typer.Option("--precision", help="bf16, tf32 or fp32, of the network")] = None,
    compile_mode: Annotated[
        str, typer.Option("--compile", help="default, max-autotune or off; a CPU compiles nothing")
    ] = "default",
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out")] = False,
    normalize: Annotated[bool, typer.Option("--normalize", help="mean and std of the data inside the model")] = False,
    checkpoint: Annotated[Path | None, typer.Option("--checkpoint", help="weights to start from")] = None,
    new_head: Annotated[
        bool, typer.Option("--new-head", help="start the checkpoint's last layer afresh, for other classes")
    ] = False,
    fork: Annotated[str | None, typer.Option("--fork", help="RUN@EPOCH: start from another run's state")] = None,
    keep_epochs: Annotated[str, typer.Option("--keep-epochs", help="keep the states after these epochs: 70,76")] = "",
    validation: Annotated[
        int | None, typer.Option("--validation", help="hold out N training images; keep the best state on them")
    ] = None,
    validation_every: Annotated[
        int | None, typer.Option("--validation-every", help="epochs between two looks; each one after burn-in")
    ] = None,
    early_stopping: Annotated[
        int | None, typer.Option("--early-stopping", help="stop after N looks without a better one")
    ] = None,
    monitor: Annotated[
        str | None, typer.Option("--monitor", help="curves on test images, never for selection: pgd-20:1000,cw:1000")
    ] = None,
    monitor_every: Annotated[int, typer.Option("--monitor-every", help="epochs between two monitors")] = 5,
    dynamics: Annotated[bool, typer.Option("--dynamics", help="margin, weight, LPS of each example and epoch")] = False,
    label_noise: Annotated[
        str | None, typer.Option("--label-noise", help="wrong training labels: symmetric:0.2, pair:0.2 or instance:0.2")
    ] = None,
    sync_bn: Annotated[bool, typer.Option("--sync-bn", help="batch norm over all processes (CUDA)")] = False,
    placement: Annotated[
        str, typer.Option("--placement", help="training images on the device, host or in files; what fits")
    ] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the resolved recipe and a forecast")] = False,
) -> None:
    """Train a model."""
    import functools

    from probmargin.api import load_data
    from probmargin.methods.plain import parse_assignments
    from probmargin.methods.propose import propose
    from probmargin.methods.resolve import read_recipe, resolve, title
    from probmargin.runs.run import Run
    from probmargin.training.dry_run import dry_run as forecast_run
    from probmargin.training.fork import is_tuned
    from probmargin.training.progress import Reporter
    from probmargin.training.refusals import parse_epochs
    from probmargin.training.request import TrainRequest
    from probmargin.training.train import train as run_training

    _refuse_two_recipes(context, recipe)
    _refuse_forgotten_plugin(out if resume else None, recipe and recipe.parent, fork and fork.rpartition("@")[0])
    if monitor is None and _is_given(context, "monitor_every"):
        raise UsageError("--monitor-every is for curves on test images: give --monitor, such as --monitor pgd-20:1000")
    if resume:
        _refuse_forgotten_data(context, out, data)
    reporter = Reporter(quiet=not is_first_process())
    in_files = None if placement == "auto" else placement == "files"
    load = functools.cache(
        lambda: load_data(data, data_dir, download=download, image_size=image_size, in_files=in_files)
    )
    own = recipe is None and ":" in data
    proposal = propose(load(), is_tuning=checkpoint is not None or is_tuned(fork)) if own else None
    resolved = resolve(
        read_recipe(recipe) if recipe else method,
        preset=preset,
        data=proposal.scale if proposal else data,
        model=model,
        epochs=epochs,
        batch_size=batch_size,
        settings=parse_assignments(settings or ()),
    )
    if proposal:
        reporter.say(proposal.line(resolved))
    request = TrainRequest(
        out=out,
        model=model,
        seed=seed,
        device=device,
        precision=precision,
        compile=compile_mode,
        resume=resume,
        normalize=normalize,
        checkpoint=checkpoint,
        new_head=new_head,
        fork=fork,
        keep_epochs=parse_epochs(keep_epochs, resolved.epochs),
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
    if dry_run:
        _print_recipe(resolved)
        show(forecast_run(resolved, request, data=data, load=load))
        return
    before = Run(out).record.get("train_seconds") if resume and Run(out).record_path.exists() else None
    run, _ = run_training(resolved, load(), request, reporter)
    if before is not None and run.record["train_seconds"] == before:
        return  # it was finished, which has been said
    reporter.say(f"trained {title(resolved)} on {data}: {run.path}")
    plugins = [word for name in context.obj or () for word in ("--plugin", name)]
    reporter.say(f"judge it with: probmargin {typed(*plugins, 'evaluate', run.path)}")


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether an option was typed, be it as its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse_two_recipes(context: typer.Context, recipe: Path | None) -> None:
    """A recipe file says which method and preset it is."""
    for name in ("method", "preset"):
        if recipe is not None and _is_given(context, name):
            raise UsageError(f"--recipe and --{name} both choose a recipe: give one, and change settings with --set")


def _refuse_forgotten_plugin(*folders: Path | str | None) -> None:
    """The runs that a command names may have components of the user's own."""
    from probmargin.runs.run import Run

    for folder in folders:
        if folder:
            Run(Path(folder)).check_plugins()


def _refuse_forgotten_data(context: typer.Context, out: Path, data: str) -> None:
    """A run goes on by the command that began it; the default in the place of its data would mislead."""
    from probmargin.runs.run import Run

    run = Run(out)
    if not run.record_path.exists() or _is_given(context, "data"):
        return
    if (own := str(run.record.get("data", data))) != data:
        raise UsageError(
            f"{out} was trained on {own}, and no --data is given: give the options it began with, and --resume"
        )


def _print_recipe(method: "Method") -> None:
    import json

    show(json.dumps(method.plain(), indent=1))
    show(f"recipe hash {method.hash()}")
