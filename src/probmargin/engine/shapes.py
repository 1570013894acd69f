"""What the JSON files of a run's folder hold, as far as their readers count on it."""

from typing import Any, NotRequired, TypedDict

from probmargin.core.shapes import misfit


class ModelSettings(TypedDict):
    """How a run's network is built."""

    num_classes: int
    in_channels: int
    mean_std: NotRequired[list[list[float]] | None]


class MonitorFacts(TypedDict):
    """What a run's curves on test images are of."""

    counts: dict[str, int]


class Component(TypedDict):
    """A part of a recipe."""

    name: str
    norm: NotRequired[str]
    eps: NotRequired[float]


class RecipeShape(TypedDict, total=False):
    """recipe.json, as far as a page shows it; building the recipe checks all of it."""

    method: str
    preset: str
    epochs: int
    lr_milestones: list[int]
    burn_in_epochs: int
    attack: Component | None
    margin: Component
    weight: Component
    normalizer: Component
    objective: Component


class RecordShape(TypedDict):
    """record.json."""

    id: str
    recipe: RecipeShape
    recipe_hash: NotRequired[str]
    method: NotRequired[str]
    seed: int
    data: str
    model: str
    data_fingerprint: NotRequired[str | None]
    model_settings: NotRequired[ModelSettings | None]
    validation: NotRequired[int | None]
    label_noise: NotRequired[str | None]
    checkpoint_file: NotRequired[str | None]
    forked_from: NotRequired["Origin | None"]
    image_shape: NotRequired[list[int] | None]
    class_counts: NotRequired[dict[str, int]]
    options: NotRequired[dict[str, Any]]
    monitors: NotRequired[MonitorFacts]
    compile: NotRequired[str]
    processes: NotRequired[int]
    plugins: NotRequired[list["Plugin"]]
    resumes: NotRequired[list["Place"]]
    train_seconds: NotRequired[float]
    train_seconds_before_fork: NotRequired[float]
    train_seconds_after_fork: NotRequired[float]
    images_per_second: NotRequired[float]
    epochs_trained: NotRequired[int]
    held_out_accuracy: NotRequired[dict[str, dict[str, float | None]]]
    evaluation: NotRequired[dict[str, Any] | None]
    evaluations: NotRequired[dict[str, dict[str, Any]] | None]


class Plugin(TypedDict):
    """A file of the user's own that a run was trained with; one that such a file imports registers nothing."""

    file: str
    sha256: str
    registers: dict[str, list[str]]
    """Names of the recipe's components that it has, by family."""


class Origin(TypedDict):
    """The run another one branched off from."""

    run: str
    epoch: int
    compile: NotRequired[str]
    """Where it was another than the new run's."""


class Place(TypedDict):
    """A state that a run has gone on from: epochs behind it, batches of the epoch under way, and what had changed."""

    epoch: int
    batch: int
    hardware: NotRequired[str]
    precision: NotRequired[str]
    compile: NotRequired[str]
    processes: NotRequired[int]
    sync_bn: NotRequired[bool]
    plugins: NotRequired[list[Plugin]]
    before: NotRequired["Before"]


class Before(TypedDict):
    """Entries of the record that a start has changed, as they were."""

    options: NotRequired[dict[str, Any] | None]
    monitors: NotRequired[MonitorFacts | None]


class BestLook(TypedDict):
    """The best look at held-out images so far."""

    epoch: int
    natural_accuracy: float | None
    robust_accuracy: NotRequired[float | None]
    looks_since: int


class StateShape(TypedDict):
    """checkpoints/state-*.json and best.json."""

    epoch: int
    batch: int
    seconds: float
    images: int
    best: NotRequired[BestLook | None]
    top_accuracy: NotRequired[float]


class Look(TypedDict):
    """One look at held-out images."""

    natural_accuracy: float | None
    robust_accuracy: NotRequired[float | None]


class EpochShape(TypedDict):
    """A line of metrics.jsonl."""

    epoch: int
    loss: NotRequired[float | None]
    monitors: NotRequired[dict[str, float | None] | None]
    validation: NotRequired[Look | None]


