"""The page of all tables beside the kept records, made from these records alone."""

import re
from pathlib import Path

from probmargin.engine.files import write_text
from probmargin.experiments.catalogue import find
from probmargin.experiments.grid import make_grid
from probmargin.experiments.records import read_records
from probmargin.reporting.render import markdown
from probmargin.reporting.tables import Table, build_table

BEGIN, END = "<!-- tables: made by probmargin reproduce --render -->", "<!-- end of tables -->"


def kept_tables(folder: Path) -> list[Table]:
    """Every table at full scale, from the records of a folder and nothing else."""
    records = read_records([folder])
    return [build_table(make_grid(experiment).table(), records) for experiment in find(None)]


def filled_page(folder: Path) -> str | None:
    """The README of a folder of records with its tables made anew; None where it has no place for them."""
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if BEGIN not in text or END not in text:
        return None
    body = "\n".join(markdown(table) for table in kept_tables(folder))
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: f"{BEGIN}\n\n{body}\n{END}", text, flags=re.S)


def write_page(folder: Path) -> Path | None:
    """Fill the README of a folder of records, if it has a place for tables; returns its path."""
    text = filled_page(folder)
    if text is None:
        return None
    write_text(folder / "README.md", text)
    return folder / "README.md"
