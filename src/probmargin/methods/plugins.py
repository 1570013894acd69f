"""A user's own margins, weight functions, objectives and attacks: a Python file that registers them."""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from probmargin.attacks.attack import Attack
from probmargin.core.errors import UsageError
from probmargin.core.shell import plugin_word
from probmargin.margins.margin import Margin
from probmargin.methods.plain import COMPONENTS
from probmargin.models.own import failed_at, folder_first
from probmargin.objectives.objective import Objective
from probmargin.weights.weight import Normalizer, Weight

_FAMILIES = {registry.family: registry for registry in COMPONENTS.values()}
_BASES: dict[str, type] = {
    "attack": Attack,
    "margin": Margin,
    "weight": Weight,
    "normalizer": Normalizer,
    "objective": Objective,
}


def load_plugin(name: str) -> None:
    """Import a .py file, or a module by its name from the current folder, so that recipes can name its components."""
    # Asking for all names imports the package's own components first: theirs are taken.
    before = _components()
    module = _import(name)
    found = {key: cls for key, cls in _components().items() if key not in before or _is_of(cls, module)}
    if not found:
        raise UsageError(
            f"plugin {name} registers nothing; put a line such as @MARGINS.register('NAME') above a class of it"
        )
    for (family, own), cls in found.items():
        _check_class(f"plugin {name}: {family} {own!r}", cls, _BASES[family])


def _check_class(what: str, cls: type, base: type) -> None:
    check_frozen(what, cls)
    if not issubclass(cls, base):
        raise UsageError(
            f"{what} is no {base.__name__}; write class {cls.__name__}({base.__name__}), with {base.__name__} from "
            f"{base.__module__}"
        )
    if not hasattr(cls, "needs") and base is Margin:
        raise UsageError(
            f"{what} does not say what it needs; write needs = frozenset({{'logits_adv'}}), or what it is, in class "
            f"{cls.__name__}"
        )
    if not hasattr(cls, "passes") and base is Objective:
        raise UsageError(
            f"{what} does not say which images it passes; write passes = ('adv',), or ('nat', 'adv'), in class "
            f"{cls.__name__}"
        )
    if base is Attack:
        check_ball_fields(what, cls)
    for missing in sorted(getattr(cls, "__abstractmethods__", ())):
        raise UsageError(f"{what} has no {missing}; write it in class {cls.__name__}, as {base.__module__} asks")


def check_frozen(what: str, cls: type) -> None:
    """Refuse what is no frozen dataclass: a state of its own would be lost with a resume, and differ in a fork."""
    # A class that only inherits from a frozen one lets itself be written to.
    params = vars(cls).get("__dataclass_params__")
    fault = "dataclass" if params is None else "frozen dataclass, and may not keep a state of its own"
    if params is None or not params.frozen:
        raise UsageError(
            f"{what} is no {fault}; write @dataclass(frozen=True, kw_only=True) above class {cls.__name__}"
        )


def check_ball_fields(what: str, cls: type) -> None:
    """Refuse an attack whose ball nobody can read: a run is judged, and its card speaks, at the radius of training."""
    settable = {field.name for field in fields(cls) if field.init} if is_dataclass(cls) else set()
    for field in ("norm", "eps"):
        if field not in settable:
            raise UsageError(
                f"{what} has no field {field}; write norm and eps as fields of {cls.__name__}, as PGD has them"
            )


def component_names(recipe: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Slot and name of each component of a plain recipe, those that a phase brings too.

    >>> phase = {"set": {"attack.loss": "ce", "weight": "step"}}
    >>> list(component_names({"margin": {"name": "pm_adv"}, "phases": [phase]}))
    [('margin', 'pm_adv'), ('weight', 'step')]
    """
    for settings in (recipe, *(phase["set"] for phase in recipe.get("phases") or ())):
        for path, value in settings.items():
            slot = path.removesuffix(".name")
            if slot in COMPONENTS:
                yield slot, value.get("name") if isinstance(value, Mapping) else value


def check_plugins(record: Mapping[str, Any], where: Path) -> None:
    """Refuse a recipe with components of the user's own that nobody has imported; its record names their files.

    What only watched the run is not needed to read it.
    """
    named = component_names(record.get("recipe") or {})
    used = {(COMPONENTS[slot].family, name) for slot, name in named if name not in (None, "none", "null")}
    files = {
        (family, name): plugin["file"]
        for plugin in record.get("plugins") or ()
        for family, names in plugin["registers"].items()
        for name in names
    }
    missing = [(family, name) for family, name in sorted(used) if name not in _FAMILIES[family].names()]
    for family, name in missing:
        if (family, name) not in files:
            raise UsageError(
                f"{where} was trained with {family} {name!r}, which is not known here and of no file, as one of a "
                "notebook: write it to a file, and give that before the command, probmargin --plugin FILE.py COMMAND"
            )
    unknown: dict[str, str] = {}
    for key, file in files.items():
        if key in missing:
            unknown.setdefault(file, f"{key[0]} {key[1]!r}")
    if unknown:
        parts = " and ".join(f"{part} of {file}" for file, part in unknown.items())
        words = " ".join(f"--plugin {plugin_word(file)}" for file in unknown)
        are, its = ("are", "their paths") if len(unknown) > 1 else ("is", "its path")
        raise UsageError(
            f"{where} was trained with {parts}, which {are} not loaded; give {its} before the command, "
            f"probmargin {words} COMMAND"
        )


def _components() -> dict[tuple[str, str], type]:
    return {(family, name): known.get(name) for family, known in _FAMILIES.items() for name in known.names()}


def _is_of(cls: type, module: ModuleType) -> bool:
    return f"{cls.__module__}.".startswith(f"{module.__name__}.")


def _import(name: str) -> ModuleType:
    if not name.strip():
        raise UsageError("--plugin is empty: give the path of a .py file, or a module that this folder holds")
    file = Path(name).expanduser().resolve() if name.endswith(".py") or "/" in name or "\\" in name else None
    module_name, folder = (name, Path.cwd()) if file is None else (file.stem, file.parent)
    if file is not None:
        _check_file(name, file)
    try:
        with folder_first(folder):
            module = importlib.import_module(module_name)
    except UsageError as error:
        raise UsageError(f"plugin {name}: {error}") from None
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise UsageError(
                f"there is no plugin {name}; give the path of a .py file, or a module that this folder holds"
            ) from None
        raise UsageError(f"plugin {name} cannot be imported: {failed_at(error)}; repair it there") from None
    if file is not None and Path(str(module.__file__)).resolve() != file:
        raise UsageError(f"plugin {name}: another module is named {module_name}; give the file another name")
    return module


def _check_file(name: str, file: Path) -> None:
    if not file.is_file():
        raise UsageError(f"there is no plugin file {name}; check its path")
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise UsageError(f"plugin {name} cannot be imported under this name; give it one such as my_margin.py")
