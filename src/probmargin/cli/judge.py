"""Commands that judge a model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from probmargin.cli.app import (
    DataDirOption,
    DeviceOption,
    DownloadOption,
    ImageSizeOption,
    app,
    is_first_process,
    show,
    show_row,
)
from probmargin.core.settings import MOST_SEED
from probmargin.core.speech import silent

RunArgument = Annotated[Path | None, typer.Argument(help="folder of a run")]
ModelOption = Annotated[str | None, typer.Option("--model", help="a model that was not trained here")]
NormOption = Annotated[str | None, typer.Option("--norm", help="Linf or L2")]
EpsOption = Annotated[str | None, typer.Option("--eps", help="radius, such as 8/255; the run's own unless given")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, max=MOST_SEED, help="of the attacks' random starts")]
OwnDataOption = Annotated[str | None, typer.Option("--data", help="the run's own unless given")]
CheckpointOption = Annotated[
    Path | None, typer.Option("--checkpoint", help="its weights; of a run another state, such as its best")
]


@app.command(short_help="Judge a model on clean and attacked images.")
def evaluate(
    run: RunArgument = None,
    attacks: Annotated[str, typer.Option("--attacks", help="names from: probmargin list attacks")] = "nat,pgd-20,cw",
    model: ModelOption = None,
    checkpoint: CheckpointOption = None,
    data: OwnDataOption = None,
    data_dir: DataDirOption = None,
    download: DownloadOption = False,
    image_size: ImageSizeOption = None,
    num_examples: Annotated[int | None, typer.Option("--num-examples", help="only the first N test images")] = None,
    aa_examples: Annotated[
        int | None, typer.Option("--aa-examples", help="AutoAttack on the first N of them, labelled so")
    ] = None,
    norm: NormOption = None,
    eps: EpsOption = None,
    protocol: Annotated[str | None, typer.Option("--protocol", help="standard or official-1000")] = None,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="caps memory")] = None,
    search_precision: Annotated[
        str | None, typer.Option("--search-precision", help="of searches on CUDA: bf16, tf32 or float32; auto")
    ] = None,
    shard: Annotated[str | None, typer.Option("--shard", help="i/n: only the i-th of n parts of the test set")] = None,
    save_adversarial: Annotated[
        Path | None, typer.Option("--save-adversarial", help="FILE.npz for the worst images, as float32 and uint8")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="FILE.json for the results; a run's folder otherwise")
    ] = None,
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
        download=download,
        image_size=image_size,
        attacks=tuple(name.strip() for name in attacks.split(",") if name.strip()),
        num_examples=num_examples,
        aa_examples=aa_examples,
        norm=norm,
        eps=eps,
        protocol=protocol,
        seed=seed,
        device=device,
        batch_size=batch_size,
        search_precision=search_precision,
        shard=shard,
        save_adversarial=save_adversarial,
        out=out,
        fresh=fresh,
    )
    results, path = evaluate_subject(request, log=show if is_first_process() else silent)
    if is_first_process():
        _print_results(results, path)


def _print_results(results: dict[str, Any], path: Path | None) -> None:
    from probmargin.evaluation.summary import closing_lines

    for line in closing_lines(results):
        show(line)
    if path is not None:
        show(f"written to {path}")


@app.command()
def merge(
    run: Annotated[Path, typer.Argument(help="folder of a run, or the FILE.json its shards lie beside")],
) -> None:
    """Join the shards of an evaluation into one."""
    from probmargin.evaluation.places import merge as merge_shards

    _print_results(*merge_shards(run, show))


@app.command()
def audit(
    run: RunArgument = None,
    surrogate: Annotated[Path | None, typer.Option("--surrogate", help="run whose adversarial images to try")] = None,
    model: ModelOption = None,
    checkpoint: CheckpointOption = None,
    data: OwnDataOption = None,
    data_dir: DataDirOption = None,
    download: DownloadOption = False,
    image_size: ImageSizeOption = None,
    num_examples: Annotated[int | None, typer.Option("--num-examples", help="the first N test images; 200")] = None,
    norm: NormOption = None,
    eps: EpsOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = None,
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
        download=download,
        image_size=image_size,
        num_examples=num_examples,
        norm=norm,
        eps=eps,
        seed=seed,
        device=device,
        out=out,
    )
    _, path = audit_subject(request, surrogate, show_row)
    if path is not None:
        show(f"written to {path}")
