"""A page about runs: reads their folders, makes the pictures, draws."""

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from probmargin.core.errors import UsageError
from probmargin.core.shell import is_named
from probmargin.core.speech import Say
from probmargin.core.words import counted
from probmargin.data.dataset import DataSet
from probmargin.data.label_noise import read_wrong_labels
from probmargin.data.loader import load
from probmargin.engine.files import check_replaces, write_text
from probmargin.evaluation.protocol import PROTOCOLS
from probmargin.evaluation.run_data import image_shape_of
from probmargin.experiments.catalogue import find
from probmargin.experiments.compared import is_file_of_results, is_on_same_data, record_of_file, results_of_file
from probmargin.experiments.gallery import Choice, make_gallery, training_pictures
from probmargin.experiments.grid import full_recipe
from probmargin.experiments.inspect import labels_of
from probmargin.experiments.published import doubts, published, source
from probmargin.methods.plain import completed
from probmargin.reporting.cells import differing
from probmargin.reporting.dynamics import History, Labels
from probmargin.reporting.folder import Folder, read_folder
from probmargin.reporting.page import render
from probmargin.reporting.page.budget import MOST_RUNS
from probmargin.reporting.page.data import Gallery, Picture, Published, RunReport
from probmargin.reporting.page.spreads import describe, load_history
from probmargin.runs.run import Run

IMAGES = 8
"""Attacked test images that are shown of a run."""
MOST_DIFFERENCES = 4


@dataclass(frozen=True, kw_only=True)
class ReportRequest:
    """A page as asked for."""

    runs: tuple[Path, ...]
    out: Path = Path("report.html")
    data_dir: Path | None = None
    device: str | None = None
    images: int = IMAGES
    """Attacked test images of each run; 0 for a page without pictures."""

    @property
    def command(self) -> str:
        """What makes the same page again."""
        words = ["probmargin", "report", *map(str, self.runs), "-o", str(self.out)]
        words += ["--data-dir", str(self.data_dir)] if self.data_dir else []
        return shlex.join([*words, *(["--images", str(self.images)] if self.images != IMAGES else [])])


def write_report(request: ReportRequest, say: Say) -> Path:
    """Write the page, whole or not at all."""
    if not request.runs:
        raise UsageError("there is nothing to report: name at least one run's folder")
    if len(request.runs) > MOST_RUNS:
        raise UsageError(f"a page compares up to {MOST_RUNS} runs, not {len(request.runs)}; make several pages")
    if request.out.is_dir():
        raise UsageError(f"{request.out} is a folder; name a file with -o, such as {request.out / 'report.html'}")
    if not request.out.suffix:
        raise UsageError(f"-o {request.out} does not end in .html, by which browsers know a page: add it")
    check_replaces(request.out, "-o", "report", _is_page)
    if request.images < 0:
        raise UsageError(f"--images must be 0 or more, not {request.images}")
    reports = gather(request, say)
    text = render(reports, made=f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}", command=request.command)
    write_text(request.out, text)
    say(f"report on {_counted(reports)}: {request.out} ({len(text) / 1e6:.2f} MB)")
    return request.out


def _counted(reports: Sequence[RunReport]) -> str:
    """How many runs and files there are."""
    runs = sum(report.folder.is_run for report in reports)
    return " and ".join(counted(count, what) for count, what in ((runs, "run"), (len(reports) - runs, "file")) if count)


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return b'<meta name="generator" content="probmargin ' in file.read(8192)


def gather(request: ReportRequest, say: Say) -> list[RunReport]:
    """Everything the page shows; data that several runs share is loaded once."""
    read = [_read(path) for path in dict.fromkeys(request.runs)]
    folders = [folder if folder.is_run else _on_a_runs_data(folder, read) for folder in read]
    names = Counter(folder.name for folder in folders)
    loaded: dict[str, DataSet | str] = {}
    reports: list[RunReport] = []
    for folder in folders:
        label = folder.name if names[folder.name] == 1 else str(folder.path)
        if not folder.is_run:
            reports.append(RunReport(folder=folder, label=label, classes=_named_classes(folder)))
            continue
        data = _data(folder, request, loaded)
        report = _report(folder, label, data, request, _chosen(reports, folder))
        if report.gallery.reason:
            say(f"{label}: no pictures: {report.gallery.reason}")
        reports.append(report)
    return reports


def _read(path: Path) -> Folder:
    """A run's folder; or what stands for one where a file of `evaluate --out` tells of a model alone."""
    if not is_file_of_results(path):
        folder = read_folder(path)
        return replace(folder, recipe=completed(folder.recipe))
    found = results_of_file(path)
    return Folder(path=path, record=record_of_file(path, found), recipe={}, metrics=[], evaluation=found, is_run=False)


def _on_a_runs_data(folder: Folder, others: Sequence[Folder]) -> Folder:
    """A file of results, its data known by the name of the run's that is on the same."""
    for other in others:
        if other.is_run and is_on_same_data(folder.record, {**other.record, **(other.evaluation or {})}):
            return replace(folder, record={**folder.record, "data_fingerprint": other.record.get("data_fingerprint")})
    return folder


def _named_classes(folder: Folder) -> tuple[str, ...]:
    """The classes that results name."""
    return tuple(map(str, (folder.evaluation or {}).get("classes") or ()))


def _chosen(reports: Sequence[RunReport], folder: Folder) -> tuple[int, ...]:
    """The test images that an earlier run on the same data shows, so that galleries lie side by side."""
    for report in reports:
        if report.folder.record.get("data_fingerprint") == folder.record.get("data_fingerprint"):
            return tuple(sample.place for sample in report.gallery.samples)
    return ()


