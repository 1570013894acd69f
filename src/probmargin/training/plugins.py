"""What a record says of components that are the user's own: their files, and what of the user's own these import."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from probmargin.evaluation.own_attacks import PREFIX
from probmargin.evaluation.own_code import fingerprints, is_ours
from probmargin.methods.method import Method
from probmargin.methods.plain import COMPONENTS
from probmargin.methods.plugins import component_names


def plugin_facts(method: Method, monitors: Iterable[str] = ()) -> dict[str, Any]:
    """The record's entry `plugins`; nothing where all components and monitors are this package's, or of no file."""
    registers: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    watching = {("attack", name.removeprefix(PREFIX)) for name in monitors if name.startswith(PREFIX)}
    for slot, name in sorted({*_known(method), *watching}):
        registry = COMPONENTS[slot]
        module = registry.get(name).__module__
        if not is_ours(module) and name not in registers[module][registry.family]:
            registers[module][registry.family].append(name)
    plugins = [
        {**file, "registers": dict(registers.get(module, {}))} for module, file in fingerprints(registers).items()
    ]
    return {"plugins": plugins} if plugins else {}


def _known(method: Method) -> Iterator[tuple[str, str]]:
    """The recipe's components by slot and name; what no registry knows is of no file."""
    names = component_names(method.plain())
    return ((slot, name) for slot, name in names if name in COMPONENTS[slot].names())


def changed_files(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Files of the user's own whose content is not that of the record `there`: by their name, or by what they register.

    >>> there, here = ({"plugins": [{"file": "mine.py", "sha256": digits}]} for digits in ("e24d", "4f2e"))
    >>> changed_files(there, here)
    ['mine.py']
    """
    known: dict[Any, str] = {}
    for plugin in there.get("plugins") or ():
        known |= dict.fromkeys(_marks(plugin), plugin["sha256"])
    mine = here.get("plugins") or ()
    return [one["file"] for one in mine if any(known.get(mark, one["sha256"]) != one["sha256"] for mark in _marks(one))]


def _marks(plugin: Mapping[str, Any]) -> list[Any]:
    """What a file is known by: its name, and each component it registers."""
    registers = plugin.get("registers") or {}
    return [plugin["file"], *((family, name) for family, names in registers.items() for name in names)]
