"""A run in sentences that need no background, and its few most important numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from probmargin.core.words import counted, radius
from probmargin.reporting.folder import Folder
from probmargin.reporting.page.data import RunReport
from probmargin.reporting.page.missing import attacks
from probmargin.reporting.page.results import Difference, is_one_network
from probmargin.reporting.page.words import DASH, attack_name, count_of, duration, joined, percent


@dataclass(frozen=True)
class Number:
    """A headline number."""

    title: str
    value: str
    detail: str
    share: float | None = None
    interval: tuple[float, float] | None = None
    tone: str = "plain"
    """plain, good or bad: of the value."""


@dataclass(frozen=True)
class Account:
    """A run in words: what was trained, what it is worth, what the numbers mean, what speaks against them."""

    training: str
    worth: str
    remarks: tuple[str, ...]


def account(report: RunReport) -> Account:
    """Say what there is to say about a run."""
    folder = report.folder
    if folder.evaluation is None:
        worth = "It has not been judged on test images yet, so nothing can be said about its accuracy."
        return Account(_training(folder), worth, tuple(_doubts(folder)))
    remarks = (*_meaning(folder.evaluation), *_doubts(folder))
    return Account(_training(folder), _judged(folder.evaluation), remarks)


def _training(folder: Folder) -> str:
    record = folder.record
    if not folder.is_run:
        model = record.get("model") or "A model"
        return f"{model}, judged on {record.get('data', 'its data')}; {folder.path} says nothing of how it was trained."
    what = f"{record.get('model', 'A model')} trained on {record.get('data', 'its data')} with {folder.method}"
    if record.get("checkpoint_file"):
        what += f", beginning with the weights in {record['checkpoint_file']}"
    if record.get("label_noise"):
        what += f", some labels made wrong on purpose ({record['label_noise']})"
    what += "," if record.get("checkpoint_file") or record.get("label_noise") else ""
    if folder.is_finished:
        took = f" in {duration(record['train_seconds'])}" if "train_seconds" in record else ""
        return f"{what} for {counted(folder.trained, 'epoch')}{took}."
    return f"{what}: not finished, {folder.trained} of {folder.epochs} epochs are done."


def _right(entry: dict[str, Any]) -> tuple[int, int]:
    text = str(entry.get("correct", ""))
    total = len(text) or int(entry.get("num_examples", 0))
    share = entry.get("accuracy", entry.get("robust_accuracy", 0.0))
    return (text.count("1") if text else round(share * total)), total


def _judged(evaluation: dict[str, Any]) -> str:
    nat, worst = evaluation.get("nat"), evaluation.get("worst_case")
    right, total = _right(nat) if nat is not None else (0, 0)
    there = int(evaluation.get("test_images") or total)
    which = f"the first {total:,} of {there:,}" if total < there else f"{total:,}"
    clean = f"Of {which} test images, {count_of(right, total)} are classified correctly" if nat is not None else ""
    if worst is None:
        return f"{clean}; no attack was tried." if clean else "No result can be read."
    held, seen = _right(worst)
    tried = joined([attack_name(name) for name in worst["attacks"]])
    strongest = f"the worst of {tried}" if len(worst["attacks"]) > 1 else tried
    low, high = (percent(share) for share in worst["interval"])
    text = f"after the strongest attack tried ({strongest}; {_ball(evaluation)}), 95% interval {low} to {high}."
    if clean and seen == total:
        return f"{clean}, and {count_of(held, seen)} still are {text}"
    apart = f"Of the {seen:,} images every attack saw, {count_of(held, seen)} are classified correctly {text}"
    return f"{clean}. {apart}" if clean else apart


def _ball(evaluation: dict[str, Any]) -> str:
    return f"{evaluation.get('norm', 'Linf')} eps {radius(float(evaluation.get('eps', 0.0)))}"


def _meaning(evaluation: dict[str, Any]) -> list[str]:
    if evaluation.get("norm") != "Linf" or "worst_case" not in evaluation:
        return []
    change = percent(float(evaluation["eps"]))
    return [f"Such an attack may change every pixel by up to {change} of the range from black to white."]


def _doubts(folder: Folder) -> list[str]:
    found = []
    audit, evaluation = folder.audit, folder.evaluation
    if audit is not None and audit.get("verdict") == "warn":
        names = [str(check["name"]) for check in audit["checks"] if check["verdict"] == "warn"]
        found.append(f"The audit warns ({joined(names)}): part of this robustness may not be real.")
    elif audit is not None:
        found.append("The audit found no sign that this robustness is only apparent.")
    found += _radii(folder)
    if evaluation is not None and "aa" not in attacks(evaluation):
        found.append("AutoAttack, the usual yardstick, has not been run: true robustness may be lower.")
    return found


def _radii(folder: Folder) -> list[str]:
    """What is said where a run was not judged at the radius it was trained for, or not audited where it was judged."""
    evaluation, audit, trained = folder.evaluation or {}, folder.audit or {}, folder.final_attack
    judged, found = _place(evaluation), []
    if judged and _place(trained) and judged != _place(trained):
        found.append(f"It was judged at {judged} and trained for {_place(trained)}.")
    if judged and _place(audit) and judged != _place(audit):
        found.append(f"The audit is at {_place(audit)}, the numbers are at {judged}.")
    return found


def _place(facts: dict[str, Any]) -> str:
    return f"{facts['norm']} eps {radius(float(facts['eps']))}" if {"norm", "eps"} <= set(facts) else ""


def compared(first: RunReport, second: RunReport, found: Sequence[Difference]) -> str:
    """Two runs in one sentence, by the hardest thing both were put to."""
    measured = [difference for difference in found if not difference.reason]
    bare = [report.label for report in (first, second) if report.folder.evaluation is None]
    if bare:
        are = "is" if len(bare) == 1 else "are"
        return f"{' and '.join(bare)} {are} not judged yet, so there is nothing to compare."
    if is_one_network(first.folder.evaluation or {}, second.folder.evaluation or {}):
        return f"{second.label} and {first.label} are one network that was judged twice."
    if not measured:
        return f"{second.label} and {first.label} were not judged in the same way, so they cannot be compared yet."
    last = measured[-1]
    if last.points == 0:
        return f"{second.label} and {first.label} hold equally many images ({last.attack})."
    which = f"first {last.num_examples:,} images" if last.is_part else "images"
    how = f"{abs(last.points):.1f} points {'more' if last.points > 0 else 'fewer'} of the {which}"
    # Over images alone: another seed of the same recipe would be right on others too.
    chance = "more than the choice of images explains" if last.is_clear else "which may be chance"
    return f"{second.label} is right on {how} than {first.label} ({last.attack}), {chance} (p {last.p})."


def numbers(report: RunReport) -> list[Number]:
    """The headline numbers, each with where it comes from."""
    folder = report.folder
    evaluation = folder.evaluation or {}
    return [
        _accuracy("Clean images", evaluation.get("nat"), "accuracy"),
        _accuracy("Strongest attack", evaluation.get("worst_case"), "robust_accuracy"),
        _accuracy("AutoAttack", evaluation.get("aa"), "robust_accuracy"),
        *([_audit(folder)] if folder.is_run else []),
    ]


def _accuracy(title: str, entry: dict[str, Any] | None, key: str) -> Number:
    if entry is None or key not in entry:
        return Number(title, DASH, "not run yet")
    low, high = entry["interval"]
    right, total = _right(entry)
    detail = f"{right:,} of {total:,}; 95% interval {percent(low)} to {percent(high)}"
    # What another ensemble finds, or the same with other losses, is not comparable with what others report.
    detail += "; not the standard one" if entry.get("is_standard") is False else ""
    return Number(title, percent(entry[key]), detail, float(entry[key]), (low, high))


def _audit(folder: Folder) -> Number:
    if folder.audit is None:
        return Number("Audit", DASH, "not run yet")
    checks = [check["verdict"] for check in folder.audit["checks"]]
    passed, ran = checks.count("pass"), len(checks) - checks.count("not run")
    is_good = folder.audit.get("verdict") == "pass"
    detail = f"{passed} of {ran} checks pass" + (f", {len(checks) - ran} not run" if ran < len(checks) else "")
    return Number("Audit", "passes" if is_good else "warns", detail, tone="good" if is_good else "bad")
