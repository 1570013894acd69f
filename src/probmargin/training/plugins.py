"""What a record says of components that are the user's own: their files, and what of the user's own these import."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from probmargin.evaluation.own_attacks import PREFIX
from probmargin.evaluation.own_code import fingerprints, is_ours
from probmargin.methods.method import Method
from probmargin.methods.plain import COMPONENTS


def plugin_facts(method: Method, monitors: Iterable[str] = ()) -> dict[str, Any]:
    """The record's entry `plugins`; nothing where all components and monitors are this package's, or of no file."""
    registers: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    watching = {("attack", name.removeprefix(PREFIX)) for name in monitors if name.startswith(PREFIX)}
    for slot, name in sorted({*_names(method.plain()), *watching}):
        registry = COMPONENTS[slot]
        module = registry.get(name).__module__
        if not is_ours(module) and name not in registers[module][registry.family]:
            registers[module][registry.family].append(name)
    plugins = [
        {**file, "registers": dict(registers.get(module, {}))} for module, file in fingerprints(registers).items()
    ]
    return {"plugins": plugins} if plugins else {}


def changed_files(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Files of the user's own that both records name, and whose content is another.

    >>> there, here = ({"plugins": [{"file": "mine.py", "sha256": digits}]} for digits in ("e24d", "4f2e"))
    >>> changed_files(there, here)
    ['mine.py']
    """
    known = {plugin["file"]: plugin["sha256"] for plugin in there.get("plugins") or ()}
    mine = here.get("plugins") or ()
    return [one["file"] for one in mine if known.get(one["file"], one["sha256"]) != one["sha256"]]


def _names(recipe: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Slot and name of each component, those that a phase brings too."""
    for settings in (recipe, *(phase["set"] for phase in recipe["phases"])):
        for path, value in settings.items():
            slot = path.removesuffix(".name")
            name = value.get("name") if isinstance(value, Mapping) else value
            if slot in COMPONENTS and name in COMPONENTS[slot].names():
                yield slot, name
