"""What a record says of components that are the user's own: their files, and what of the user's own these import."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from probmargin.core.registry import is_own
from probmargin.evaluation.own_attacks import PREFIX
from probmargin.methods.method import Method
from probmargin.methods.plain import COMPONENTS
from probmargin.methods.plugins import component_names
from probmargin.models.own_code import fingerprints, own_files


def plugin_facts(method: Method, monitors: Iterable[str] = ()) -> dict[str, Any]:
    """The record's entry `plugins`; nothing where all components and monitors are this package's, or of no file."""
    registers: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    watching = {("attack", name.removeprefix(PREFIX)) for name in monitors if name.startswith(PREFIX)}
    for slot, name in sorted({*_known(method), *watching}):
        registry = COMPONENTS[slot]
        part = registry.get(name)
        if is_own(part) and name not in registers[part.__module__][registry.family]:
            registers[part.__module__][registry.family].append(name)
    plugins = [
        {**file, "registers": dict(registers.get(module, {}))} for module, file in fingerprints(registers).items()
    ]
    return {"plugins": plugins} if plugins else {}


def of_no_file(method: Method) -> str | None:
    """A line on components of the user's own whose code no file holds; None where there are none."""
    parts = {f"{COMPONENTS[slot].family} {name!r}": COMPONENTS[slot].get(name) for slot, name in sorted(_known(method))}
    lost = [what for what, part in parts.items() if is_own(part) and not own_files([part.__module__])]
    if not lost:
        return None
    return (
        f"no file holds {' and '.join(lost)}: the record cannot name its code, and no other process can judge the run "
        "before it registers the same; put it in FILE.py and import that, or give --plugin FILE.py"
    )


def _known(method: Method) -> Iterator[tuple[str, str]]:
    """The recipe's components by slot and name; what no registry knows is of no file."""
    names = component_names(method.plain())
    return ((slot, name) for slot, name in names if name in COMPONENTS[slot].names())
