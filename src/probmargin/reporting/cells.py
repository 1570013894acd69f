"""Which records a table may use, and what they say; a record that does not belong is refused by name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from probmargin.core.records import canonical_hash
from probmargin.core.words import counted
from probmargin.engine.shapes import misfit_verdicts
from probmargin.reporting.spec import CLEAN, ColumnSpec, RowSpec, TableSpec

Record = Mapping[str, Any]

_ONE_RUN = ("data_fingerprint", "model_settings", "validation", "label_noise", "precision")
"""What the records of a cell must agree in, beside recipe, data, model and processes: they differ in the seed alone."""
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


def deviation(record: Record) -> str | None:
    """How a run's training departs from its recipe alone; None where it does not."""
    origin: Record = record.get("forked_from") or {}
    if record.get("checkpoint") or origin.get("checkpoint"):
        return "it started from the weights of another training (--checkpoint)"
    settings: Record = record.get("model_settings") or {}
    if settings.get("mean_std"):
        return "its network normalises its images (--normalize)"
    processes, is_synced = _processes(record)
    if (processes > 1 and not is_synced) or origin.get("processes"):
        return "it was trained by several processes, each with a batch norm of its own (no --sync-bn)"
    if any(key in place for place in record.get("resumes") or [] for key in ("precision", "processes", "sync_bn")):
        return "it went on in another precision, or by another number of processes, than it began"
    return None


def _departure(record: Record) -> str | None:
    """How a run departs from what every row of the paper's tables is trained like; None where it does not."""
    if record.get("validation") or record.get("label_noise"):
        return "it was trained with held-out images or wrong labels"
    return deviation(record)


def _processes(record: Record) -> tuple[int, bool]:
    """How many processes trained a run, and whether they shared their batch norm."""
    processes = int(record.get("processes") or 1)
    return processes, processes > 1 and bool(record.get("sync_bn"))


def is_finished(record: Record) -> bool:
    """Has a run come to the end of its training? A stopped or half-trained one has no time."""
    return record.get("train_seconds") is not None


@dataclass
class RowRecords:
    """The records of a row by seed, and why others were refused."""

    row: RowSpec
    by_seed: dict[int, Record] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def offer(self, record: Record, table: TableSpec) -> None:
        """Take a record or note why not; of several with one seed the one that fills most columns counts."""
        seed = record.get("seed")
        reason = self._objection(record, table)
        if reason is not None or not isinstance(seed, int):
            self._refuse(record, reason or "it has no seed")
            return
        taken = self.by_seed.get(seed)
        best = record
        if taken is not None:
            best, other = (record, taken) if _filled(record, table) > _filled(taken, table) else (taken, record)
            if best["id"] != other["id"]:
                self._refuse(other, f"seed {seed} is already there as {best['id']}")
        self.by_seed[seed] = best

    def _refuse(self, record: Record, reason: str) -> None:
        self.refused.append(f"record {record.get('id')} refused: {reason}")

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
        _, mark, number = str(record.get("id")).rpartition("-s")
        if not table.is_own and mark and number.isdecimal() and int(number) != record.get("seed"):
            return f"its seed is {record.get('seed')}, but its id says {number}"
        departs = None if table.is_own else _departure(record)
        return departs or (None if is_finished(record) else "training is not finished")

    def _disagreement(self, record: Record) -> str | None:
        for seed, other in self.by_seed.items():
            if seed == record.get("seed"):
                continue
            if (weights := weights_of(record)) and weights == weights_of(other):
                return f"its weights are those of {other['id']} (both {weights}), and one training is one trial"
            for line in differing(_training(record), _training(other)):
                return f"beside {other['id']} it differs in more than the seed: {line}"
        return None


def _training(record: Record) -> dict[str, Any]:
    """What the records of a cell agree in."""
    return {**{key: record.get(key) for key in _ONE_RUN}, "processes": _processes(record)[0]}


def _filled(record: Record, table: TableSpec) -> int:
    return sum(bool(verdicts(record, column)[0]) for column in table.columns)


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


def evaluations(record: Record) -> list[Mapping[str, Any]]:
    """Everything a run was judged by: the latest evaluation first, then those under other conditions."""
    others: Mapping[str, Mapping[str, Any]] = record.get("evaluations") or {}
    return [found for found in (record.get("evaluation"), *others.values()) if found]


def weights_of(record: Record) -> str | None:
    """The hash of a run's weights, from its training or from what was judged; None where nothing tells it."""
    return record.get("weights") or next((entry.get("weights") for entry in evaluations(record)), None)


