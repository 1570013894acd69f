"""The command line: parses, calls, prints."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probmargin._version import __version__
from probmargin.core.errors import UsageError

if TYPE_CHECKING:
    from probmargin.data.dataset import DataSet
    from probmargin.methods.method import Method

app = typer.Typer(
    name="probmargin",
    help="Train and judge adversarially robust image classifiers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


def _is_first_process() -> bool:
    """Under torchrun only one process speaks."""
    return os.environ.get("RANK", "0") == "0"


def _version(asked: bool) -> None:
    if asked:
        _print(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train and judge adversarially robust image classifiers."""


@app.command("list")
def list_names(
    kind: Annotated[
        str | None, typer.Argument(help="methods, margins, weights, attacks, models or data; all if left out")
    ] = None,
) -> None:
    """Print the names that other commands take."""
    from probmargin.api import catalogue

    for line in catalogue(kind):
        _print(line)


DataOption = Annotated[str, typer.Option("--data", help="digits, cifar10, cifar100, svhn, folder:PATH or npz:FILE")]
DataDirOption = Annotated[Path | None, typer.Option("--data-dir", help="folder with the data set's own files")]


@app.command()
def train(
    out: Annotated[Path, typer.Option("--out", help="folder of the run")],
    method: Annotated[str, typer.Option("--method", help="see: probmargin list methods")] = "mail-trades",
    data: DataOption = "cifar10",
    data_dir: DataDirOption = None,
    download: Annotated[bool, typer.Option("--download", help="fetch the data set where it is not there")] = False,
    image_size: Annotated[int | None, typer.Option("--image-size", help="resize images of a folder")] = None,
    model: Annotated[str, typer.Option("--model", help="see: probmargin list models")] = "resnet18",
    preset: Annotated[str, typer.Option("--preset", help="paper, official or official-2021")] = "paper",
    epochs: Annotated[int | None, typer.Option("--epochs", help="scales the schedule to this length")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="over all processes")] = None,
    seed: Annotated[int, typer.Option("--seed")] = 1,
    settings: Annotated[list[str] | None, typer.Option("--set", help="PATH=VALUE, such as attack.eps=8/255")] = None,
    recipe: Annotated[Path | None, typer.Option("--recipe", help="a recipe.json, instead of --method")] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu or cuda; the best there is")] = None,
    precision: Annotated[str | None, typer.Option("--precision", help="bf16, tf32 or fp32, of the network")] = None,
    compile_mode: Annotated[str, typer.Option("--compile", help="default, max-autotune or off, on CUDA")] = "default",
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out")] = False,
    normalize: Annotated[bool, typer.Option("--normalize", help="mean and std of the data inside the model")] = False,
    checkpoint: Annotated[Path | None, typer.Option("--checkpoint", help="weights to start from")] = None,
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
        str | None, typer.Option("--label-noise", help="wrong training labels: symmetric:0.2")
    ] = None,
    sync_bn: Annotated[bool, typer.Option("--sync-bn", help="batch norm over all processes (CUDA)")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the resolved recipe and a forecast")] = False,
) -> None:
    """Train a model."""
    from probmargin.api import load_data
    from probmargin.core.records import coerce
    from probmargin.training.dry_run import dry_run as forecast_run
    from probmargin.training.progress import Reporter
    from probmargin.training.train import TrainRequest, train as run_training

    def load() -> "DataSet":
        return load_data(data, data_dir, download=download, image_size=image_size)

    resolved = _resolve(method, recipe, preset, data, model, epochs, batch_size, settings)
    if dry_run:
        _print_recipe(resolved)
        _print(forecast_run(resolved, data=data, load=load, model=model, device=device))
        return
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
        fork=fork,
        keep_epochs=coerce(keep_epochs, tuple[int, ...], "--keep-epochs"),
        validation=validation,
        validation_every=validation_every,
        early_stopping=early_stopping,
        monitor=monitor,
        monitor_every=monitor_every,
        dynamics=dynamics,
        label_noise=label_noise,
        sync_bn=sync_bn,
    )
    reporter = Reporter(quiet=not _is_first_process())
    run, _ = run_training(resolved, load(), request, reporter)
    reporter.say(f"trained {resolved.method} on {data}: {run.path}")
    reporter.say(f"judge it with: probmargin evaluate {run.path}")


