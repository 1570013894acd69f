"""Runs of one's own as a table: a row a recipe, its seeds averaged, each row against the first over the same images.

A model that was not trained here is a row too, by the file that `evaluate --out` wrote of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probmargin.core.errors import UsageError
from probmargin.core.records import canonical_hash
from probmargin.core.shell import judging, typed
from probmargin.core.speech import Say
from probmargin.core.words import counted, radius
from probmargin.engine.files import check_replaces, holds_json, read_json_object, write_text
from probmargin.engine.shapes import misfit_evaluation
from probmargin.methods.plain import completed
from probmargin.reporting.cells import Record, deviation, evaluations, weights_of
from probmargin.reporting.page.missing import attacks
from probmargin.reporting.page.words import attack_name
from probmargin.reporting.render import FORMATS
from probmargin.reporting.spec import CLEAN, NO_SEED, ColumnSpec, Contrast, RowSpec, TableSpec
from probmargin.reporting.tables import Table, build_table
from probmargin.runs.run import open_run

_FORMATS = {name: draw for name, draw in FORMATS.items() if name != "claims.csv"}
_FACTS = ("model", "label_noise", "validation", "checkpoint", "precision")
"""What tells two trainings by one recipe apart, beside the seed."""


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """Which runs and files of results, and how the table is written."""

    runs: tuple[Path, ...]
    format: str | None = None
    out: Path | None = None
    """By its suffix it says the format."""

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in _FORMATS:
            raise UsageError(f"unknown format {self.format!r}: choose md, tex, csv or comparisons.csv")
        if self.out is not None:
            check_replaces(self.out, "-o", "such table", _is_table)
            if self.format not in (None, self.chosen):
                raise UsageError(f"--format {self.format} and -o {self.out} ask for two formats: give one of them")

    @property
    def chosen(self) -> str:
        """The format; of a file its longest suffix that is one."""
        if self.out is None:
            return self.format or "md"
        fitting = [suffix for suffix in _FORMATS if self.out.name.endswith(f".{suffix}")]
        if not fitting:
            raise UsageError(f"-o {self.out} does not say a format: give .md, .tex, .csv or .comparisons.csv")
        return max(fitting, key=len)

    @property
    def command(self) -> str:
        """What makes it."""
        return typed("probmargin", "compare", *self.runs)


def _is_table(path: Path) -> bool:
    """Does a file begin as one that this command wrote?"""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline().startswith(("## compare", r"% needs \usepackage", "table,"))


def compare_runs(request: CompareRequest, say: Say) -> Table:
    """Print or write the table of some runs."""
    draw = _FORMATS[request.chosen]
    table = table_of(request.runs, request.command)
    if request.out is None:
        say(draw(table).rstrip("\n"))
        return table
    write_text(request.out, draw(table))
    for line in (*table.missing, *table.remarks):
        say(line)
    say(f"{counted(len(table.lines), 'row')} of {counted(len(request.runs), 'run')}: {request.out}")
    return table


def table_of(runs: Sequence[Path], command: str) -> Table:
    """The table, from what the runs were judged by."""
    records = _gathered(runs)
    data = dict.fromkeys(str(record["data"]) for record, _ in records)
    if len(data) > 1:
        raise UsageError(f"the runs are on {' and '.join(data)}: give those on one data set")
    names = _names(records)
    rows = {record["recipe_hash"]: record["recipe"] for record, _ in records}
    first, *others = (names[key] for key in rows)
    models = " and ".join(dict.fromkeys(str(record["model"]) for record, _ in records if record.get("model")))
    seeds: dict[str, set[int]] = {}
    for record, _ in records:
        seeds.setdefault(record["recipe_hash"], set()).add(record["seed"])
    spec = TableSpec(
        name="compare",
        title=_title(records),
        claim="",
        command=command,
        data=next(iter(data)),
        model=models,
        rows=tuple(RowSpec(id=names[key], run=f"recipe {key}", recipe=recipe) for key, recipe in rows.items()),
        columns=_columns([record for record, _ in records]),
        contrasts=tuple(Contrast(f"{other} - {first}", (other,), (first,)) for other in others),
        trials=max(map(len, seeds.values())),
        is_own=True,
    )
    if not spec.columns:
        command = judging(records[0][0], "evaluate", runs[0])
        advice = f"run {command}" if command else "give some whose model has a name"
        raise UsageError(f"none of these runs has been judged: {advice}")
    return build_table(spec, [{**record, "model": models} for record, _ in records])


def _title(records: Sequence[tuple[Record, Path]]) -> str:
    """How many rows of each kind there are."""
    given = sum(record["seed"] == NO_SEED for record, _ in records)
    recipes = len({record["recipe_hash"] for record, _ in records}) - given
    found = [counted(recipes, "recipe"), counted(len(records) - given, "run")] if recipes else []
    return ", ".join([*found, counted(given, "given model")] if given else found)


def _gathered(paths: Iterable[Path]) -> list[tuple[dict[str, Any], Path]]:
    """A record for each run, and for each model that files of results alone tell of, in the order they are named.

    Results that are of a run's weights are the run's, as are two files of one model that model's.
    """
    named = list(dict.fromkeys(paths))
    files = [path for path in named if path.is_file() or path.suffix == ".json"]
    records = {path: _run_record(path) for path in named if path not in files}
    for path in files:
        found = _results(path)
        owner = next((record for record in records.values() if _is_of(found, record)), None)
        if owner is None:
            records[path] = _file_record(path, found)
        else:
            owner["evaluations"] = {**(owner.get("evaluations") or {}), str(path): found}
    return [(records[path], path) for path in named if path in records]


def _results(path: Path) -> dict[str, Any]:
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
    return is_alike and found["weights"] == weights_of(record) and found["data"] == record.get("data")


def _file_record(path: Path, found: dict[str, Any]) -> dict[str, Any]:
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
        "model": found.get("model"),
        "weights": found["weights"],
        "train_seconds": 0.0,
        "evaluation": found,
    }


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
    recipe = {**completed(record["recipe"]), "trained": trained}
    return {**record, "id": str(path), "recipe": recipe, "recipe_hash": canonical_hash(recipe)}


def _names(records: Sequence[tuple[Record, Path]]) -> dict[str, str]:
    """What each recipe is called: its method; where two share that, with the folder of its first run."""
    firsts: dict[str, tuple[Record, Path]] = {}
    for record, path in records:
        firsts.setdefault(record["recipe_hash"], (record, path))
    methods = {key: str(record.get("method") or record["recipe"]["method"]) for key, (record, _) in firsts.items()}
    names = methods
    for told in (lambda path: path.name, str):
        longer = {key: f"{name} ({told(firsts[key][1])})" for key, name in methods.items()}
        shared = {name for name in names.values() if list(names.values()).count(name) > 1}
        names = {key: longer[key] if name in shared else name for key, name in names.items()}
    return names


def _columns(records: Sequence[Record]) -> tuple[ColumnSpec, ...]:
    """Every attack that a run was judged by, at every radius; on as many images as all of them looked at.

    Clean images are the same in every ball, and one column.
    """
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        longest: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        # By another seed's noise nothing is compared.
        for evaluation in (one for one in evaluations(record) if not one.get("seed") and {"norm", "eps"} <= one.keys()):
            for name in (one for one in attacks(dict(evaluation)) if "correct" in evaluation[one]):
                ball = (str(evaluation.get("protocol")), str(evaluation["norm"]), float(evaluation["eps"]))
                key = (name,) if name == CLEAN else (name, *ball)
                known = longest.get(key)
                if known is None or len(known[name]["correct"]) < len(evaluation[name]["correct"]):
                    longest[key] = evaluation
        for key, evaluation in longest.items():
            found.setdefault(key, []).append(evaluation)
    balls = {key[2:] for key in found if key != (CLEAN,)}
    columns = []
    for (name, *_), judged in found.items():
        fewest = min(len(evaluation[name]["correct"]) for evaluation in judged)
        is_part = any(fewest < (evaluation.get("test_images") or 0) for evaluation in judged)
        protocol, norm, eps = (judged[0][key] for key in ("protocol", "norm", "eps"))
        where = f" {norm} {radius(eps)}" if len(balls) > 1 and name != CLEAN else ""
        first = fewest if is_part else None
        column = ColumnSpec(
            title=attack_name(name) + where, attack=name, first=first, protocol=protocol, norm=norm, eps=eps
        )
        columns.append(column)
    return tuple(columns)
