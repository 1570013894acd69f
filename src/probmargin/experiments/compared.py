"""What `compare` takes: runs, and the files that `evaluate --out` wrote of other models, as records of one kind."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from probmargin.core.errors import UsageError
from probmargin.core.records import canonical_hash
from probmargin.engine.files import holds_json, read_json_object
from probmargin.engine.shapes import misfit_evaluation
from probmargin.evaluation.protocol import PROTOCOLS
from probmargin.methods.plain import completed
from probmargin.methods.plugins import component_names
from probmargin.reporting.cells import Record, deviation, evaluations, weights_of
from probmargin.reporting.spec import NO_SEED
from probmargin.runs.run import open_run

_STANDARD = (PROTOCOLS["standard"].norm, PROTOCOLS["standard"].eps)
_FACTS = ("model", "label_noise", "validation", "checkpoint", "precision")
"""What tells two trainings by one recipe apart, beside the seed."""
_OF_FILES = ("own_files", "model_code")
"""What is told of them by the files they were made with."""


def gathered(paths: Iterable[Path]) -> tuple[list[tuple[dict[str, Any], Path]], list[str]]:
    """A record for each run, and for each model that files of results alone tell of, in the order they are named.

    Results that are of a run's weights are the run's, as are two files of one model that model's; sentences tell of
    these, and of what does not count.
    """
    named = list(dict.fromkeys(paths))
    files = [path for path in named if is_file_of_results(path)]
    records = {path: _run_record(path) for path in named if path not in files}
    remarks = []
    for path in files:
        found = results_of_file(path)
        owner = next((other for other, record in records.items() if _is_of(found, record)), None)
        if owner is None:
            records[path] = record_of_file(path, found)
        else:
            records[owner]["evaluations"] = {**(records[owner].get("evaluations") or {}), str(path): found}
            remarks.append(f"{path} is of the model of {owner}, and counts in its row.")
        if seed := found.get("seed"):
            remarks.append(f"{path} was made by the noise of --seed {seed}: of it the clean images alone count.")
    ordered = [path for path in named if path in records]
    first = records[ordered[0]]
    if other := next((path for path in ordered if not is_on_same_data(records[path], first)), None):
        data = dict.fromkeys(str(record["data"]) for record in (first, records[other]))
        what = "is on other images or labels of that name" if len(data) == 1 else f"is on {records[other]['data']}"
        raise UsageError(f"{ordered[0]} is on {first['data']} and {other} {what}: give those on one data set")
    told = [_told_alike(records[path], first) for path in ordered]
    return list(zip(told, ordered, strict=True)), [*remarks, *_parted_by_files(told)]


def _parted_by_files(records: Sequence[Record]) -> Iterator[str]:
    """A sentence on each training that would be another seed of an earlier one but for files of the user's own."""
    seen: dict[str, dict[str, Record]] = {}
    for record in records:
        trained = record["recipe"].get("trained", {})
        others = {key: value for key, value in trained.items() if key not in _OF_FILES}
        rows = seen.setdefault(canonical_hash({**record["recipe"], "trained": others}), {})
        files = json.dumps(trained.get("own_files"))
        if rows and files not in rows:
            first = next(iter(rows.values()))
            both = trained.get("own_files") and first["recipe"]["trained"].get("own_files")
            known = (
                "by other content of your own files" if both else "the record of one of them tells of no files of yours"
            )
            yield f"{record['id']} is trained like {first['id']}, but {known}: it counts in a row of its own."
        rows.setdefault(files, record)


