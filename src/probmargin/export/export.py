"""Export: write aside, read again, compare, and only then put the files in their place."""

import os
import shutil
from pathlib import Path
from typing import Any

from probmargin.core.errors import UsageError, unknown_name
from probmargin.core.speech import Say
from probmargin.engine.files import aside_of, check_is_new, write_json
from probmargin.export.card import MISSING_LICENCE, make_card, markdown, not_measured
from probmargin.export.check import check_file
from probmargin.export.formats import FILES
from probmargin.export.robustbench import read_bundle, write_bundle
from probmargin.export.subject import Exported, ExportRequest, open_exported

FORMATS = (*FILES, "robustbench")


def export(request: ExportRequest, log: Say) -> Path:
    """Export a run's model with its card; a file that does not agree with the model is not left behind."""
    if request.format not in FORMATS:
        raise unknown_name("format", request.format, FORMATS)
    targets = _targets(request)
    for target in targets:
        check_is_new(target, "-o")
    subject = open_exported(request, log)
    out = request.out
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = aside_of(out)
    aside.mkdir()
    try:
        _write(request, subject, aside, log)
        # The model last: it counts once its card is there.
        for target in reversed(targets):
            os.replace(aside / target.name, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    _say(request, subject, targets, log)
    return out


def _targets(request: ExportRequest) -> list[Path]:
    """What will be there: the model, then its card."""
    out = request.out
    if not out.name:
        raise UsageError(f"-o {out} has no name; name a file or a new folder in it")
    if request.format == "robustbench":
        if out.suffix:
            raise UsageError(f"a robustbench bundle is a folder: give -o a name without {out.suffix}")
        return [out]
    suffix = FILES[request.format][2]
    if out.suffix != suffix:
        raise UsageError(f"--format {request.format} writes {suffix} files: give -o {out.with_suffix(suffix)}")
    return [out, *(out.with_name(f"{out.name}.card{kind}") for kind in (".md", ".json"))]


def _write(request: ExportRequest, subject: Exported, aside: Path, log: Say) -> None:
    """Write and compare inside the folder aside."""
    path = aside / request.out.name
    write, read = (write_bundle, read_bundle) if request.format == "robustbench" else FILES[request.format][:2]
    write(subject, path)
    check = check_file(subject, read(path, subject), has_gradients=request.format != "onnx")
    log(check.line())
    card: dict[str, Any] = make_card(subject, request.out.name, request.format, check, request.licence)
    if request.format == "robustbench":
        text, plain = path / "README.md", path / "card.json"
    else:
        text, plain = (aside / f"{request.out.name}.card{kind}" for kind in (".md", ".json"))
    text.write_text(markdown(card), encoding="utf-8")
    write_json(plain, card)


def _say(request: ExportRequest, subject: Exported, targets: list[Path], log: Say) -> None:
    for missing in not_measured(subject):
        log(f"not measured: {missing}")
    if request.licence is None:
        log(f"licence: {MISSING_LICENCE}")
    log(f"written to {', '.join(map(str, targets))}")