def _resolve(
    method: str,
    recipe: Path | None,
    preset: str,
    data: str,
    model: str,
    epochs: int | None,
    batch_size: int | None,
    settings: list[str] | None,
) -> "Method":
    from probmargin.methods.plain import parse_assignments
    from probmargin.methods.resolve import read_recipe, resolve

    return resolve(
        read_recipe(recipe) if recipe else method,
        preset=preset,
        data=data,
        model=model,
        epochs=epochs,
        batch_size=batch_size,
        settings=parse_assignments(settings or ()),
    )


def _print_recipe(method: "Method") -> None:
    import json

    _print(json.dumps(method.plain(), indent=1))
    _print(f"recipe hash {method.hash()}")


@app.command()
def evaluate(
    run: Annotated[Path | None, typer.Argument(help="folder of a run")] = None,
    attacks: Annotated[str, typer.Option("--attacks", help="names from: probmargin list attacks")] = "nat,pgd-20,cw",
    model: Annotated[str | None, typer.Option("--model", help="a model that was not trained here")] = None,
    checkpoint: Annotated[Path | None, typer.Option("--checkpoint", help="its weights")] = None,
    data: Annotated[str | None, typer.Option("--data", help="the run's own unless given")] = None,
    data_dir: DataDirOption = None,
    num_examples: Annotated[int | None, typer.Option("--num-examples", help="only the first N test images")] = None,
    norm: Annotated[str | None, typer.Option("--norm", help="Linf or L2")] = None,
    eps: Annotated[str | None, typer.Option("--eps", help="radius, such as 8/255; the run's own unless given")] = None,
    protocol: Annotated[str | None, typer.Option("--protocol", help="standard or official-1000")] = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    device: Annotated[str | None, typer.Option("--device")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="caps memory")] = None,
    shard: Annotated[str | None, typer.Option("--shard", help="i/n: only the i-th of n parts of the test set")] = None,
    save_adversarial: Annotated[
        Path | None, typer.Option("--save-adversarial", help="FILE.npz for the worst images, as float32 and uint8")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="FILE.json for the results")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="do not go on from stored partial results")] = False,
) -> None:
    """Judge a model on clean and attacked images; started again, it goes on where it was."""
    from probmargin.evaluation.subject import EvaluationRequest, evaluate_subject

    request = EvaluationRequest(
        run=run,
        model=model,
        checkpoint=checkpoint,
        data=data,
        data_dir=data_dir,
        attacks=tuple(name.strip() for name in attacks.split(",") if name.strip()),
        num_examples=num_examples,
        norm=norm,
        eps=eps,
        protocol=protocol,
        seed=seed,
        device=device,
        batch_size=batch_size,
        shard=shard,
        save_adversarial=save_adversarial,
        out=out,
        fresh=fresh,
    )
    results, path = evaluate_subject(request, log=_print)
    if _is_first_process():
        _print_results(results, path)


def _print_results(results: dict[str, Any], path: Path | None) -> None:
    from probmargin.evaluation.summary import closing_lines

    for line in closing_lines(results):
        _print(line)
    if path is not None:
        _print(f"written to {path}")


@app.command()
def merge(
    run: Annotated[Path, typer.Argument(help="folder of a run, or the FILE.json its shards lie beside")],
) -> None:
    """Join the shards of an evaluation into one."""
    from probmargin.evaluation.places import merge as merge_shards

    _print_results(*merge_shards(run))


