"""A folder in RobustBench's form: the model's definition, its weights, and its claims."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import torch

from probmargin.core.errors import Failure
from probmargin.core.types import Classifier
from probmargin.core.words import radius
from probmargin.engine.files import write_json
from probmargin.export.source import sources
from probmargin.export.subject import Exported
from probmargin.models.own import failed_at

STANDARD_EPS = 8 / 255


def write_bundle(subject: Exported, folder: Path) -> None:
    """model.py, a user's own network.py, weights.pt and model_info.json."""
    files = sources(subject)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    torch.save(dict(subject.model.state_dict()), folder / "weights.pt")
    write_json(folder / "model_info.json", claims(subject))


def read_bundle(folder: Path, _: Exported) -> Classifier:
    """The model built from the bundle's own files."""
    try:
        return _built(folder)
    except (Exception, SystemExit) as error:
        raise Failure(
            f"the written bundle cannot be read: {failed_at(error)}; try another --format, the bundle was removed"
        ) from None


def _built(folder: Path) -> Classifier:
    spec = importlib.util.spec_from_file_location("probmargin_bundle", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    wrote, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
        # Without a name of its own it takes the file beside it, as its user will.
        model: Classifier = module.load_model()
    finally:
        sys.dont_write_bytecode = wrote
    return model


def claims(subject: Exported) -> dict[str, Any]:
    """RobustBench's model_info; accuracies are texts there, and null here where nobody has measured them."""
    evaluation = subject.evaluation or {}
    norm, eps = evaluation.get("norm"), evaluation.get("eps")
    nat, standard = _full(subject, "nat"), _full(subject, "aa")
    _, trained_eps = subject.ball
    judged = eps if eps is not None else trained_eps
    return {
        "link": None,
        "name": f"{subject.recipe.method} ({subject.recipe.preset})",
        "authors": None,
        "additional_data": False,
        "number_forward_passes": 1,
        "dataset": subject.record["data"],
        "venue": "Unpublished",
        "architecture": architecture(str(subject.record["model"])),
        "eps": radius(judged),
        "clean_acc": nat,
        "reported": standard,
        "autoattack_acc": standard,
        "footnote": " ".join(_footnotes(subject, norm, judged)) or None,
    }


def _full(subject: Exported, attack: str) -> str | None:
    """An accuracy in percent over all test images, by AutoAttack's standard where it is AutoAttack's."""
    evaluation = subject.evaluation or {}
    entry, total = evaluation.get(attack), evaluation.get("test_images") or len(subject.data.test)
    if entry is None or entry["num_examples"] < total or entry.get("is_standard") is False:
        return None
    return f"{100 * entry['accuracy' if attack == 'nat' else 'robust_accuracy']:.2f}"


def _footnotes(subject: Exported, norm: str | None, eps: float) -> list[str]:
    notes = []
    if abs(eps - STANDARD_EPS) > 1e-9:
        notes.append(f"{'Evaluated at' if subject.evaluation else 'Trained for'} eps {radius(eps)}, not 8/255.")
    if norm not in (None, "Linf"):
        notes.append(f"The norm is {norm}.")
    entry = (subject.evaluation or {}).get("aa")
    if entry is not None and _full(subject, "aa") is None:
        notes.append(f"AutoAttack on {entry['num_examples']} images: {100 * entry['robust_accuracy']:.2f}.")
    if started := subject.record.get("checkpoint_file"):
        notes.append(f"Training started from {started}, whose data is not known here.")
    return notes


def architecture(model: str) -> str:
    """A model's name as RobustBench writes it.

    >>> architecture("wrn-34-10"), architecture("preact-resnet18"), architecture("mynet:build")
    ('WideResNet-34-10', 'PreActResNet-18', 'mynet:build')
    """
    known = {"resnet18": "ResNet-18", "preact-resnet18": "PreActResNet-18", "small-cnn": "SmallCNN"}
    return known.get(model, re.sub(r"^wrn-", "WideResNet-", model))
