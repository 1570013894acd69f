"""Files that are either whole or not there: written aside, flushed to disk, renamed."""

import errno
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from probmargin.core.errors import UsageError
from probmargin.core.shapes import misfit


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yield a path to write to; it takes the place of `path` once the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = aside_of(path)
    try:
        with _errors_name(path):
            yield aside
            with aside.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(aside, path)
            _sync_folder(path.parent)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """Give the system's errors this file's name where they have none, as those of a full disk have."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def aside_of(path: Path) -> Path:
    """Where this process writes what will take the place of `path`; what killed ones left of it there is removed."""
    part = re.compile(rf"\.{re.escape(path.name)}\.(\d+)\.part")
    for place in path.parent.iterdir():
        found = part.fullmatch(place.name)
        if found and not _another_is_alive(int(found[1])):
            _remove(place)
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _another_is_alive(process: int) -> bool:
    """Whether another process of this number may still be writing."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _remove(place: Path) -> None:
    """Remove a file or a folder, where that is allowed."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        with suppress(OSError):
            place.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the system allows it."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_can_write(path: Path, option: str) -> None:
    """Refuse a place where nothing can be written, before hours are spent on what is to go there; leaves no trace."""
    folder = next(place for place in (path, *path.absolute().parents) if place.exists())
    where = folder.parent if folder == path and not path.is_dir() else folder
    try:
        if not where.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(where))
        with tempfile.TemporaryFile(dir=where):
            pass
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UsageError(f"cannot write to {path} ({error.strerror}: {where}); choose another {option}") from None


def can_write(path: Path) -> bool:
    """Whether something can be written there."""
    try:
        check_can_write(path, "")
    except (UsageError, OSError):
        return False
    return True


def check_file(path: Path, option: str) -> None:
    """Refuse a place that cannot be a file we write."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a file; choose another {option}")
    check_can_write(path, option)


def check_folder(path: Path, option: str) -> None:
    """Refuse a place that cannot be a folder we write into."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file, not a folder; choose another {option}")
    check_can_write(path, option)


def check_is_new(path: Path, option: str) -> None:
    """Refuse to write over a file or folder that is there."""
    if path.exists():
        raise UsageError(f"{path} is there already and is left as it is; remove it or choose another {option}")
    check_can_write(path, option)


_JSON = ("record.json", "recipe.json", "metrics.jsonl", "evaluation.json", "audit.json")
RUN_FILES = (*_JSON, "evaluation.npz", "dynamics.npz", "label_noise.npz")
"""What a run's folder keeps under these names is the run's own."""


def check_replaces(path: Path, option: str, kind: str, is_kind: Callable[[Path], bool]) -> None:
    """Refuse to write over a file of another kind than ours, and over what belongs to a run."""
    check_file(path, option)
    folder = path.parent.resolve()
    run = folder.parent if folder.name == "checkpoints" else folder
    if (run / "record.json").exists() and (run != folder or path.name in RUN_FILES):
        raise UsageError(f"{path} belongs to the run in {run}; choose another {option}")
    if path.exists() and not is_kind(path):
        raise UsageError(f"{path} is there already and is no {kind}, so it is left as it is; choose another {option}")


def holds_json(path: Path, *fields: str) -> bool:
    """Whether a file is one JSON object with these fields."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and set(fields) <= set(content)


def holds_arrays(path: Path, *names: str) -> bool:
    """Whether a file is an .npz with arrays of these names."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {f"{name}.npy" for name in names} <= set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def write_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all."""
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path, plain: Any) -> None:
    """Write plain data as indented JSON, whole or not at all."""
    write_text(path, json.dumps(plain, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; a damaged one is an error that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}; check its name") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is damaged ({error}); make it again") from None


def read_json_object(path: Path, shape: Callable[[Any], str] | None = None) -> dict[str, Any]:
    """Read a JSON file that holds one object; `shape` says what else is wrong with it, "" for nothing."""
    plain = read_json(path)
    if why := misfit(plain, dict[str, Any]) or (shape(plain) if shape else ""):
        raise UsageError(f"{path} is damaged ({why}); bring back a copy of it, or make it again")
    return dict(plain)


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a line for each, whole or not at all."""
    write_text(path, "".join(f"{json.dumps(row, allow_nan=False)}\n" for row in rows))


def append_json_line(path: Path, plain: Any) -> None:
    """Add one object to a file of JSON lines."""
    with _errors_name(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(plain, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_json_lines(path: Path, shape: Callable[[Any], str]) -> list[dict[str, Any]]:
    """Read a file of JSON lines; a last line cut short by a crash is left out."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            why = shape(row)
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            why = str(error)
        if why:
            raise UsageError(f"{path} is damaged in line {number} ({why}); repair or delete that line")
        rows.append(row)
    return rows
