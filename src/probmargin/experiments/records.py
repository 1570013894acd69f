"""Records on disk: those of finished runs, those kept beside them, and why a run failed."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from probmargin.core.errors import UsageError
from probmargin.core.records import canonical_hash
from probmargin.engine.files import holds_json, read_json_object, write_json, written_aside
from probmargin.engine.shapes import misfit_record
from probmargin.methods.plain import from_plain

Record = dict[str, Any]


def read_records(folders: Iterable[Path]) -> list[Record]:
    """All records of runs in these folders, as ID.json or as a run's own record.json; evaluated ones first."""
    paths = [
        path for folder in folders for path in (*sorted(folder.glob("*/record.json")), *sorted(folder.glob("*.json")))
    ]
    records = [record for path in dict.fromkeys(paths) if (record := _read(path)) is not None]
    return sorted(records, key=lambda record: "evaluation" not in record)


def _read(path: Path) -> Record | None:
    """A run's record; None for a file that is something else, such as the record of a benchmark."""
    if path.name != "record.json" and not holds_json(path, "recipe", "seed"):
        return None
    record = read_json_object(path, misfit_record)
    if record.get("recipe_hash") == canonical_hash(record["recipe"]):
        _complete(record)
    return record


def _complete(record: Record) -> None:
    """Write a recipe out as today's code would: a setting that came later has its default in an older record."""
    try:
        recipe = from_plain(record["recipe"])
    except UsageError:
        return
    record |= {"recipe": recipe.plain(), "recipe_hash": recipe.hash()}


def keep_record(folder: Path, record: Record) -> None:
    """Copy a record to a folder of records, named by its id."""
    write_json(folder / f"{record['id']}.json", record)


def _failure_path(out: Path, run: str) -> Path:
    return out / "failures" / f"{run}.txt"


def note_failure(out: Path, run: str, reason: str, details: str = "") -> None:
    """Write down why a run failed; the first line is the reason, a traceback may follow. No reason clears it."""
    path = _failure_path(out, run)
    if not reason:
        path.unlink(missing_ok=True)
        return
    with written_aside(path) as aside:
        aside.write_text(f"{reason}\n{details}", encoding="utf-8")


def failures(out: Path) -> dict[str, str]:
    """Why runs failed, by run."""
    paths = sorted((out / "failures").glob("*.txt"))
    return {path.stem: path.read_text(encoding="utf-8").partition("\n")[0] for path in paths}