class EntryShape(TypedDict):
    """What one attack of an evaluation found."""

    interval: list[float]
    num_examples: int
    first: NotRequired[int]
    accuracy: NotRequired[float]
    robust_accuracy: NotRequired[float]
    per_class: NotRequired[list[float | None]]
    correct: NotRequired[str]
    steps: NotRequired[dict[str, float]]
    attack: NotRequired[dict[str, Any] | list[Any]]
    attacks: NotRequired[list[str]]
    confusion: NotRequired[list[list[int]]]
    warnings: NotRequired[list[str]]


class EvaluationShape(TypedDict):
    """evaluation.json, beside an entry for each attack."""

    norm: str
    eps: float
    model: NotRequired[str]
    classes: NotRequired[list[str]]
    data_as_read: NotRequired[str]
    num_examples: NotRequired[int]
    protocol: NotRequired[str]
    seed: NotRequired[int]
    test_images: NotRequired[int]
    weights: NotRequired[str | None]
    margins: NotRequired[dict[str, Any]]
    warnings: NotRequired[list[str]]


class CheckShape(TypedDict):
    """One check of an audit."""

    name: str
    verdict: str
    measures: str
    threshold: float
    advice: str
    value: NotRequired[float | None]


class AuditShape(TypedDict):
    """audit.json."""

    verdict: str
    checks: list[CheckShape]
    norm: NotRequired[str]
    eps: NotRequired[float]
    num_examples: NotRequired[int]
    weights: NotRequired[str]


def misfit_evaluation(plain: Any, path: str = "") -> str:
    """What keeps this from being an evaluation; "" where nothing does."""
    if found := misfit(plain, EvaluationShape, path):
        return found
    facts = EvaluationShape.__annotations__
    for name, entry in plain.items():
        if isinstance(entry, dict) and name not in facts:
            where = f"{path}.{name}" if path else name
            if found := _misfit_entry(entry, where, "accuracy" if name == "nat" else "robust_accuracy"):
                return found
    return ""


def _misfit_entry(entry: dict[str, Any], where: str, measure: str) -> str:
    if "correct" in entry and (found := misfit_verdicts(entry["correct"], f"{where}.correct")):
        return found
    if "interval" not in entry:
        return ""
    if found := misfit(entry, EntryShape, where):
        return found
    if len(entry["interval"]) != 2 or measure not in entry:
        return f"{where} lacks {measure} or the two ends of its interval"
    return ""


def misfit_verdicts(plain: Any, path: str) -> str:
    """What keeps this from being verdicts, a 1 for each image that is right and a 0 for each that is not.

    >>> misfit_verdicts("0110", "correct"), misfit_verdicts("01x1", "correct"), misfit_verdicts(5, "correct")
    ('', 'correct has other characters than 0 and 1', 'correct is a number')
    """
    if found := misfit(plain, str, path):
        return found
    return f"{path} has other characters than 0 and 1" if plain.strip("01") else ""


def misfit_record(plain: Any) -> str:
    """What keeps this from being a run's record; "" where nothing does."""
    if found := misfit(plain, RecordShape):
        return found
    judged = {"evaluation": plain.get("evaluation"), **(plain.get("evaluations") or {})}
    return next((found for name, part in judged.items() if part and (found := misfit_evaluation(part, name))), "")


def misfit_recipe(plain: Any) -> str:
    """What keeps this from being a recipe; "" where nothing does."""
    return misfit(plain, RecipeShape)


def misfit_audit(plain: Any) -> str:
    """What keeps this from being an audit; "" where nothing does."""
    return misfit(plain, AuditShape)


def misfit_state(plain: Any) -> str:
    """What keeps this from being the facts of a run's state; "" where nothing does."""
    return misfit(plain, StateShape)


def misfit_epoch(plain: Any) -> str:
    """What keeps this from being an epoch's line; "" where nothing does."""
    return misfit(plain, EpochShape)