def judged(record: Record, column: ColumnSpec) -> tuple[Mapping[str, Any], str]:
    """The evaluation that has a column's verdicts, or an empty one and why there is none."""
    is_clean = column.attack == CLEAN
    found = [entry for entry in evaluations(record) if is_clean or entry.get("protocol") == column.protocol]
    # What the protocol itself asks for goes before what was tried with another seed or search precision.
    found.sort(
        key=lambda entry: (
            column.attack not in entry,
            _is_elsewhere(entry, column),
            entry.get("seed") or 0,
            entry.get("search") is not None,
        )
    )
    reasons = []
    for entry in found:
        reason = _shortcoming(record, entry, column)
        if not reason:
            return entry, ""
        reasons.append(reason)
    return {}, reasons[0] if reasons else f"{column.attack} was not evaluated under protocol {column.protocol}"


def _is_elsewhere(evaluation: Mapping[str, Any], column: ColumnSpec) -> bool:
    """Is it under another protocol or in another ball than the column's? Clean images are the same there."""
    return any(evaluation.get(key) != getattr(column, key) for key in ("protocol", "norm", "eps"))


def _otherness(record: Record, evaluation: Mapping[str, Any], column: ColumnSpec) -> str:
    """In what an evaluation is not the record's or not the column's; "" where it is both.

    Its attack must be what today's code means by the name, setting for setting, and not what other records say: those
    may be the ones that are wrong. A number by what the name meant before is refused too; `evaluate`, which compares
    the same, makes it anew.
    """
    wanted: dict[str, Any] = {} if column.attack == CLEAN else {"norm": column.norm, "eps": column.eps}
    # What either side does not say, as in records of before it was written down, is not compared.
    for key in ("data", "data_fingerprint", "weights"):
        if record.get(key) is not None and evaluation.get(key) is not None:
            wanted[key] = record[key]
    found = {key: evaluation.get(key) for key in wanted}
    if column.meaning is not None:
        found["attack"], wanted["attack"] = evaluation[column.attack].get("attack"), column.meaning
    return next(differing(found, wanted), "")


def _shortcoming(record: Record, evaluation: Mapping[str, Any], column: ColumnSpec) -> str:
    """Why an evaluation cannot fill a column; "" where it can."""
    entry = evaluation.get(column.attack)
    if not entry:
        return f"{column.attack} was not evaluated under protocol {column.protocol}"
    if line := _otherness(record, evaluation, column):
        hint = ", so it was judged before its training ended" if line.startswith("weights") else ""
        return f"{column.attack} refused: {line}{hint}"
    if evaluation.get("seed") and column.attack != CLEAN:
        return f"{column.attack} refused: seed of the evaluation is {evaluation['seed']}, not 0"
    if entry.get("is_standard") is False:
        return f"{column.attack} refused: {entry.get('label') or 'not the standard AutoAttack'}"
    if damage := misfit_verdicts(entry.get("correct"), f"{column.attack}.correct"):
        return f"{column.attack} refused: damaged, {damage}"
    return _miscount(entry["correct"], evaluation.get("test_images"), column)


def _miscount(correct: str, total: int | None, column: ColumnSpec) -> str:
    """Why verdicts are not of the images a column asks for; "" where they are."""
    if column.first is not None:
        few = len(correct) < min(column.first, total or column.first)
        return f"{column.attack} looked at {counted(len(correct), 'image')}, not {column.first:,}" if few else ""
    if not total:
        return f"{column.attack} refused: its evaluation does not say how many test images there are"
    if len(correct) != total:
        return f"{column.attack} looked at {len(correct):,} of {counted(total, 'image')}; see --aa-examples"
    return ""


def verdicts(record: Record, column: ColumnSpec) -> tuple[str, str]:
    """A column's verdict of each image as 0 and 1, or "" and why there is none."""
    evaluation, reason = judged(record, column)
    return (evaluation[column.attack]["correct"][: column.first], "") if evaluation else ("", reason)


class ColumnProtocol:
    """One test set a column, and one attack where the column does not say what it means: those of the first number."""

    def __init__(self, column: ColumnSpec) -> None:
        self.column = column
        self.first: tuple[str, dict[str, Any]] | None = None
        self.precisions: dict[str, str] = {}
        """What searches computed in, each with the first record that says so."""

    def objection(self, record: Record) -> str | None:
        """Why a record that has the column does not go with the ones before it."""
        evaluation, _ = judged(record, self.column)
        entry = evaluation[self.column.attack]
        facts = {
            "attack": entry.get("attack"),
            "data_fingerprint": record.get("data_fingerprint"),
            "test_images": evaluation.get("test_images"),
        }
        if self.first is None:
            self.first = (str(record["id"]), facts)
        name, wanted = self.first
        for line in differing(facts, wanted):
            return f"{self.column.attack} refused: {line} as in {name}"
        if entry.get("search_precision"):
            self.precisions.setdefault(str(entry["search_precision"]), str(record["id"]))
        return None

    @property
    def remark(self) -> str:
        """What a reader must know of the column: searches of several precisions stand in it; "" for one."""
        if len(self.precisions) < 2:
            return ""
        found = ", ".join(f"{precision} (as in {name})" for precision, name in self.precisions.items())
        return f"{self.column.label} was searched in {found}; every break is confirmed in float32."