def _data(folder: Folder, request: ReportRequest, loaded: dict[str, DataSet | str]) -> DataSet | str:
    """The run's own data, or why it is not at hand."""
    name = str(folder.record.get("data", ""))
    if name and not is_named(name):
        return "the data came from Python, and the run keeps none of it"
    shape = image_shape_of(folder.record, name)
    key = f"{name} {shape}"
    if key not in loaded:
        try:
            loaded[key] = load(name, request.data_dir, image_shape=shape)
        except (UsageError, OSError) as error:
            loaded[key] = str(error)
    data = loaded[key]
    if isinstance(data, str):
        return data
    wanted = folder.record.get("data_fingerprint")
    return data if wanted in (None, data.fingerprint) else f"{name} is not the data the run was trained on"


def _report(
    folder: Folder, label: str, data: DataSet | str, request: ReportRequest, places: tuple[int, ...]
) -> RunReport:
    history = load_history(folder.dynamics_path)
    known = None if isinstance(data, str) or history is None else _labels(folder, data, history)
    burn_in = int(folder.recipe.get("burn_in_epochs") or 0)
    dynamics = None if history is None else describe(history, known, burn_in)
    pictures: dict[int, Picture] = {}
    if request.images and dynamics is not None and not isinstance(data, str):
        pictures = training_pictures(data, dynamics.shown())
    return RunReport(
        folder=replace(folder, damaged=_damaged(folder)),
        label=label,
        classes=() if isinstance(data, str) else data.classes,
        gallery=_gallery(folder, data, request, places),
        published=find_published(folder),
        dynamics=dynamics,
        pictures=pictures,
        data_dir="DIR" if isinstance(data, str) else str(request.data_dir or ""),
    )


def _labels(folder: Folder, data: DataSet, history: History) -> Labels | None:
    """The labels that a run was trained on; None where they are not those of its data."""
    try:
        return labels_of(Run(folder.path), history.index, data)
    except UsageError:
        return None


def _damaged(folder: Folder) -> tuple[str, ...]:
    """Files that cannot be read, with the one that says which labels were wrong."""
    path = folder.path / "label_noise.npz"
    if not folder.record.get("label_noise") and not path.exists():
        return folder.damaged
    try:
        read_wrong_labels(path)
    except UsageError:
        return (*folder.damaged, path.name)
    return folder.damaged


def _gallery(folder: Folder, data: DataSet | str, request: ReportRequest, places: tuple[int, ...]) -> Gallery:
    again = shlex.join(["probmargin", "report", *map(str, request.runs), "-o", str(request.out)])
    if isinstance(data, str):
        needs_folder = "--data-dir" in data and request.data_dir is None
        return Gallery(reason=data, command=f"{again} --data-dir DIR" if needs_folder else "")
    if request.images == 0:
        return Gallery(reason="none were asked for", command=again)
    ball = {key: value for key, value in (folder.evaluation or {}).items() if key in ("norm", "eps")}
    return make_gallery(Run(folder.path), data, ball, Choice(request.images, places), request.device)


def find_published(folder: Folder) -> Published | None:
    """What the paper prints for the run's method, data and model: first of the same recipe, else the nearest."""
    record, recipe = folder.record, folder.recipe
    found: list[tuple[int, Published]] = []
    for experiment in find(None):
        if (experiment.data, experiment.model) != (record.get("data"), record.get("model")):
            continue
        attacks = {column.title: column.attack for column in experiment.columns}
        for row in experiment.rows:
            if row.published and (row.method, row.preset) == (recipe.get("method"), recipe.get("preset")):
                apart = list(differing(recipe, full_recipe(experiment, row).plain()))
                printed = _row(row.published, attacks, apart, _judged_otherwise(folder))
                found.append((len(apart), printed))
    # Several tables print the same runs: the one with most columns says most.
    return min(found, key=lambda entry: (entry[0], -len(entry[1].numbers)))[1] if found else None


def _judged_otherwise(folder: Folder) -> tuple[str, ...]:
    """In what the run was judged by another yardstick than the paper's."""
    evaluation, paper = folder.evaluation or {}, PROTOCOLS["standard"]
    told = []
    if evaluation.get("norm", paper.norm) != paper.norm:
        told.append(f"the norm is {evaluation['norm']}, not {paper.norm}")
    if not math.isclose(evaluation.get("eps", paper.eps), paper.eps, rel_tol=1e-3):
        told.append(f"eps is {evaluation['eps']:.4g}, not {paper.eps:.4g}")
    whole = evaluation.get("test_images")
    for name, entry in evaluation.items():
        seen = entry.get("num_examples") if isinstance(entry, dict) and name != "worst_case" else None
        if whole and seen and seen < whole:
            told.append(f"{name} saw {seen:,} of {whole:,} test images")
    return tuple(told)


def _row(place: str, attacks: dict[str, str], apart: Sequence[str], otherwise: tuple[str, ...]) -> Published:
    numbers = {attacks[column]: pair for column, pair in published(place).items() if column in attacks}
    speaks = tuple(f"Its {column}: {text}" for column, text in doubts(place).items())
    more = len(apart) - MOST_DIFFERENCES
    told = tuple(apart[:MOST_DIFFERENCES]) + ((f"and {more} more",) if more > 0 else ())
    return Published(
        place=place, numbers=numbers, source=source(), doubts=speaks, differences=told, judged_otherwise=otherwise
    )
