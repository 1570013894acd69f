"""A user's own model, named as package.module:factory."""

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from probmargin.core.errors import UsageError
from probmargin.core.shell import typed

Factory = Callable[..., nn.Module]


def own_factory(name: str) -> Factory:
    """Import package.module:factory, looking in the current folder first, as `python -m` does."""
    module_name, _, attribute = name.partition(":")
    _check_name(name, module_name, attribute)
    try:
        with folder_first(Path.cwd()):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise _not_found(name, module_name, str(error.name)) from None
    except (Exception, SystemExit) as error:
        raise failed(f"model {name}: its module cannot be imported", error) from None
    factory: object = getattr(module, attribute, None)
    if not callable(factory):
        raise UsageError(
            f"model {name}: {module.__file__} has no function or class named {attribute!r}; write --model "
            f"{module_name}:NAME with one it has"
        )
    return factory


@contextmanager
def folder_first(folder: Path) -> Iterator[None]:
    """Look for modules in a folder first; afterwards it is the last, where processes that are started find it too."""
    here = str(folder)
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        yield
    finally:
        # Last from now on: a stray file here must not take the place of a package that is imported later.
        if added and here in sys.path:
            sys.path.remove(here)
            sys.path.append(here)


def call_factory(name: str, factory: Factory, settings: dict[str, int]) -> nn.Module:
    """Build the user's model, or say in one line where their code failed."""
    try:
        model: object = _called(factory, settings)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        given = ", ".join(settings) or "no arguments"
        raise failed(f"model {name}: calling it with {given} failed", error) from None
    if not isinstance(model, nn.Module):
        raise UsageError(f"{name} returned {type(model).__name__}, not an nn.Module; return the network itself")
    return model


def _called(factory: Factory, settings: dict[str, int]) -> object:
    """Call a factory; one that only hands its keywords on, as torchvision's do, may not know about channels."""
    try:
        return factory(**settings)
    except TypeError as error:
        if "in_channels" not in str(error) or "in_channels" not in settings:
            raise
        return factory(**{name: value for name, value in settings.items() if name != "in_channels"})


def origin(name: str) -> str | None:
    """Which file a model of the user's own is imported from; None for a model of this package."""
    if ":" not in name:
        return None
    own_factory(name)
    return f"model {name} is imported from {sys.modules[name.partition(':')[0]].__file__}"


def failed_at(error: BaseException) -> str:
    """The error in one line, with the last place of the user's code it went through."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if "site-packages" not in frame.filename and "<frozen" not in frame.filename]
    own = [frame for frame in foreign if not Path(frame.filename).is_relative_to(Path(__file__).parents[1])]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}{place}"


def _check_name(name: str, module_name: str, attribute: str) -> None:
    if module_name.endswith(".py") or "/" in module_name or "\\" in module_name:
        dotted, where = _as_module(Path(module_name.replace("\\", "/")))
        raise UsageError(
            f"model {name} is a file; write it as a module, --model {dotted}:{attribute or 'build'}{where}, "
            "not as a file"
        )
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise UsageError(f"model {name!r} is not package.module:factory; write for example --model mynet:build")


def _as_module(file: Path) -> tuple[str, str]:
    """How a file is named as a module from here; and the folder to be in, where no such name leads to it."""
    file = file.expanduser().resolve().with_suffix("")
    parts = file.relative_to(Path.cwd()).parts if file.is_relative_to(Path.cwd()) else ()
    if parts and all(part.isidentifier() for part in parts):
        return ".".join(parts), ""
    return file.name, f" in the folder {typed(file.parent)}"


def _not_found(name: str, module_name: str, missing: str) -> UsageError:
    if module_name == missing or module_name.startswith(f"{missing}."):
        file = f"{module_name.replace('.', '/')}.py"
        return UsageError(f"model {name}: cannot import {missing}; run in the folder that holds {file}, or install it")
    return UsageError(f"model {name}: its module cannot import {missing}; install {missing} or remove the import")


def failed(what: str, error: BaseException) -> UsageError:
    """Build the error for code of the user's own that fails."""
    return UsageError(f"{what}: {failed_at(error)}; repair it there")