def _told_alike(record: dict[str, Any], first: Record) -> dict[str, Any]:
    """A record by the first one's name of the data, if they are the same, with its evaluations told alike."""
    names = {key: first[key] for key in ("data", "data_fingerprint") if first.get(key)}

    def alike(found: Mapping[str, Any]) -> Mapping[str, Any]:
        # In the standard's ball nothing but the count of images makes a protocol one's own.
        is_standard = found.get("protocol") == "custom" and (found.get("norm"), found.get("eps")) == _STANDARD
        protocol = {"protocol": "standard"} if is_standard else {}
        return {**found, **(names if is_on_same_data(found, first) else {}), **protocol}

    own = record.get("evaluation")
    others = {name: alike(found) for name, found in (record.get("evaluations") or {}).items()}
    return {**record, **names, "evaluation": alike(own) if own else own, "evaluations": others}


def is_on_same_data(found: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Are two on the same data? By its content, where both know that: one file has many names."""
    contents = [{side.get(key) for key in ("data_fingerprint", "data_as_read")} - {None} for side in (found, other)]
    return bool(contents[0] & contents[1]) if all(contents) else found.get("data") == other.get("data")


def is_file_of_results(path: Path) -> bool:
    """Is a file meant, and not a run's folder?"""
    return path.is_file() or (path.suffix == ".json" and not path.is_dir())


def results_of_file(path: Path) -> dict[str, Any]:
    """What a file of `evaluate --out` holds."""
    if not path.exists():
        raise UsageError(f"there is no file {path}; check its name")
    if not holds_json(path, "protocol", "norm", "eps", "data", "weights"):
        raise UsageError(f"{path} holds no results: name a run's folder, or FILE.json of probmargin evaluate --out")
    return read_json_object(path, misfit_evaluation)


def _is_of(found: Mapping[str, Any], record: Record) -> bool:
    """Are results of a record's weights, in the network that others of its results are of?"""
    others = [other.get("model_code") for other in evaluations(record)]
    is_alike = not others or found.get("model_code") in others
    return is_alike and found["weights"] == weights_of(record) and is_on_same_data(found, record)


def record_of_file(path: Path, found: dict[str, Any]) -> dict[str, Any]:
    """What stands for a model that is known by its results alone."""
    recipe = {"weights": found["weights"], "code": found.get("model_code")}
    return {
        "id": str(path),
        "method": path.stem,
        "recipe": recipe,
        "recipe_hash": canonical_hash(recipe),
        "seed": NO_SEED,
        "data": found["data"],
        "data_fingerprint": found.get("data_fingerprint"),
        "data_as_read": found.get("data_as_read"),
        "model": found.get("model"),
        "weights": found["weights"],
        "train_seconds": 0.0,
        "evaluation": found,
    }


def _own_files(record: Record) -> set[str]:
    """SHA-256 of all files of the user's own that a training went by, from the run it was forked from on."""
    places = record.get("forked_from") or {}, record, *(record.get("resumes") or ())
    used = {name for _, name in component_names(record["recipe"])}
    found = {file["sha256"] for place in places for file in place.get("model_files") or ()}
    for place in places:
        plugins = place.get("plugins") or ()
        parts = [file for file in plugins if used & {name for names in file["registers"].values() for name in names}]
        # What only watched the run, and what that imports, is no part of the training.
        found |= {file["sha256"] for file in plugins if parts and (file in parts or not file["registers"])}
    return found


def _run_record(path: Path) -> dict[str, Any]:
    """A run's record, whose recipe also holds what else its training was, so that a row is one way of training."""
    record = open_run(path).record
    trained = {key: record[key] for key in _FACTS if record.get(key)}
    origin = (record.get("forked_from") or {}).get("checkpoint")
    trained |= {"began_with": origin} if origin else {}
    # Files of a network of one's own may have changed between two trainings under its name.
    code = next((found["model_code"] for found in evaluations(record) if found.get("model_code")), None)
    trained |= {"model_code": code} if code else {}
    trained |= {"departs": departs} if (departs := deviation(record)) else {}
    trained |= {"own_files": files} if (files := sorted(_own_files(record))) else {}
    recipe = {**completed(record["recipe"]), "trained": trained}
    return {**record, "id": str(path), "recipe": recipe, "recipe_hash": canonical_hash(recipe)}
