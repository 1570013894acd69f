"""The model card: what a model is, how it was trained, and what was measured, as JSON and as Markdown."""

from datetime import UTC, datetime
from typing import Any

from probmargin._version import __version__
from probmargin.core.shell import judging
from probmargin.core.words import radius
from probmargin.engine.environment import commit
from probmargin.evaluation.parts import weights_hash
from probmargin.evaluation.protocol import DESCRIPTIONS
from probmargin.export.check import Check
from probmargin.export.subject import Exported
from probmargin.methods.resolve import title
from probmargin.runs.weights import mean_std_of

MISSING_LICENCE = "not given; set one with --licence"


_USE = {
    "torch-export": "import torch\n\nmodel = torch.export.load({file!r}).module()",
    "onnx": "import onnxruntime\n\nsession = onnxruntime.InferenceSession({file!r})\n"
    'logits = session.run(["logits"], {{"images": images}})[0]    # images: a float32 array',
    "robustbench": "from model import load_model    # in this folder, which needs torch alone\n\nmodel = load_model()",
}
"""How a file of each format is read; what safetensors needs depends on the model."""
BUNDLE = (
    "`model.py` builds the network (with `network.py`, where that is there), `weights.pt` are its weights, "
    "`model_info.json` is what RobustBench asks for"
)


def how_to_use(subject: Exported, file: str, form: str) -> str:
    """Lines of Python that read the file."""
    if form in _USE:
        return _USE[form].format(file=file)
    name = str(subject.record["model"])
    if subject.settings is None:
        return f"from safetensors.torch import load_file\n\nmodel.load_state_dict(load_file({file!r}))"
    own = f", model={name!r}" if ":" in name else ""
    return f"import probmargin as pm\n\nmodel = pm.load_model({file!r}{own})"


def make_card(subject: Exported, file: str, form: str, check: Check, licence: str | None) -> dict[str, Any]:
    """Everything known, as plain data."""
    record = subject.record
    mean_std = mean_std_of(subject.model)
    norm, eps = subject.ball
    return {
        "name": record["id"],
        "file": file,
        "format": form,
        "use": how_to_use(subject, file, form),
        "made_by": f"probmargin {__version__}",
        "date": datetime.now(UTC).date().isoformat(),
        "licence": licence,
        "model": {
            "name": record["model"],
            "parameters": sum(parameter.numel() for parameter in subject.model.parameters()),
            "weights": weights_hash(subject.model),
            "input": f"float32 images (batch, {', '.join(map(str, subject.x.shape[1:]))}), values in [0, 1]",
            "pictures": _pictures(subject),
            "output": f"logits (batch, {len(subject.classes)})",
            "normalisation": {"mean": mean_std[0], "std": mean_std[1]} if mean_std else _unknown(record),
            "classes": list(subject.classes),
        },
        "method": title(subject.recipe),
        "recipe": subject.recipe.plain(),
        "recipe_hash": subject.recipe.hash(),
        "threat_model": {"norm": norm, "eps": eps, "eps_text": radius(eps)},
        "training": {
            "data": record["data"],
            "images": _trained_on(subject) - (record.get("validation") or 0),
            "held_out": record.get("validation") or 0,
            "label_noise": record.get("label_noise"),
            "data_fingerprint": record.get("data_fingerprint"),
            "seed": record.get("seed"),
            "epochs": subject.epochs,
            "started_from": record.get("checkpoint_file"),
            "changed_since": list(subject.changed),
            "commit": record.get("commit"),
            "hardware": record.get("hardware"),
            "versions": record.get("versions"),
            "seconds": record.get("train_seconds"),
        },
        "accuracy": _accuracy(subject.evaluation),
        "audit": _audit(subject.audit),
        "warnings": (subject.evaluation or {}).get("warnings", []),
        "not_measured": not_measured(subject),
        "check_after_export": check.plain(),
        "exported_at_commit": commit(),
    }


def _unknown(record: dict[str, Any]) -> str:
    """What is known of a normalisation that is not ours: a network of one's own may do it in its forward."""
    is_ours = record.get("model_settings") is not None and ":" not in str(record["model"])
    return "none" if is_ours else "what the network's own code does; give it images in [0, 1]"


