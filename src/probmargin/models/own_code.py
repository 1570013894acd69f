"""What makes a user's model beside its weights: the files it is written in, with what of the user's own they import,
and what its layers are set to."""

import ast
import hashlib
import re
import sys
import sysconfig
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial
from importlib.util import resolve_name
from pathlib import Path, PurePath
from types import MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

_KNOWN = ("torch", "probmargin")
"""Packages whose versions a record names."""
_INSTALLED = ("site-packages", "dist-packages")
_EVERY_LAYERS = frozenset(vars(nn.Module()))
"""What each layer holds, of whatever kind."""
_DEEPEST = 30
"""Levels of values within values that are told."""


def modules_of(model: nn.Module, name: str) -> list[str]:
    """The modules that a network's layers, and the factory of its name, are of, but for torch's and this package's."""
    modules = {type(layer).__module__ for layer in model.modules()}
    if ":" in name:
        modules.add(name.partition(":")[0])
    return sorted(one for one in modules if not _is_known(one))


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
        if name in files or module is None or path is None or _is_known(name):
            continue
        files[name] = path
        waiting += [one for one in _imports(module, path) if not _is_installed(_file(sys.modules.get(one)))]
    return files


def fingerprints(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """What a record says of the same files: how each is called, and the SHA-256 of its content."""
    return {
        name: {"file": _shown(name, path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for name, path in sorted(own_files(names).items())
    }


def changed_files(there: Iterable[Mapping[str, Any]], here: Iterable[Mapping[str, Any]]) -> list[str]:
    """Files of the user's own whose content is another than it was: known by their name, or by what they register.

    >>> there, here = ([{"file": "mine.py", "sha256": digits}] for digits in ("e24d", "4f2e"))
    >>> changed_files(there, here)
    ['mine.py']
    """
    known: dict[Any, str] = {}
    for one in there:
        known |= dict.fromkeys(_marks(one), one["sha256"])
    return [one["file"] for one in here if any(known.get(mark, one["sha256"]) != one["sha256"] for mark in _marks(one))]


def _marks(file: Mapping[str, Any]) -> list[Any]:
    """What a file is known by: its name, and each component it registers."""
    registers = file.get("registers") or {}
    return [file["file"], *((family, name) for family, names in registers.items() for name in names)]


def _shown(module: str, path: Path) -> str:
    """A file as it lies in the folder that its module is imported from.

    >>> _shown("mine", Path("/home/me/mine.py")), _shown("lab.mine", Path("/home/me/lab/mine.py"))
    ('mine.py', 'lab/mine.py')
    >>> _shown("lab", Path("/home/me/lab/__init__.py"))
    'lab/__init__.py'
    """
    count = len(module.split(".")) + (path.name == "__init__.py")
    return Path(*path.parts[-count:]).as_posix()


def settings_of_layers(model: nn.Module) -> dict[str, str]:
    """What layers hold beside their weights, by place; a file or a variable may set it.

    Numbers, words, tensors, and the attributes of plain objects count. Functions count by their name, whatever they
    have captured; networks that are no registered layers, and objects of Python's or of installed packages that are no
    dataclasses, by their kind.

    >>> layer = nn.Identity()
    >>> layer.level, layer._names = 0.5, {"first": ["a", None]}
    >>> settings_of_layers(layer)
    {'level': '0.5', '_names': "{'first':['a',None]}"}
    """
    kept = model.state_dict()
    return {
        where: _Words().of(value)
        for place, layer in model.named_modules()
        for name, value in {**vars(layer), **layer._buffers}.items()
        if name not in _EVERY_LAYERS and (where := f"{place}.{name}".lstrip(".")) not in kept
    }


class _Words:
    """A value in words that are the same in every process, on every machine; of what is not plain, its kind."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[object, str]] = {}
        """By id, what was said of a value that holds others; the value itself, so that no other takes its id."""
        self.depth = 0

    def of(self, value: object) -> str:
        """The words; what holds itself is not told twice, and what lies very deep by its kind."""
        if isinstance(value, torch.Tensor):
            return _tensor(value)
        if isinstance(value, str | PurePath):
            return _anywhere(str(value))
        # NumPy's float64 is a float too, whose repr is another in another version.
        is_plain = isinstance(value, bool | int | float | complex | bytes | torch.dtype | None)
        if is_plain and not isinstance(value, np.generic):
            return repr(value)
        kind = _kind(value)
        if id(value) in self.known or self.depth == _DEEPEST:
            return self.known.get(id(value), (value, kind))[1]
        self.known[id(value)] = value, f"{kind} again"
        self.depth += 1
        words = self._held(value, kind)
        self.depth -= 1
        self.known[id(value)] = value, words
        return words

    def _held(self, value: object, kind: str) -> str:
        if isinstance(value, dict):
            return "{" + ",".join(f"{self.of(key)}:{self.of(one)}" for key, one in value.items()) + "}"
        if isinstance(value, list | tuple):
            return "[" + ",".join(self.of(one) for one in value) + "]"
        if isinstance(value, set | frozenset):
            return "{" + ",".join(sorted(self._apart(one) for one in value)) + "}"
        if isinstance(value, np.ndarray | np.generic):
            plain = self.of(value.tolist()) if value.dtype.hasobject else hashlib.sha256(value.tobytes()).hexdigest()
            return f"{value.shape} {value.dtype} {plain}"
        attributes = _attributes(value)
        if not attributes:
            return kind
        told = ",".join(f"{name}:{self.of(one)}" for name, one in sorted(attributes.items()))
        return f"{kind} {hashlib.sha256(told.encode()).hexdigest()}"

    def _apart(self, value: object) -> str:
        """The words for one of a set, two levels deep, by which nothing hangs on the set's order."""
        words = _Words()
        words.known, words.depth = dict(self.known), max(self.depth, _DEEPEST - 2)
        return words.of(value)


def _kind(value: object) -> str:
    """The name of a function or a class, and else that of the class."""
    try:
        name = getattr(value, "__qualname__", None)
    # Whatever the lookup of an object's own raises for a name that it does not have.
    except Exception:
        name = None
    return name if isinstance(name, str) else type(value).__name__


def _attributes(value: object) -> dict[str, object]:
    """What a plain object holds by name; nothing of functions, of networks, and of what others' classes keep inside.

    >>> _attributes(SimpleNamespace(level=2)), _attributes(partial(max, 1)), _attributes(nn.ReLU())
    ({'level': 2}, {'func': <built-in function max>, 'args': (1,), 'keywords': {}}, {})
    """
    if isinstance(value, partial):
        return {"func": value.func, "args": value.args, "keywords": value.keywords}
    is_known = is_dataclass(value) or isinstance(value, SimpleNamespace | Namespace)
    module = type(value).__module__
    is_own = module == "__main__" or not _is_installed(_file(sys.modules.get(module)))
    if isinstance(value, type | nn.Module) or not (is_known or is_own):
        return {}
    held: dict[str, object] = {}
    for name, slot in (pair for one in type(value).__mro__ for pair in vars(one).items()):
        if isinstance(slot, MemberDescriptorType) and name != "__dict__":
            with suppress(AttributeError):
                held[name] = slot.__get__(value)
    # Whatever an object without __dict__, or with one of its own making, raises.
    with suppress(Exception):
        held |= vars(value)
    return held


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


def _is_known(name: str) -> bool:
    """Whether a module is torch's or this package's."""
    return name.partition(".")[0] in _KNOWN


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
