"""Runs of one's own as a table: a row a recipe, its seeds averaged, each row against the first over the same images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probmargin.core.errors import UsageError
from probmargin.core.records import canonical_hash
from probmargin.core.shell import judging, typed
from probmargin.core.speech import Say
from probmargin.core.words import counted, radius
from probmargin.engine.files import check_replaces, write_text
from probmargin.methods.plain import completed
from probmargin.reporting.cells import Record, deviation, evaluations
from probmargin.reporting.page.missing import attacks
from probmargin.reporting.page.words import attack_name
from probmargin.reporting.render import FORMATS
from probmargin.reporting.spec import ColumnSpec, Contrast, RowSpec, TableSpec
from probmargin.reporting.tables import Table, build_table
from probmargin.runs.run import open_run

_FORMATS = {name: draw for name, draw in FORMATS.items() if name != "claims.csv"}
_FACTS = ("model", "label_noise", "validation", "checkpoint", "precision")
"""What tells two trainings by one recipe apart, beside the seed."""


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """Which runs, and how the table is written."""

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
    records = [_row_record(path) for path in runs]
    data = dict.fromkeys(str(record["data"]) for record, _ in records)
    if len(data) > 1:
        raise UsageError(f"the runs are on {' and '.join(data)}: give those on one data set")
    names = _names(records)
    rows = {record["recipe_hash"]: record["recipe"] for record, _ in records}
    first, *others = (names[key] for key in rows)
    models = " and ".join(dict.fromkeys(str(record["recipe"]["trained"]["model"]) for record, _ in records))
    seeds: dict[str, set[int]] = {}
    for record, _ in records:
        seeds.setdefault(record["recipe_hash"], set()).add(record["seed"])
    spec = TableSpec(
        name="compare",
        title=f"{counted(len(rows), 'recipe')}, {counted(len(records), 'run')}",
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


def _row_record(path: Path) -> tuple[dict[str, Any], Path]:
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
    return {**record, "id": str(path), "recipe": recipe, "recipe_hash": canonical_hash(recipe)}, path


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
    """Every attack that a run was judged by, at every radius; on as many images as all of them looked at."""
    found: dict[tuple[str, str, str, float], list[Mapping[str, Any]]] = {}
    for record in records:
        longest: dict[tuple[str, str, str, float], Mapping[str, Any]] = {}
        # By another seed's noise nothing is compared.
        for evaluation in (one for one in evaluations(record) if not one.get("seed") and {"norm", "eps"} <= one.keys()):
            for name in (one for one in attacks(dict(evaluation)) if "correct" in evaluation[one]):
                key = (name, str(evaluation.get("protocol")), str(evaluation["norm"]), float(evaluation["eps"]))
                known = longest.get(key)
                if known is None or len(known[name]["correct"]) < len(evaluation[name]["correct"]):
                    longest[key] = evaluation
        for key, evaluation in longest.items():
            found.setdefault(key, []).append(evaluation)
    # Clean images are the same in every ball: the numbers that most runs share stand for them.
    clean = sorted((key for key in found if key[0] == "nat"), key=lambda key: -len(found[key]))
    for key in clean[1:]:
        del found[key]
    balls = {(norm, eps) for name, _, norm, eps in found if name != "nat"}
    columns = []
    for (name, protocol, norm, eps), judged in found.items():
        fewest = min(len(evaluation[name]["correct"]) for evaluation in judged)
        is_part = any(fewest < (evaluation.get("test_images") or 0) for evaluation in judged)
        where = f" {norm} {radius(eps)}" if len(balls) > 1 and name != "nat" else ""
        first = fewest if is_part else None
        column = ColumnSpec(
            title=attack_name(name) + where, attack=name, first=first, protocol=protocol, norm=norm, eps=eps
        )
        columns.append(column)
    return tuple(columns)