def _trained_on(subject: Exported) -> int:
    """Images of the training set, by the record: the data at hand may be other data that the file is checked on."""
    counts = subject.record.get("class_counts")
    return sum(counts.values()) if counts else len(subject.data.train)


def _pictures(subject: Exported) -> str | None:
    """How pictures in files were brought to the input: read otherwise, they get other answers. None for arrays."""
    if not str(subject.record["data"]).startswith("folder:"):
        return None
    channels, height, width = subject.x.shape[1:]
    return (
        f"turned as their EXIF data says, {'grey' if channels == 1 else 'RGB'}, what is transparent white; of another "
        f"size squashed to {width}x{height} by Pillow's BILINEAR; divided by 255"
    )


def _accuracy(evaluation: dict[str, Any] | None) -> list[dict[str, Any]]:
    """One row an attack, with its radius and interval."""
    if evaluation is None:
        return []
    rows = []
    for name, entry in evaluation.items():
        if not isinstance(entry, dict) or "interval" not in entry or name == "worst_case":
            continue
        clean = name == "nat"
        rows.append(
            {
                "attack": name,
                "accuracy": entry["accuracy" if clean else "robust_accuracy"],
                "interval": entry["interval"],
                "num_examples": entry["num_examples"],
                "test_images": evaluation.get("test_images"),
                "meaning": DESCRIPTIONS.get(name),
                "norm": None if clean else evaluation["norm"],
                "eps": None if clean else evaluation["eps"],
                "protocol": evaluation.get("protocol"),
                "label": entry.get("label"),
            }
        )
    return rows


