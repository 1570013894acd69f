"""Which records a table may use, and what they say; a record that does not belong is refused by name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from probmargin.core.records import canonical_hash
from probmargin.reporting.spec import ColumnSpec, RowSpec, TableSpec

Record = Mapping[str, Any]

_ONE_RUN = ("data_fingerprint", "model_settings", "validation", "label_noise", "precision")
"""What the records of a cell must agree in, beside recipe, data and model: they differ in the seed alone."""
_UNSET = object()


def differing(found: Any, wanted: Any, path: str = "") -> Iterator[str]:
    """The fields in which two plain objects differ, with both values.

    >>> list(differing({"lr": 0.1, "attack": {"eps": 0.1}}, {"lr": 0.1, "attack": {"eps": 0.2}}))
    ['attack.eps is 0.1, not 0.2']
    """
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for key in dict.fromkeys([*wanted, *found]):
            inner = f"{path}.{key}" if path else str(key)
            yield from differing(found.get(key, _UNSET), wanted.get(key, _UNSET), inner)
    elif found != wanted:
        ours, theirs = ("missing" if value is _UNSET else repr(value) for value in (found, wanted))
        yield f"{path} is {ours}, not {theirs}"


@dataclass
class RowRecords:
    """The records of a row by seed, and why others were refused."""

    row: RowSpec
    by_seed: dict[int, Record] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def offer(self, record: Record, table: TableSpec) -> None:
        """Take a record or note why not; of the same run offered twice the first counts."""
        reason = self._objection(record, table)
        name, seed = record.get("id"), record.get("seed")
        if reason is None and seed in self.by_seed:
            taken = self.by_seed[seed]["id"]
            if taken == name:
                return
            reason = f"seed {seed} is already there as {taken}"
        if reason is not None:
            self.refused.append(f"record {name} refused: {reason}")
        elif isinstance(seed, int):
            self.by_seed[seed] = record

    def _objection(self, record: Record, table: TableSpec) -> str | None:
        """Why a record is not the row's, or does not go with those already there."""
        return self._mismatch(record, table) or self._disagreement(record)

    def _mismatch(self, record: Record, table: TableSpec) -> str | None:
        wanted = {"data": table.data, "model": table.model}
        for line in differing({key: record.get(key) for key in wanted}, wanted):
            return line
        for line in differing(record["recipe"], self.row.recipe):
            return f"its recipe is not the row's: {line}"
        own = canonical_hash(record["recipe"])
        if record.get("recipe_hash") != own:
            return f"its recipe_hash is {record.get('recipe_hash')}, but its recipe's is {own}"
        if record.get("validation") or record.get("label_noise"):
            return "it was trained with held-out images or wrong labels"
        return None

    def _disagreement(self, record: Record) -> str | None:
        for other in self.by_seed.values():
            ours, theirs = ({key: entry.get(key) for key in _ONE_RUN} for entry in (record, other))
            for line in differing(ours, theirs):
                return f"beside {other['id']} it differs in more than the seed: {line}"
        return None


def belongs(record: Record, row: RowSpec, table: TableSpec) -> bool:
    """Is a record meant for a row: by the name of its run, or by its recipe, data and model?"""
    if record.get("id") == row.run_id(record.get("seed", 0)):
        return True
    is_alike = (record.get("data"), record.get("model")) == (table.data, table.model)
    return is_alike and record["recipe"] == row.recipe


def sort_records(table: TableSpec, records: Sequence[Record]) -> dict[str, RowRecords]:
    """Every row with its records, by row id."""
    rows = {row.id: RowRecords(row) for row in table.rows}
    for record in records:
        for entry in rows.values():
            if belongs(record, entry.row, table):
                entry.offer(record, table)
    return rows


def evaluation_of(record: Record, protocol: str) -> Mapping[str, Any]:
    """A record's evaluation under a protocol; empty where there is none."""
    own: Mapping[str, Any] = record.get("evaluation") or {}
    if own.get("protocol") == protocol:
        return own
    others: Mapping[str, Mapping[str, Any]] = record.get("evaluations") or {}
    return others.get(protocol, {})


def verdicts(record: Record, column: ColumnSpec) -> tuple[str, str]:
    """A column's verdict of each image as 0 and 1, or "" and why there is none."""
    evaluation = evaluation_of(record, column.protocol)
    entry = evaluation.get(column.attack)
    if not entry:
        return "", f"{column.attack} was not evaluated under protocol {column.protocol}"
    found = {"norm": evaluation.get("norm"), "eps": evaluation.get("eps")}
    for line in differing(found, {"norm": column.norm, "eps": column.eps}):
        return "", f"{column.attack} refused: {line}"
    correct, total = str(entry["correct"]), int(evaluation.get("test_images", 0))
    if column.first is None and total and len(correct) != total:
        return "", f"{column.attack} looked at {len(correct):,} of {total:,} images; see --aa-examples"
    if column.first is not None and len(correct) < min(column.first, total or column.first):
        return "", f"{column.attack} looked at {len(correct):,} images, not {column.first:,}"
    return correct[: column.first], ""


class ColumnProtocol:
    """One protocol a column: what the first number was measured by, the others must be."""

    def __init__(self, column: ColumnSpec) -> None:
        self.column = column
        self.first: tuple[str, dict[str, Any]] | None = None

    def objection(self, record: Record) -> str | None:
        """Why a record does not go with the ones before it."""
        evaluation = evaluation_of(record, self.column.protocol)
        facts = {
            "seed of the evaluation": evaluation.get("seed"),
            "attack": evaluation[self.column.attack].get("attack"),
            "data_fingerprint": record.get("data_fingerprint"),
        }
        if self.first is None:
            self.first = (str(record["id"]), facts)
            return None
        name, wanted = self.first
        for line in differing(facts, wanted):
            return f"{self.column.attack} refused: {line} as in {name}"
        return None