@app.command()
def audit(
    run: Annotated[Path | None, typer.Argument(help="folder of a run")] = None,
    surrogate: Annotated[Path | None, typer.Option("--surrogate", help="run whose adversarial images to try")] = None,
    model: Annotated[str | None, typer.Option("--model", help="a model that was not trained here")] = None,
    checkpoint: Annotated[Path | None, typer.Option("--checkpoint", help="its weights")] = None,
    data: Annotated[str | None, typer.Option("--data", help="the run's own unless given")] = None,
    data_dir: DataDirOption = None,
    num_examples: Annotated[int | None, typer.Option("--num-examples", help="the first N test images; 200")] = None,
    norm: Annotated[str | None, typer.Option("--norm", help="Linf or L2")] = None,
    eps: Annotated[str | None, typer.Option("--eps", help="radius, such as 8/255; the run's own unless given")] = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    device: Annotated[str | None, typer.Option("--device")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="FILE.json for the result")] = None,
) -> None:
    """Look for signs that a model's robustness is not real."""
    from probmargin.evaluation.run_audit import audit_subject
    from probmargin.evaluation.subject import EvaluationRequest

    request = EvaluationRequest(
        run=run,
        model=model,
        checkpoint=checkpoint,
        data=data,
        data_dir=data_dir,
        num_examples=num_examples,
        norm=norm,
        eps=eps,
        seed=seed,
        device=device,
        out=out,
    )
    _, path = audit_subject(request, surrogate, _print)
    if path is not None:
        _print(f"written to {path}")


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="table1 ... table7, table4-svhn, table4-cifar100 or two-by-two")
    ] = None,
    trials: Annotated[int | None, typer.Option("--trials", help="seeds 1 to N; the paper's 5, smoke 1")] = None,
    only: Annotated[str, typer.Option("--only", help="ROW,ROW: only these rows; --dry-run prints them")] = "",
    data_dir: DataDirOption = None,
    scale: Annotated[str, typer.Option("--scale", help="full, or smoke: the same grid on digits, on a CPU")] = "full",
    executor: Annotated[str, typer.Option("--executor", help="local (one run per GPU) or ray")] = "local",
    address: Annotated[str | None, typer.Option("--address", help="of a Ray cluster, such as auto")] = None,
    gpus_per_run: Annotated[
        float | None, typer.Option("--gpus-per-run", help="with ray: 0.5 puts two runs on one GPU")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print rows, runs and a time forecast")] = False,
    render: Annotated[bool, typer.Option("--render", help="make the table from the records there are")] = False,
    out: Annotated[Path, typer.Option("--out", help="folder for the runs")] = Path("runs/reproduce"),
    keep_records: Annotated[
        Path | None, typer.Option("--keep-records", help="folder for copies of the records; OUT/records")
    ] = None,
    aa_examples: Annotated[
        int | None, typer.Option("--aa-examples", help="AutoAttack on the first N test images, labelled so")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu or cuda; the best there is")] = None,
) -> None:
    """Reproduce a table of the paper: run what is missing, then print it; started again, it goes on."""
    from probmargin.experiments import reproduce as experiments

    request = experiments.ReproduceRequest(
        name=name,
        scale=scale,
        trials=trials,
        only=tuple(row.strip() for row in only.split(",") if row.strip()),
        aa_examples=aa_examples,
        data_dir=data_dir,
        device=device,
        out=out,
        keep_records=keep_records,
        executor=executor,
        address=address,
        gpus_per_run=gpus_per_run,
    )
    if dry_run:
        experiments.dry_run(request, _print)
    elif render:
        experiments.render(request, _print)
    elif failed := experiments.reproduce(request, _print):
        _fail(f"{len(failed)} runs failed: {', '.join(outcome.id for outcome in failed)}", 1)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="folder for the two runs")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option("--seed")] = 1,
) -> None:
    """Train AT and MAIL-TRADES on embedded data, judge both, print a table."""
    from probmargin.experiments.demo import run_demo

    run_demo(out, seed, _print)


def main() -> None:
    """Run the command line; one line and exit code 2 for wrong use, 130 when interrupted."""
    try:
        _run()
    except SystemExit as stop:
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            raise
        # Threads of gloo outlive their group and can abort a process whose interpreter ends (pytorch #179291).
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(stop.code if isinstance(stop.code, int) else int(stop.code is not None))


def _run() -> None:
    try:
        app()
    except UsageError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except Exception as error:
        _fail_or_raise(error)


def _fail_or_raise(error: Exception) -> None:
    name: Any = type(error).__name__
    if name == "Interrupted":
        _fail(str(error), 130)
    if name == "TrainingStopped":
        _fail(str(error), 1)
    if isinstance(error, OSError):
        _fail(f"{error.strerror or error}: {error.filename or 'the system gave no file name'}", 1)
    raise error


def _fail(message: str, code: int) -> None:
    # What the user can fix, or asked for, is the same in every process; anything else may be one process's own.
    if code == 1 or _is_first_process():
        sys.stderr.write(f"probmargin: {message}\n")
    sys.exit(code)
