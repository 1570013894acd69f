"""What makes a user's model beside its weights: the files it is written in, with what of the user's own they import,
and what its layers are set to."""

import ast
import hashlib
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import nn

_OURS = ("torch", "probmargin")
_INSTALLED = ("site-packages", "dist-packages")
_EVERY_LAYERS = frozenset(vars(nn.Module()))
"""What each layer holds, of whatever kind."""


def own_files(names: Iterable[str]) -> dict[str, Path]:
    """The files of these modules, and of all that they import and nobody installed, by module.

    What was not imported is left out.

    >>> own_files(["no.such.module"]), own_files(["torch.nn"])
    ({}, {})
    """
    files: dict[str, Path] = {}
    waiting = [one for name in names for one in _with_packages(name)]
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        path = _file(module)
        if name in files or module is None or path is None or is_ours(name):
            continue
        files[name] = path
        waiting += [one for one in _imports(module, path) if not _is_installed(_file(sys.modules.get(one)))]
    return files


def settings_of_layers(model: nn.Module) -> dict[str, str]:
    """Numbers, words and tensors that layers hold beside their weights, by place; a file or a variable may set them.

    >>> layer = nn.Identity()
    >>> layer.level, layer._names = 0.5, {"first": ["a", None]}
    >>> settings_of_layers(layer)
    {'level': '0.5', '_names': "{'first':['a',None]}"}
    """
    kept = model.state_dict()
    return {
        where: _plain(value)
        for place, layer in model.named_modules()
        for name, value in {**vars(layer), **layer._buffers}.items()
        if name not in _EVERY_LAYERS and (where := f"{place}.{name}".lstrip(".")) not in kept
    }


def _plain(value: object) -> str:
    """A value in words that are the same in every process, on every machine; of what is not plain, its kind."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_plain(key)}:{_plain(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_plain(one) for one in value) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ",".join(sorted(_plain(one) for one in value)) + "}"
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray | np.generic):
        plain = _plain(value.tolist()) if value.dtype.hasobject else hashlib.sha256(value.tobytes()).hexdigest()
        return f"{value.shape} {value.dtype} {plain}"
    if isinstance(value, str):
        return _anywhere(value)
    is_plain = isinstance(value, bool | int | float | complex | bytes | None)
    return repr(value) if is_plain else str(getattr(value, "__qualname__", type(value).__name__))


def _anywhere(text: str) -> str:
    """A word without what hangs on the machine: the folder that a file lies in, and which device it is.

    >>> _anywhere("/home/me/net.pt"), _anywhere("cuda:1"), _anywhere("relu")
    ("'net.pt'", 'device', "'relu'")
    """
    if re.fullmatch(r"(cpu|cuda|mps|xpu)(:\d+)?", text):
        return "device"
    return repr(Path(text).name if Path(text).is_absolute() else text)


def _tensor(value: torch.Tensor) -> str:
    kind = f"{tuple(value.shape)} {value.dtype}"
    try:
        dense = value.detach().to_dense().resolve_conj().resolve_neg().cpu().contiguous()
        return f"{kind} {hashlib.sha256(dense.flatten().view(torch.uint8).numpy().data).hexdigest()}"
    except RuntimeError:
        # On no device, or nested: it has no bytes of its own.
        return kind


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
