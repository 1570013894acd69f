"""Recipes from plain data, changes to them, and their state in one epoch."""

import dataclasses
import json
import typing
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from probmargin.attacks.attack import ATTACKS, Attack
from probmargin.core.errors import UsageError, unknown_name, unknown_setting
from probmargin.core.records import coerce
from probmargin.core.registry import Registry, is_own
from probmargin.core.settings import AWP, EMA
from probmargin.core.words import radius
from probmargin.margins.margin import MARGINS
from probmargin.methods.method import Method, Phase
from probmargin.models.own import failed
from probmargin.objectives.objective import OBJECTIVES
from probmargin.weights.weight import NORMALIZERS, WEIGHTS, Weight

COMPONENTS: dict[str, Registry[Any]] = {
    "attack": ATTACKS,
    "second_attack": ATTACKS,
    "margin": MARGINS,
    "weight": WEIGHTS,
    "normalizer": NORMALIZERS,
    "objective": OBJECTIVES,
}
_OPTIONAL = {"attack", "second_attack", "awp", "ema"}
_SETTINGS: dict[str, type] = {"awp": AWP, "ema": EMA}


def from_plain(plain: Mapping[str, Any]) -> Method:
    """Build a recipe from what `Method.plain` wrote; every name and type is checked.

    >>> from probmargin.methods.resolve import named
    >>> from_plain(named("mail-trades").plain()) == named("mail-trades")
    True
    """
    hints = typing.get_type_hints(Method)
    known = [entry.name for entry in dataclasses.fields(Method)]
    settings: dict[str, Any] = {}
    for key, value in plain.items():
        if key not in known:
            raise unknown_name("setting", key, known)
        settings[key] = _field(key, value, hints[key])
    missing = [name for name in ("method", "preset", "attack", "objective") if name not in settings]
    if missing:
        raise UsageError(f"the recipe lacks {', '.join(missing)}: add them")
    if settings.get("burn_in_epochs") == "first_lr_drop":
        drops = settings.get("lr_milestones", Method.lr_milestones)
        if not drops:
            raise UsageError("burn_in_epochs=first_lr_drop needs lr_milestones: --set lr_milestones=75,90")
        settings["burn_in_epochs"] = drops[0]
    return Method(**settings)


