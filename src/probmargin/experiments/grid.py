"""An experiment at a scale: resolved recipes, attacks and trials; what is run and what a table asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from probmargin.core.errors import UsageError, unknown_name
from probmargin.evaluation.protocol import PROTOCOLS, make_plan
from probmargin.experiments.experiment import Column, Experiment, Row
from probmargin.experiments.published import doubts, published, source
from probmargin.methods.method import Method
from probmargin.methods.resolve import DIGITS_SCALE, at_scale, resolve
from probmargin.reporting.spec import ColumnSpec, RowSpec, TableSpec

ScaleName = Literal["smoke", "full"]

SMOKE_DATA, SMOKE_MODEL = "digits", "small-cnn"
SMOKE_EPOCHS = 12
SMOKE_AA_EXAMPLES = 100
_SMOKE_ATTACKS = {"pgd-100": "pgd-20"}


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The rows that are wanted, each with its recipe, and how they are judged."""

    experiment: Experiment
    scale: ScaleName
    data: str
    model: str
    rows: tuple[Row, ...]
    recipes: Mapping[str, Method]
    """By row id."""
    columns: tuple[ColumnSpec, ...]
    trials: int

    def run_name(self, row: Row) -> str:
        """Names a row's runs but for the seed; tables that share a recipe share the run."""
        return f"{self.data}-{self.model}-{row.id}"

    def has_curves(self, row: Row) -> bool:
        """Do figures need its curves? Then it is trained with test monitors and per-example dynamics."""
        return (self.data, self.model) == ("cifar10", "resnet18") and row.id in ("at", "gairat", "mail-at")

    def table(self) -> TableSpec:
        """What the table asks of records."""
        is_full = self.scale == "full"
        return TableSpec(
            name=self.experiment.name,
            title=self.experiment.title if is_full else f"the same rows at smoke scale, {self.data}, {self.model}",
            claim=self.experiment.claim if is_full else "",
            command=self.experiment.command + ("" if is_full else " --scale smoke"),
            data=self.data,
            model=self.model,
            rows=tuple(self._row(row) for row in self.rows),
            columns=(*self.columns, *self._parts()),
            contrasts=self.experiment.contrasts,
            claims=self.experiment.claims if is_full else (),
            trials=self.trials,
            source=source() if is_full else "",
            remark=""
            if is_full
            else "Smoke scale: a few epochs of a small network. It shows that every row runs, and tests no claim.",
        )

    def _parts(self) -> list[ColumnSpec]:
        """AutoAttack on the first images, cut from its verdicts of more; smoke scale looks at few as it is."""
        if self.scale != "full":
            return []
        whole = [column for column in self.columns if column.title == "AA"]
        parts = [(column, first) for column in whole for first in self.experiment.aa_first]
        return [
            replace(column, first=first, is_part=True)
            for column, first in parts
            if column.first is None or column.first > first
        ]

    def _row(self, row: Row) -> RowSpec:
        place = row.published if self.scale == "full" else ""
        return RowSpec(
            id=row.id,
            run=self.run_name(row),
            recipe=self.recipes[row.id].plain(),
            is_extra=row.is_extra,
            published=published(place),
            published_for=row.published_for,
            # Another row's doubts stand beside that row.
            doubts={} if row.published_for else doubts(place),
            left_open=row.left_open if place else "",
        )


def make_grid(
    experiment: Experiment,
    scale: ScaleName = "full",
    *,
    trials: int | None = None,
    only: Sequence[str] = (),
    aa_examples: int | None = None,
) -> Grid:
    """Resolve an experiment; `only` names the rows that are wanted, all where it is empty."""
    for name in only:
        if name not in [row.id for row in experiment.rows]:
            raise unknown_name(f"row of {experiment.name}", name, [row.id for row in experiment.rows])
    if trials is not None and trials < 1:
        raise UsageError(f"--trials must be 1 or more, not {trials}")
    if aa_examples is not None and aa_examples < 1:
        raise UsageError(f"--aa-examples must be 1 or more, not {aa_examples}")
    rows = tuple(row for row in experiment.rows if not only or row.id in only)
    is_full = scale == "full"
    recipe_of, column_of = (full_recipe, _full_column) if is_full else (smoke_recipe, _smoke_column)
    columns = [column for column in experiment.columns if is_full or column.protocol == "standard"]
    return Grid(
        experiment=experiment,
        scale=scale,
        data=experiment.data if is_full else SMOKE_DATA,
        model=experiment.model if is_full else SMOKE_MODEL,
        rows=rows,
        recipes={row.id: recipe_of(experiment, row) for row in rows},
        columns=tuple(column_of(column, aa_examples) for column in columns),
        trials=trials or (experiment.trials if is_full else 1),
    )


def full_recipe(experiment: Experiment, row: Row) -> Method:
    """The recipe of the paper's own scale."""
    return resolve(
        row.method, preset=row.preset, data=experiment.data, model=experiment.model, settings=dict(row.settings)
    )


def smoke_recipe(_: Experiment, row: Row) -> Method:
    """The same recipe shrunk to a few epochs of digits: schedule, phases and burn-in move in proportion."""
    recipe = resolve(row.method, preset=row.preset, settings=dict(row.settings))
    return at_scale(recipe, replace(DIGITS_SCALE, epochs=SMOKE_EPOCHS))


def _full_column(column: Column, aa_examples: int | None) -> ColumnSpec:
    protocol = PROTOCOLS[column.protocol]
    # A protocol with a subset of its own keeps it.
    first = (protocol.aa_examples or aa_examples) if column.attack == "aa" else None
    return ColumnSpec(
        title=column.title,
        attack=column.attack,
        protocol=protocol.name,
        norm=protocol.norm,
        eps=protocol.eps,
        first=first,
        meaning=make_plan(column.attack, protocol.norm, protocol.eps, protocol.step_size).meaning(),
    )


def _smoke_column(column: Column, aa_examples: int | None) -> ColumnSpec:
    attack = _SMOKE_ATTACKS.get(column.attack, column.attack)
    return ColumnSpec(
        title=column.title,
        attack=attack,
        protocol="custom",
        norm="Linf",
        eps=DIGITS_SCALE.eps,
        first=(aa_examples or SMOKE_AA_EXAMPLES) if column.attack == "aa" else None,
        meaning=make_plan(attack, "Linf", DIGITS_SCALE.eps).meaning(),
    )
