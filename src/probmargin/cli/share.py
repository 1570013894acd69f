"""Commands that hand a model on, or take one over."""

from pathlib import Path
from typing import Annotated

import typer

from probmargin.cli.app import DataDirOption, app, show


@app.command(short_help="Write a run's model to a file, with a model card.")
def export(
    run: Annotated[Path, typer.Argument(help="folder of a run")],
    format_name: Annotated[
        str, typer.Option("--format", help="safetensors, torch-export, onnx or robustbench (a folder)")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="file, or folder of a bundle; its card is put beside it")],
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="a state of the run, such as its best; the last")
    ] = None,
    results: Annotated[
        Path | None, typer.Option("--results", help="for the card: what evaluate --out wrote of that state")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="to check the file on; the run's own unless given")] = None,
    data_dir: DataDirOption = None,
    licence: Annotated[
        str | None, typer.Option("--licence", "--license", help="for the card, such as MIT or CC-BY-4.0")
    ] = None,
    num_examples: Annotated[
        int | None, typer.Option("--num-examples", help="test images to check the file on; 256")
    ] = None,
) -> None:
    """Write a run's model to a file, with a model card; the file is read again and checked against the model."""
    from probmargin.export.export import export as export_run
    from probmargin.export.subject import ExportRequest

    request = ExportRequest(
        run=run,
        format=format_name,
        out=out,
        checkpoint=checkpoint,
        results=results,
        data=data,
        data_dir=data_dir,
        licence=licence,
        num_examples=num_examples,
    )
    export_run(request, show)


@app.command("import")
def import_(
    weights: Annotated[Path, typer.Argument(help=".pt, .pth or .safetensors; read without running code")],
    layout: Annotated[str, typer.Option("--layout", help="trades, awp, gairat or robustbench")],
    model: Annotated[str, typer.Option("--model", help="resnet18, preact-resnet18 or wrn-D-W")],
    out: Annotated[Path, typer.Option("--out", "-o", help="W.safetensors, which other commands take as a checkpoint")],
    mean: Annotated[
        str | None, typer.Option("--mean", help="what images are normalised by, one number a channel")
    ] = None,
    std: Annotated[str | None, typer.Option("--std", help="the same: standard deviations")] = None,
    partial: Annotated[bool, typer.Option("--partial", help="write what fits, though not everything does")] = False,
) -> None:
    """Bring weights of another repository into one of our models."""
    from probmargin.core.records import coerce
    from probmargin.export.importing import ImportRequest, import_weights

    request = ImportRequest(
        weights=weights,
        layout=layout,
        model=model,
        out=out,
        mean=coerce(mean, tuple[float, ...], "--mean") if mean else None,
        std=coerce(std, tuple[float, ...], "--std") if std else None,
        partial=partial,
    )
    import_weights(request, show)
