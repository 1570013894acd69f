"""Records on disk: those of finished runs, those kept beside them, and why a run failed."""

import filecmp
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from probmargin.core.errors import UsageError
from probmargin.core.records import canonical_hash
from probmargin.engine.files import holds_json, read_json, read_json_object, write_json, write_text, written_aside
from probmargin.engine.shapes import misfit_record
from probmargin.evaluation.earlier import is_alike, joined_results, kept_apart
from probmargin.methods.plain import completed
from probmargin.reporting.cells import evaluations, is_finished, weights_of
from probmargin.runs.run import Run

Record = dict[str, Any]

LARGEST_DYNAMICS = 4 * 2**20
"""Bytes of per-example dynamics that are kept beside a record; more than these does not belong into a repository."""


def read_records(folders: Iterable[Path], damaged: dict[str, str] | None = None) -> list[Record]:
    """All records of runs in these folders, as ID.json or as a run's own record.json; the most complete first.

    Copies of one record are put together. A file that is damaged, or named by another id than its record's, raises or
    goes into `damaged`: a line by its run. A run's folder may be renamed.
    """
    paths = [
        path for folder in folders for path in (*sorted(folder.glob("*/record.json")), *sorted(folder.glob("*.json")))
    ]
    records = []
    for path in dict.fromkeys(paths):
        try:
            record = _read(path)
        except UsageError as error:
            if damaged is None:
                raise
            damaged[path.parent.name if path.name == "record.json" else path.stem] = str(error)
        else:
            records += [] if record is None else [record]
    return _together(sorted(records, key=lambda record: (not is_finished(record), "evaluation" not in record)))


def _read(path: Path) -> Record | None:
    """A run's record; None for a file that is something else, such as the record of a benchmark."""
    if path.name != "record.json":
        # A file that is no JSON at all may have been a record: that is not for us to pass over.
        read_json(path)
        if not holds_json(path, "recipe", "seed"):
            return None
    record = read_json_object(path, misfit_record)
    if path.name != "record.json" and path.stem != record["id"]:
        raise UsageError(f"{path} is refused: it holds the record of {record['id']}; name it {record['id']}.json")
    if record.get("recipe_hash") == canonical_hash(record["recipe"]):
        recipe = completed(record["recipe"])
        record |= {"recipe": recipe, "recipe_hash": canonical_hash(recipe)}
    return record


def _together(records: Iterable[Record]) -> list[Record]:
    """One record of each run, with everything that its copies were judged by."""
    found: dict[Any, Record] = {}
    for place, record in enumerate(records):
        key = _identity(record) or place
        found[key] = _joined(found[key], record) if key in found else record
    return list(found.values())


def _identity(record: Record) -> tuple[Any, ...] | None:
    """What copies of one record agree in, its weights too; None where it does not tell its weights."""
    weights = weights_of(record)
    keys = ("id", "recipe_hash", "seed", "data", "data_fingerprint", "model")
    return (*(record.get(key) for key in keys), weights) if weights else None


def _joined(record: Record, copy: Record) -> Record:
    """A record with what a copy of it knows beside: other conditions, other attacks, or more images."""
    known: list[dict[str, Any]] = []
    for results in (*evaluations(record), *evaluations(copy)):
        # What was judged before the training ended is of other weights, and stands in nobody's way.
        if results.get("weights") not in (None, weights_of(record)):
            continue
        twin = next((place for place, entry in enumerate(known) if is_alike(entry, results)), None)
        if twin is None:
            known.append(dict(results))
        else:
            known[twin] = joined_results(known[twin], results)
    if not known:
        return record
    others = kept_apart(known[1:], known[0])
    alone = {key: value for key, value in record.items() if key != "evaluations"}
    return {**alone, "evaluation": known[0]} | ({"evaluations": others} if others else {})


def keep_record(folder: Path, record: Record) -> None:
    """Copy a record to a folder of records, named by its id; what a copy that is there knows beside stays."""
    path = folder / f"{record['id']}.json"
    known = _read_or_none(path) if holds_json(path, "recipe", "seed") else None
    if known is not None and _identity(record) and _identity(known) == _identity(record):
        record = _joined(record, known)
    if record != known:
        write_json(path, record)


def _read_or_none(path: Path) -> Record | None:
    try:
        return _read(path)
    except UsageError:
        return None


def keep_curves(folder: Path, run: Run) -> None:
    """Copy a run's curves beside its record, as ID.metrics.jsonl and, where it is not too large, ID.dynamics.npz."""
    for source in (run.metrics_path, run.dynamics_path):
        if source.exists() and (source.suffix == ".jsonl" or source.stat().st_size < LARGEST_DYNAMICS):
            target = folder / f"{run.path.name}.{source.name}"
            if target.exists() and filecmp.cmp(source, target, shallow=False):
                continue
            with written_aside(target) as aside:
                shutil.copyfile(source, aside)


def keep_done(folder: Path, record: Record, out: Path) -> None:
    """Keep a record of before, and the curves of its run where that lies in `out`."""
    keep_record(folder, record)
    run = Run(out / str(record["id"]))
    found = _read_or_none(run.record_path) if run.record_path.exists() else None
    # A folder of that name may hold another training, whose curves are not the record's.
    if found is not None and _identity(found) == _identity(record):
        keep_curves(folder, run)


def _failure_path(out: Path, run: str) -> Path:
    return out / "failures" / f"{run}.txt"


def note_failure(out: Path, run: str, reason: str, details: str = "") -> None:
    """Write down why a run failed; the first line is the reason, a traceback may follow. No reason clears it."""
    path = _failure_path(out, run)
    if not reason:
        path.unlink(missing_ok=True)
        return
    write_text(path, f"{reason}\n{details}")


def failures(out: Path) -> dict[str, str]:
    """Why runs failed, by run."""
    paths = sorted((out / "failures").glob("*.txt"))
    return {path.stem: path.read_text(encoding="utf-8").partition("\n")[0] for path in paths}
