"""What makes a user's model beside its weights: the files it is written in, with what of the user's own they import,
and what its layers are set to."""

import ast
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

_OURS = ("torch", "probmargin")
_INSTALLED = ("site-packages", "dist-packages")


def own_files(names: Iterable[str]) -> list[Path]:
    """The files of these modules, and of all that they import and nobody installed; what was not imported is left out.

    >>> own_files(["no.such.module"]), own_files(["torch.nn"])
    ([], [])
    """
    files: dict[str, Path] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        path = _file(module)
        if name in files or module is None or path is None or is_ours(name):
            continue
        files[name] = path
        waiting += [one for one in _imports(module, path) if not _is_installed(_file(sys.modules.get(one)))]
    return list(files.values())


def settings_of_layers(model: nn.Module) -> Iterator[bytes]:
    """Numbers, words and tensors that layers hold beside their weights; a file or a variable may have set them.

    >>> layer = nn.Identity()
    >>> layer.level = 0.5
    >>> list(settings_of_layers(layer))
    [b'.level=0.5']
    """
    kept = model.state_dict()
    for place, layer in model.named_modules():
        for name, value in sorted({**vars(layer), **layer._buffers}.items()):
            where = f"{place}.{name}="
            if name.startswith("_") or name == "training" or where.strip(".=") in kept:
                continue
            if isinstance(value, torch.Tensor):
                yield where.encode() + value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            elif isinstance(value, bool | int | float | str | bytes | list | tuple):
                yield f"{where}{_plain(value)}".encode()


def _plain(value: object) -> str:
    """A value in words that are the same in every process; of what is not plain, its kind."""
    if isinstance(value, list | tuple):
        return ",".join(_plain(one) for one in value)
    return repr(value) if isinstance(value, bool | int | float | str | bytes | None) else type(value).__name__


def is_ours(name: str) -> bool:
    """Whether a module is torch's or this package's."""
    return name.partition(".")[0] in _OURS


def _file(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


def _is_installed(path: Path | None) -> bool:
    """Whether a file is Python's own or a package's; one that is not there is as good as that."""
    if path is None or any(part in _INSTALLED for part in path.parts):
        return True
    return any(
        path.resolve().is_relative_to(Path(sysconfig.get_path(kind)).resolve()) for kind in ("stdlib", "purelib")
    )


def _imports(module: ModuleType, path: Path) -> Iterator[str]:
    """Names that a module's source imports, at its top or in a function; some of them may be no modules."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name for alias in node.names for name in _with_packages(alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, module)
            yield from _with_packages(base)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _with_packages(name: str) -> list[str]:
    """A module's name and those of the packages it lies in, whose own files are imported first."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _base(node: ast.ImportFrom, module: ModuleType) -> str:
    """The module that `from ... import` names."""
    try:
        return resolve_name("." * node.level + (node.module or ""), module.__package__ or "")
    except ImportError:
        return ""