def _audit(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """What an audit said, check by check, without its curves."""
    if found is None:
        return None
    shared = {name: found.get(name) for name in ("verdict", "norm", "eps", "num_examples")}
    return {**shared, "checks": {check["name"]: check["verdict"] for check in found["checks"]}}


def not_measured(subject: Exported) -> list[str]:
    """What a reader would look for and nobody has measured, each with the command that measures it."""
    found = {row["attack"] for row in _accuracy(subject.evaluation)}
    other = [] if subject.state is None else ["--checkpoint", str(subject.state), "--out", "FILE.json"]
    then = "" if subject.state is None else ", then export with --results FILE.json"
    norm, eps = subject.ball
    ball = f'norm="{norm}", eps={radius(eps)}'
    options = f"--model package.module:factory, --checkpoint, --data, --norm {norm} and --eps {radius(eps)}"

    def how(attacks: str) -> str:
        shown = judging(subject.record, "evaluate", subject.run.path, *other, "--attacks", attacks)
        # A run is judged at its own radius by a command; Python asks for it.
        return f"{shown}{then}" if shown else f'pm.evaluate(model, (x, y), "{attacks}", {ball}) in Python'

    missing = []
    if "nat" not in found:
        missing.append(f"natural accuracy on the test set: {how('nat')}")
    if not found - {"nat"}:
        missing.append(f"robust accuracy: {how('nat,pgd-20,aa')}")
    elif "aa" not in found:
        missing.append(f"robust accuracy under AutoAttack: {how('nat,aa')}")
    if subject.audit is None and subject.state is None:
        audit = judging(subject.record, "audit", subject.run.path)
        missing.append(f"signs of masked gradients: {audit or f'probmargin audit with {options}'}")
    return missing


def markdown(card: dict[str, Any]) -> str:
    """The card for people."""
    model, training, threat = card["model"], card["training"], card["threat_model"]
    lines = [
        f"# {_cell(card['name'])}",
        "",
        f"{_cell(model['name'])}, {model['parameters']:,} parameters, trained on {_cell(training['data'])} "
        f"({training['images']:,} images) by `{card['method']}` ({card['recipe']['preset']}) against "
        f"{threat['norm']} perturbations of {threat['eps_text']}.",
        "",
        f"- {'Folder' if card['format'] == 'robustbench' else 'File'}: `{card['file']}`, made {card['date']} by "
        f"{card['made_by']}",
        *([f"- {BUNDLE}"] if card["format"] == "robustbench" else []),
        f"- Licence: {_cell(card['licence'] or 'not given')}",
        f"- Input: {model['input']}; output: {model['output']}",
        *([f"- Pictures in files: {model['pictures']}"] if model["pictures"] else []),
        f"- Normalisation, inside the file: {_normalisation(model['normalisation'])}",
        f"- Classes: {', '.join(_cell(name) for name in model['classes'])}",
        "",
        "```python",
        card["use"],
        "```",
        "",
        "## Accuracy on the test set",
        "",
    ]
    lines += _table(card["accuracy"])
    lines += [f"- {row['attack']}: {_cell(row['meaning'])}" for row in card["accuracy"] if row["meaning"]]
    lines += [f"- {row['attack']}: {_cell(row['label'])}" for row in card["accuracy"] if row["label"]]
    lines += [f"- Warning: {_cell(line)}" for line in card["warnings"]]
    lines += [_audit_line(card["audit"])] if card["audit"] else []
    lines += [f"- Not measured: {_cell(entry)}" for entry in card["not_measured"]]
    lines += ["", "## Training", ""]
    started = training["started_from"]
    lines += [
        f"- Epochs: {training['epochs']} of {card['recipe']['epochs']}; seed {training['seed']}; "
        f"recipe hash `{card['recipe_hash']}`, data fingerprint `{training['data_fingerprint']}`",
        *_conditions(card),
        f"- Started from: {_cell(started) if started else 'random weights'}",
        f"- Code: commit {training['commit'] or 'unknown'}; {_cell(training['hardware'])}",
        "",
        "## Check after export",
        "",
        _check_line(card["check_after_export"]),
        "",
        "The whole recipe is in the JSON file beside this card.",
    ]
    return "\n".join(lines) + "\n"


def _audit_line(audit: dict[str, Any]) -> str:
    """What the audit found, and where it looked."""
    by_verdict = {kind: [name for name, one in audit["checks"].items() if one == kind] for kind in ("warn", "pass")}
    text = f"{len(by_verdict['pass'])} of {len(by_verdict['pass']) + len(by_verdict['warn'])} checks pass"
    if by_verdict["warn"]:
        names = ", ".join(_cell(name) for name in by_verdict["warn"])
        text += f"; part of this robustness may not be real, as {names} show{'s' * (len(by_verdict['warn']) == 1)}"
    where = f"first {audit['num_examples']} test images at {audit['norm']} {radius(audit['eps'])}"
    return f"- Audit, on the {where}: {text}"


def _conditions(card: dict[str, Any]) -> list[str]:
    """What a reader must know of the training to judge the numbers."""
    training, ema = card["training"], card["recipe"].get("ema")
    lines = []
    if training["label_noise"]:
        lines.append(f"- Labels made wrong on purpose: {_cell(training['label_noise'])}")
    if training["held_out"]:
        lines.append(f"- Held out of training, to choose a state: {training['held_out']:,} images")
    if ema:
        lines.append(f"- The weights are a moving average over training (decay {ema['decay']:g})")
    if training["changed_since"]:
        names = ", ".join(map(_cell, training["changed_since"]))
        lines.append(f"- Changed since training: {names}; the weights are here in the network as it was at the export")
    return lines


def _table(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = ["| attack | accuracy | 95% interval | images | norm | eps |", "|---|---|---|---|---|---|"]
    for row in rows:
        low, high = row["interval"]
        eps = "" if row["eps"] is None else radius(row["eps"])
        seen, there = row["num_examples"], row["test_images"] or 0
        images = f"first {seen} of {there}" if seen < there else seen
        lines.append(
            f"| {row['attack']} | {row['accuracy']:.2%} | {low:.2%} to {high:.2%} | {images} | "
            f"{row['norm'] or ''} | {eps} |"
        )
    return [*lines, ""]


def _normalisation(found: Any) -> str:
    if isinstance(found, str):
        return found
    texts = (", ".join(f"{value:.4f}" for value in found[key]) for key in ("mean", "std"))
    return "mean {}; standard deviation {}".format(*texts)


def _check_line(check: dict[str, Any]) -> str:
    text = f"On {check['num_examples']} test images, original and file: natural accuracy "
    text += "{:.2%} and {:.2%}".format(*check["natural"])
    if check["robust"]:
        text += ", under {} {:.2%} and {:.2%}".format(check["attack"], *check["robust"])
    return f"{text}; logits differ by {check['largest_logit_difference']:.1e} at most."


def _cell(text: Any) -> str:
    """Text a user typed, as plain text in Markdown."""
    plain = " ".join(str(text).split())
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>|#" else letter for letter in plain)
