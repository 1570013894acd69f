"""From a name to a resolved recipe: preset, data, model, number of epochs, settings."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probmargin.core.arguments import checked
from probmargin.core.errors import UsageError, unknown_name
from probmargin.core.settings import Augment
from probmargin.methods import official, paper
from probmargin.methods.method import Method, Phase
from probmargin.methods.plain import COMPONENTS, from_plain, with_settings
from probmargin.objectives.mart import Mart

Recipe = Callable[[], Method]

_NAMES = (
    "standard at trades mart fat fat-trades fat-mart awp trades-awp gairat gair-trades gair-mart "
    "mail-at mail-trades mail-mart mail-awp"
).split()


def _presets(name: str) -> dict[str, Recipe]:
    attribute = name.replace("-", "_")
    found = {
        "paper": getattr(paper, attribute, None),
        "official": getattr(official, attribute, None),
        "official-2021": getattr(official, f"{attribute}_2021", None),
    }
    return {preset: recipe for preset, recipe in found.items() if recipe is not None}


METHODS: Mapping[str, Mapping[str, Recipe]] = {name: _presets(name) for name in _NAMES}
"""Every named method, and its recipe under each preset it has."""


def named(method: str, preset: str = "paper") -> Method:
    """A method under a preset, before data and model have their say."""
    if not isinstance(method, str):
        raise UsageError(f"method is given as {type(method).__name__}: pass a name such as 'mail-trades', or a Method")
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if preset not in METHODS[method]:
        raise UsageError(f"{method} has no preset {preset!r}, it has {', '.join(METHODS[method])}; choose one of them")
    return METHODS[method][preset]()


def title(method: Method) -> str:
    """A recipe's name, with the components that its named method does not have.

    >>> title(named("mail-at")), title(resolve("mail-at", settings={"margin": "mm_adv", "weight.slope": 2}))
    ('mail-at', 'mail-at with margin mm_adv')
    """
    known = METHODS.get(method.method, {}).get(method.preset)
    if known is None:
        return method.method
    own, base = ({slot: getattr(one, slot) for slot in COMPONENTS} for one in (method, known()))
    names = {slot: "none" if part is None else part.registered_name for slot, part in own.items()}
    changed = [
        f"{slot} {name}" for slot, name in names.items() if name != getattr(base[slot], "registered_name", "none")
    ]
    return f"{method.method} with {' and '.join(changed)}" if changed else method.method


@dataclass(frozen=True)
class DataScale:
    """What a data set brings along, whatever the method: the size of its attacks and of its training."""

    eps: float
    step_size: float
    augment: Augment
    epochs: int | None = None
    """None, here and below: as the recipe says."""
    lr: float | None = None
    weight_decay: float | None = None
    batch_size: int | None = None


DIGITS_SCALE = DataScale(
    eps=0.15, step_size=0.03, epochs=30, lr=0.1, weight_decay=5e-4, augment=Augment(pad=0, flip=False)
)
DATA_SCALES: Mapping[str, DataScale] = {"digits": DIGITS_SCALE}


def at_scale(method: Method, scale: DataScale) -> Method:
    """A recipe at the size a data set asks for."""
    scaled = method if scale.epochs is None else with_epochs(method, scale.epochs)
    settings: dict[str, Any] = {}
    for slot in ("attack", "second_attack"):
        if getattr(method, slot) is not None:
            settings |= {f"{slot}.eps": scale.eps, f"{slot}.step_size": scale.step_size}
    scaled = replace(
        scaled,
        lr=scaled.lr if scale.lr is None else scale.lr,
        weight_decay=scaled.weight_decay if scale.weight_decay is None else scale.weight_decay,
        batch_size=scaled.batch_size if scale.batch_size is None else scale.batch_size,
        augment=scale.augment,
    )
    return with_settings(scaled, settings)


def _for_wide(method: Method) -> Method:
    """The paper trains its wide network with lr 0.1 and weight decay 7e-4; MART's own script takes beta 6 there."""
    wide = replace(method, lr=0.1, weight_decay=7e-4)
    return replace(wide, objective=replace(wide.objective, beta=6.0)) if isinstance(wide.objective, Mart) else wide


def with_epochs(method: Method, epochs: int) -> Method:
    """Scale a schedule to another length: drops, burn-in, phases and warm-up move in proportion.

    >>> shorter = with_epochs(named("mail-at"), 10)
    >>> shorter.lr_milestones, shorter.burn_in_epochs
    ((7, 9), 7)
    """
    if epochs < 1:
        raise UsageError(f"epochs must be 1 or more, not {epochs}")
    share = epochs / method.epochs

    def scaled(epoch: int) -> int:
        return int(epoch * share + 0.5)

    milestones: list[int] = []
    for milestone in method.lr_milestones:
        milestones.append(max(scaled(milestone), milestones[-1] + 1 if milestones else 0))
    phases = tuple(_scaled_phase(phase, scaled) for phase in method.phases)
    awp = method.awp and replace(method.awp, warmup_epochs=scaled(method.awp.warmup_epochs))
    burn_in = min(scaled(method.burn_in_epochs), epochs - 1)
    times: dict[str, Any] = {"lr_milestones": tuple(milestones), "burn_in_epochs": burn_in, "phases": phases}
    return replace(method, epochs=epochs, awp=awp, **times)


def _scaled_phase(phase: Phase, scaled: Callable[[int], int]) -> Phase:
    start = None if phase.start_from_epoch is None else scaled(phase.start_from_epoch)
    return replace(phase, from_epoch=scaled(phase.from_epoch), start_from_epoch=start)


@checked
def resolve(
    method: str | Method = "mail-trades",
    *,
    preset: str = "paper",
    data: str | DataScale = "",
    model: str = "",
    epochs: int | None = None,
    batch_size: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Method:
    """Resolve a recipe. `epochs` scales the schedule; `settings`, by path, are taken as they are and win.

    `data` is a known data set's name, or the scale that one of the user's own asks for.
    """
    if not isinstance(data, str | DataScale):
        raise UsageError(f"data is given as {type(data).__name__}: pass a name such as 'digits', or a DataScale")
    if isinstance(method, Method):
        if preset not in ("paper", method.preset):
            raise UsageError(f"a Method is a recipe already, of preset {method.preset}; leave preset={preset!r} out")
        recipe = method
    else:
        recipe = named(method, preset)
        if preset == "paper" and model.startswith("wrn-"):
            recipe = _for_wide(recipe)
        if scale := data if isinstance(data, DataScale) else DATA_SCALES.get(data):
            recipe = at_scale(recipe, scale)
    if epochs is not None:
        recipe = with_epochs(recipe, epochs)
    if batch_size is not None:
        recipe = replace(recipe, batch_size=batch_size)
    return with_settings(recipe, settings or {})


def read_recipe(path: Path) -> Method:
    """Read a recipe file, such as the recipe.json of another run."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UsageError(f"there is no recipe file {path}; give the recipe.json of a run") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a recipe in JSON ({error}); give the recipe.json of a run") from None
    if not isinstance(plain, dict):
        raise UsageError(f"{path} is not a recipe, which must hold one JSON object; give the recipe.json of a run")
    try:
        return from_plain(plain)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
