"""Runs of one's own as a table: a row a recipe, its seeds averaged, each row against the first over the same images.

A model that was not trained here is a row too, by the file that `evaluate --out` wrote of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probmargin.core.errors import UsageError
from probmargin.core.shell import judging, typed
from probmargin.core.speech import Say
from probmargin.core.words import counted, radius
from probmargin.engine.files import check_replaces, write_text
from probmargin.experiments.compared import gathered
from probmargin.reporting.cells import Record, evaluations
from probmargin.reporting.page.missing import attacks
from probmargin.reporting.page.words import attack_name
from probmargin.reporting.render import FORMATS
from probmargin.reporting.spec import CLEAN, NO_SEED, ColumnSpec, Contrast, RowSpec, TableSpec
from probmargin.reporting.tables import Table, build_table

_FORMATS = {name: draw for name, draw in FORMATS.items() if name != "claims.csv"}


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
    for line in (*filter(None, [table.spec.remark]), *table.missing, *table.remarks):
        say(line)
    say(f"{table.spec.title}: {request.out}")
    return table


def table_of(runs: Sequence[Path], command: str) -> Table:
    """The table, from what the runs were judged by."""
    records, remarks = gathered(runs)
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
        data=records[0][0]["data"],
        model=models,
        rows=tuple(RowSpec(id=names[key], run=f"recipe {key}", recipe=recipe) for key, recipe in rows.items()),
        columns=_columns([record for record, _ in records]),
        contrasts=tuple(Contrast(f"{other} - {first}", (other,), (first,)) for other in others),
        trials=max(map(len, seeds.values())),
        is_own=True,
        remark=" ".join(remarks),
    )
    if not spec.columns:
        raise _not_judged(*records[0])
    return build_table(spec, [{**record, "model": models} for record, _ in records])


def _title(records: Sequence[tuple[Record, Path]]) -> str:
    """How many rows of each kind there are."""
    given = sum(record["seed"] == NO_SEED for record, _ in records)
    recipes = len({record["recipe_hash"] for record, _ in records}) - given
    found = [counted(recipes, "recipe"), counted(len(records) - given, "run")] if recipes else []
    return ", ".join([*found, counted(given, "given model")] if given else found)


def _not_judged(record: Record, path: Path) -> UsageError:
    """The error where there is no number to compare."""
    if record["seed"] == NO_SEED:
        return UsageError(f"{path} has no number that counts: run evaluate on its model without --seed")
    command = judging(record, "evaluate", path)
    advice = f"run {command}" if command else "give some whose model has a name"
    return UsageError(f"none of these runs has been judged: {advice}")


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
        for evaluation in (one for one in evaluations(record) if {"protocol", "norm", "eps"} <= one.keys()):
            found_attacks = [one for one in attacks(dict(evaluation)) if "correct" in evaluation[one]]
            # By another seed's noise nothing is compared; clean images have none.
            for name in (one for one in found_attacks if one == CLEAN or not evaluation.get("seed")):
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
