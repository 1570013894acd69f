"""What a run does not have yet, and the command that makes it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from probmargin.core.shell import is_typed, judging, program, typed
from probmargin.reporting.folder import Folder
from probmargin.reporting.page.data import RunReport

_FROM_FILES = ("cifar10", "cifar100", "svhn")


@dataclass(frozen=True)
class Gap:
    """One thing that is not there."""

    section: str
    """Id of the section it would fill."""
    text: str
    command: str = ""


def gaps(report: RunReport) -> list[Gap]:
    """Everything a run's page lacks."""
    folder = report.folder
    if not folder.is_run:
        return [replace(gap, command="") for gap in _evaluation(report)]
    found = [Gap("about", f"{name} cannot be read and is left out.") for name in folder.damaged]
    return [*found, *_training(report), *_evaluation(report), *_audit(report), *_dynamics(report), *_pictures(report)]


def _training(report: RunReport) -> Iterator[Gap]:
    folder = report.folder
    if folder.is_finished:
        return
    where = f"after epoch {folder.trained} of {folder.epochs}" if folder.trained else "before its first epoch ended"
    command = train_command(folder, report.data_dir, str(folder.path), "--resume")
    how = "with:" if command else "with pm.train(..., resume=True)."
    text = f"Training is not finished: it stands {where}. If nobody is training it, go on {how}"
    yield Gap("curves", text, command)


def _evaluation(report: RunReport) -> Iterator[Gap]:
    evaluation = report.folder.evaluation
    if evaluation is None:
        text = "Nothing has been judged on test images yet."
        if "evaluation.json" in report.folder.outdated:
            text = "What was judged is an earlier state, before training went on; it is left out. Judge the last."
        yield Gap("results", text, _probmargin("evaluate", report))
        return
    known = attacks(evaluation)
    if not any(name != "nat" for name in known):
        command = evaluate_command(report, evaluation, [*known, "pgd-20", "cw"])
        yield Gap("results", "Only clean images have been judged; no attack was tried.", command)
    if "aa" not in known:
        command = evaluate_command(report, evaluation, [*known, "aa"])
        yield Gap("gap", "AutoAttack has not been run, so there is no gap between PGD and AutoAttack.", command)


def _audit(report: RunReport) -> Iterator[Gap]:
    if report.folder.audit is None:
        text = "No audit has asked whether the robustness is real."
        if "audit.json" in report.folder.outdated:
            text = "The audit is of an earlier state, before training went on; it is left out. Audit the last."
        yield Gap("audit", text, _probmargin("audit", report))


def _dynamics(report: RunReport) -> Iterator[Gap]:
    if report.dynamics is not None:
        return
    folder = report.folder
    command = train_command(folder, report.data_dir, f"{folder.path}-dynamics", "--dynamics")
    how = "with:" if command else "with pm.train(..., dynamics=True)."
    text = f"Margins and weights of single images were not kept. Train once more, into a new folder, {how}"
    yield Gap("weights", text, command)


def _pictures(report: RunReport) -> Iterator[Gap]:
    if report.gallery.reason:
        yield Gap("gallery", f"There are no pictures: {report.gallery.reason}.", report.gallery.command)


def attacks(evaluation: dict[str, Any]) -> list[str]:
    """The attacks an evaluation holds, in its order.

    >>> attacks({"eps": 0.1, "nat": {"accuracy": 1.0}, "pgd-20": {"robust_accuracy": 0.5}, "worst_case": {}})
    ['nat', 'pgd-20']
    """
    return [
        name
        for name, entry in evaluation.items()
        if isinstance(entry, dict) and ("accuracy" in entry or "robust_accuracy" in entry) and name != "worst_case"
    ]


def _probmargin(name: str, report: RunReport) -> str:
    folder = report.folder
    return judging(folder.record, name, folder.path, *_data_dir(folder, report.data_dir))


def _data_dir(folder: Folder, data_dir: str) -> list[str]:
    is_needed = folder.record.get("data") in _FROM_FILES and data_dir
    return ["--data-dir", data_dir] if is_needed else []


def evaluate_command(report: RunReport, evaluation: dict[str, Any], names: list[str]) -> str:
    """The command that repeats an evaluation with these attacks; what is stored is not computed again."""
    folder = report.folder
    words = ["--attacks", ",".join(names)]
    trained = folder.final_attack
    if evaluation.get("protocol") not in (None, "custom"):
        words += ["--protocol", str(evaluation["protocol"])]
    else:
        total, seen = evaluation.get("test_images"), evaluation.get("num_examples")
        words += ["--num-examples", str(seen)] if total and seen and seen < total else []
        for name in ("norm", "eps"):
            value = evaluation.get(name)
            words += [f"--{name}", str(value)] if value is not None and value != trained.get(name) else []
    return judging(folder.record, "evaluate", folder.path, *words, *_data_dir(folder, report.data_dir))


def train_command(folder: Folder, data_dir: str, out: str, *options: str) -> str:
    """The command that trains this run's recipe; "" where data or model were objects no command can name."""
    record = folder.record
    data, model = str(record.get("data", "")), str(record.get("model", ""))
    if not is_typed(record):
        return ""
    words = ["train", "--recipe", str(folder.path / "recipe.json"), "--data", data, "--model", model]
    words += ["--seed", str(record.get("seed", 1)), *_data_dir(folder, data_dir)]
    _, height, width = record.get("image_shape") or (0, 0, 1)
    words += ["--image-size", str(height)] if data.startswith("folder:") and height == width else []
    words += ["--validation", str(record["validation"])] if record.get("validation") else []
    words += ["--label-noise", str(record["label_noise"])] if record.get("label_noise") else []
    words += ["--normalize"] if (record.get("model_settings") or {}).get("mean_std") else []
    words += ["--compile", str(record["compile"])] if record.get("compile", "default") != "default" else []
    words += _start(record, goes_on="--resume" in options)
    counts = (record.get("monitors") or {}).get("counts") or {}
    words += ["--monitor", ",".join(f"{name}:{count}" for name, count in counts.items())] if counts else []
    words += _options(record.get("options") or {}, watched=bool(counts))
    dynamics = ["--dynamics"] if folder.dynamics_path.exists() and "--dynamics" not in options else []
    return typed(*program(record), *words, "--out", out, *options, *dynamics)


def _start(record: dict[str, Any], *, goes_on: bool) -> list[str]:
    """The weights that training began with, where they came from a file; a fork that goes on has them in its state."""
    began = record.get("checkpoint") or (not goes_on and (record.get("forked_from") or {}).get("checkpoint"))
    if not began:
        return []
    return [
        "--checkpoint",
        str(record.get("checkpoint_file", "FILE")),
        *(["--new-head"] if began.get("new_head") else []),
    ]


def _options(asked: dict[str, Any], *, watched: bool) -> list[str]:
    """What decides when a run is looked at and which states it keeps."""
    words = ["--monitor-every", str(asked["monitor_every"])] if watched and asked.get("monitor_every") else []
    for name in ("validation_every", "early_stopping"):
        words += [f"--{name.replace('_', '-')}", str(asked[name])] if asked.get(name) else []
    kept = ",".join(str(epoch) for epoch in asked.get("keep_epochs") or ())
    return [*words, *(["--keep-epochs", kept] if kept else [])]