def completed(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe as today's code writes it: a setting that came later has its default; one it cannot read stays.

    >>> from probmargin.methods.resolve import named
    >>> older = {key: value for key, value in named("at").plain().items() if key != "optimizer"}
    >>> completed(older) == named("at").plain()
    True
    """
    try:
        return from_plain(plain).plain()
    except UsageError:
        return dict(plain)


def _field(key: str, value: Any, hint: Any) -> Any:
    if key in _OPTIONAL and (value is None or value in ("none", "null")):
        return None
    if key in COMPONENTS:
        return COMPONENTS[key].build(value, key)
    if key == "phases":
        return _phases(value)
    if key == "burn_in_epochs" and value == "first_lr_drop":
        return value
    return coerce(value, hint, key)


def _phases(value: Any) -> tuple[Phase, ...]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            raise UsageError(f'phases takes a JSON list such as [{{"from_epoch": 5}}], not {value!r}') from None
    if not isinstance(value, list | tuple):
        raise UsageError(f"phases takes a JSON list of objects, not {value!r}")
    return tuple(coerce(item, Phase, "phases") for item in value)


def with_settings(method: Method, settings: Mapping[str, Any]) -> Method:
    """Change settings by path, such as attack.eps or weight; values may be text as typed on a command line.

    Another objective brings its own passes, unless these are given too. Another norm needs its own radius.
    """
    check_radius(method, settings)
    return changed(method, settings)


def changed(method: Method, settings: Mapping[str, Any]) -> Method:
    """What `with_settings` gives, whatever the radius: recipes of runs are read so."""
    plain = method.plain()
    is_tied = method.burn_in_epochs in method.lr_milestones[:1]
    # Components before their fields, in whatever order they were asked for.
    for path, value in sorted(settings.items(), key=lambda item: "." in item[0].removesuffix(".name")):
        _change(plain, path, value.tolist() if hasattr(value, "tolist") else value, settings)
    if plain["objective"]["name"] != method.objective.registered_name and "passes" not in settings:
        plain["passes"] = []
    if is_tied and "lr_milestones" in settings and "burn_in_epochs" not in settings and plain["lr_milestones"]:
        plain["burn_in_epochs"] = "first_lr_drop"
    return from_plain(plain)


def check_radius(method: Method, settings: Mapping[str, Any]) -> None:
    """Refuse another norm with the radius of the one before: 8/255 is a large ball in L-inf and next to none in L2."""
    for head in ("attack", "second_attack"):
        before, plain = getattr(method, head), {head: method.plain()[head]}
        given = {path: value for path, value in settings.items() if path.partition(".")[0] == head}
        for path, value in given.items():
            _change(plain, path, value, given)
        after, whole = plain[head], settings.get(head)
        if not given or not isinstance(after, Mapping) or after.get("name") not in ATTACKS.names():
            continue
        component: Any = ATTACKS.get(after["name"])
        usual: dict[str, Any] = {entry.name: entry.default for entry in dataclasses.fields(component)}
        known = getattr(before, "norm", usual.get("norm"))
        has_eps = f"{head}.eps" in settings or (isinstance(whole, Mapping) and "eps" in whole)
        if "eps" in usual and not has_eps and after.get("norm", known) in {"Linf", "L2"} - {known}:
            eps = getattr(before, "eps", usual["eps"])
            raise UsageError(
                f"{head}.eps {radius(float(eps))} is a radius in {known}: give {head}.eps and {head}.step_size too, "
                f"such as 0.5 and 0.1, for {head}.norm={after['norm']}"
            )


def _change(plain: dict[str, Any], path: str, value: Any, settings: Mapping[str, Any]) -> None:
    head, dot, rest = path.partition(".")
    if head in ("method", "preset"):
        raise UsageError(f"{head} names the recipe and must stay as it is: choose another with --{head}")
    if head not in plain:
        raise unknown_name("setting", head, plain)
    if head in COMPONENTS and (rest == "name" or not dot) and isinstance(value, str) and value not in ("none", "null"):
        asked = {key.partition(".")[2]: given for key, given in settings.items() if key.startswith(f"{head}.")}
        plain[head] = _renamed(head, plain[head], value, asked)
    elif not dot:
        plain[head] = value
    elif "." in rest or head not in COMPONENTS | _SETTINGS.keys() | {"augment"}:
        raise UsageError(f"there is no setting {path!r}; look the names up with --dry-run")
    else:
        plain[head] = _nested(head, plain[head], path, rest) | {rest: value}


def _nested(head: str, current: dict[str, Any] | None, path: str, rest: str) -> dict[str, Any]:
    """The object a dotted path changes; AWP and EMA come into being with their defaults."""
    if current is None and head in _SETTINGS:
        current = dataclasses.asdict(_SETTINGS[head]())
    if current is None:
        raise UsageError(f"{path}: this method has no {head}; choose one first, such as --set {head}=pgd")
    if rest not in current:
        raise unknown_setting(head, rest, [key for key in current if key != "name"], current.get("name", ""))
    return current


def _renamed(head: str, current: dict[str, Any] | None, name: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Another component in the place of one; fields both have keep their values, the rest get their defaults.

    One of the user's own that takes another's place keeps those alone that have no default: a slope in another formula
    is another quantity. Sizes of an attack are those of the images.
    """
    registry = COMPONENTS[head]
    cls, known = registry.get(name), current or {}
    fields = {entry.name: entry for entry in dataclasses.fields(cls) if entry.init}
    begins_anew = is_own(cls) and not issubclass(cls, Attack) and known.get("name") != name
    kept = {key for key, entry in fields.items() if not (begins_anew and _has_default(entry))}
    given = {key: value for key, value in known.items() if key in kept}
    given |= {key: value for key, value in asked.items() if key in fields}
    return dict(registry.spec(registry.build({"name": name, **given}, head)))


def _has_default(entry: "dataclasses.Field[Any]") -> bool:
    return not (entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING)


def parse_assignments(texts: Iterable[str]) -> dict[str, str]:
    """Split PATH=VALUE arguments.

    >>> parse_assignments(["attack.eps=8/255", "epochs=3"])
    {'attack.eps': '8/255', 'epochs': '3'}
    """
    settings = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals or not path.strip():
            raise UsageError(f"--set takes PATH=VALUE, such as attack.eps=8/255, not {text!r}")
        settings[path.strip()] = value.strip()
    return settings


def at(method: Method, epoch: int) -> Method:
    """What `Method.at` gives."""
    now = method
    for phase in sorted(method.phases, key=lambda phase: phase.from_epoch):
        if epoch >= phase.from_epoch:
            now = changed(now, phase.set)
    if now.awp is not None and epoch < now.awp.warmup_epochs:
        now = replace(now, awp=None)
    if epoch < method.burn_in_epochs:
        return replace(now.without_weights(), phases=())
    num_steps = getattr(now.attack, "num_steps", 0)
    weight = _resolved(now.weight, epoch=epoch, epochs=now.epochs, num_steps=num_steps)
    return replace(now, weight=weight, phases=())


def _resolved(weight: Weight, **when: int) -> Weight:
    """A weight function as it is in one epoch; one of the user's own that fails to say so is named."""
    name = weight.registered_name
    try:
        found: object = weight.resolve(**when)
    except Exception as error:
        if isinstance(error, UsageError) or not is_own(weight):
            raise
        raise failed(f"weight {name!r} fails in resolve(epoch={when['epoch']}, ...)", error) from None
    if not isinstance(found, Weight):
        raise UsageError(
            f"weight {name!r}: resolve returns {type(found).__name__}: return a weight, such as replace(self, ...)"
        )
    return found
