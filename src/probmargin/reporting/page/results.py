"""Accuracies with their intervals, the paper's numbers, paired comparisons, and the gap from PGD to AutoAttack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probmargin.core.stats import wilson_interval
from probmargin.core.words import radius
from probmargin.reporting.cells import differing
from probmargin.reporting.compare import Interval, compare
from probmargin.reporting.page.data import RunReport
from probmargin.reporting.page.missing import attacks
from probmargin.reporting.page.words import DASH, attack_name, joined, p_value, percent
from probmargin.reporting.spec import ColumnSpec, Contrast

ALPHA = 0.05


@dataclass(frozen=True)
class Cell:
    """A number with its interval below; a dash where there is none."""

    value: str = DASH
    detail: str = ""
    share: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ResultRow:
    """One run, or what the paper prints for it."""

    title: str
    note: str
    cells: list[Cell]
    is_paper: bool = False


def columns(reports: Sequence[RunReport]) -> list[str]:
    """All attacks any run was judged under, the worst case last."""
    found = [name for report in reports for name in attacks(report.folder.evaluation or {})]
    names = list(dict.fromkeys(found))
    several = any(len(attacks(report.folder.evaluation or {})) > 2 for report in reports)
    return [*names, "worst_case"] if several else names


def result_rows(reports: Sequence[RunReport], names: Sequence[str]) -> list[ResultRow]:
    """A row a run, and the paper's row below it where there is one."""
    rows = []
    for report in reports:
        evaluation = report.folder.evaluation or {}
        where = f"{evaluation['norm']} eps {radius(evaluation['eps'])}" if "eps" in evaluation else "not judged yet"
        rows.append(ResultRow(report.label, where, [_cell(evaluation, name) for name in names]))
        if report.published is not None:
            printed = [_printed(report.published.numbers.get(name)) for name in names]
            rows.append(ResultRow("the paper", report.published.place, printed, is_paper=True))
    return rows


def remarks(evaluation: dict[str, Any] | None) -> list[str]:
    """What an attack's number does not say by itself: that it is not the standard one, and what was warned of.

    >>> aa = {"robust_accuracy": 0.5, "label": "not the standard: 3 classes"}
    >>> remarks({"aa": aa, "warnings": ["gradients vanish"]})
    ['AutoAttack: not the standard: 3 classes', 'gradients vanish']
    """
    found = evaluation or {}
    labels = ((name, found[name].get("label")) for name in attacks(found))
    return [*(f"{attack_name(name)}: {label}" for name, label in labels if label), *(found.get("warnings") or ())]


def _cell(evaluation: dict[str, Any], name: str) -> Cell:
    """A number and its interval; where an attack looked at a part of the images, which."""
    entry = evaluation.get(name)
    if not isinstance(entry, dict) or "interval" not in entry:
        return Cell()
    share = float(entry["accuracy"] if "accuracy" in entry else entry.get("robust_accuracy") or 0.0)
    low, high = entry["interval"]
    seen = int(entry["num_examples"])
    part = f", first {seen:,} images" if seen < int(evaluation.get("num_examples", seen)) else ""
    return Cell(percent(share, 2), f"{percent(low)} to {percent(high)}{part}", share, low, high)


def _printed(numbers: tuple[float, float] | None) -> Cell:
    return Cell() if numbers is None else Cell(f"{numbers[0]:.2f}%", f"± {numbers[1]:.2f} over 5 trials")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One attack on two runs, over the same images; or why they cannot be compared."""

    attack: str
    first: str = ""
    second: str = ""
    points: float = 0.0
    interval: Interval = (0.0, 0.0)
    only_first: int = 0
    only_second: int = 0
    num_examples: int = 0
    is_part: bool = False
    """Do these images leave some out on which one of the two was judged?"""
    p: str = ""
    is_clear: bool = False
    reason: str = ""

    @property
    def words(self) -> str:
        """What the test says."""
        if self.reason:
            return self.reason
        if not self.is_clear:
            return "no clear difference"
        return "clearly better" if self.points > 0 else "clearly worse"


def differences(first: RunReport, second: RunReport, names: Sequence[str]) -> list[Difference]:
    """The second run less the first, under each attack that both have."""
    return [found for name in names if (found := _difference(first, second, name)) is not None]


def _difference(first: RunReport, second: RunReport, name: str) -> Difference | None:
    evaluations = [report.folder.evaluation or {} for report in (first, second)]
    entries = [evaluation.get(name) for evaluation in evaluations]
    if any(not isinstance(entry, dict) or not entry.get("correct") for entry in entries):
        return None
    title = attack_name(name)
    ours, theirs = (_measured(report, name) for report in (second, first))
    if ours.pop("data_fingerprint") != theirs.pop("data_fingerprint"):
        on = [str(report.folder.record.get("data")) for report in (second, first)]
        reason = f"{second.label} was judged on {on[0]}, {first.label} on {on[1]}"
        reason = f"{on[0]} has changed between the two" if on[0] == on[1] else reason
        return Difference(attack=title, reason=f"cannot be compared: {reason}")
    if ours["attacks"] and theirs["attacks"] and ours["attacks"] != theirs["attacks"]:
        tried = [joined([attack_name(attack) for attack in side["attacks"]]) for side in (ours, theirs)]
        reason = f"{second.label} was tried by {tried[0]}, {first.label} by {tried[1]}"
        return Difference(attack=title, reason=f"cannot be compared: {reason}")
    if is_one_network(*evaluations):
        return Difference(attack=title, reason=f"cannot be compared: {second.label} and {first.label} are one network")
    for line in _radii(ours, theirs) or differing(ours, theirs):
        return Difference(attack=title, reason=f"cannot be compared: {line}")
    column = ColumnSpec(title=title, attack=name, protocol="", norm="", eps=0.0)
    texts = {"first": {0: str(entries[0]["correct"])}, "second": {0: str(entries[1]["correct"])}}  # type: ignore[index]
    found = compare(Contrast(title, ("second",), ("first",)), column, texts)
    assert found is not None
    pair, count = found.pairs[0], found.num_examples
    shares = [texts[side][0][:count].count("1") / count for side in ("first", "second")]
    return Difference(
        attack=title,
        first=percent(shares[0], 2),
        second=percent(shares[1], 2),
        points=found.difference,
        interval=found.interval,
        only_first=pair.only_minus,
        only_second=pair.only_plus,
        num_examples=count,
        is_part=any(count < int(evaluation.get("num_examples") or count) for evaluation in evaluations),
        p=p_value(pair.p),
        is_clear=pair.p < ALPHA,
    )


def is_one_network(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Are both of the same weights in the same code?"""
    facts = [(evaluation.get("weights"), evaluation.get("model_code")) for evaluation in (first, second)]
    return facts[0][0] is not None and facts[0] == facts[1]


def _radii(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Radii that differ, as the rest of the page writes them."""
    known = [side["eps"] for side in (ours, theirs) if side.get("eps") is not None]
    texts = [radius(eps) for eps in known]
    return [f"eps is {texts[0]}, not {texts[1]}"] if len(set(texts)) == 2 else []


def _measured(report: RunReport, name: str) -> dict[str, Any]:
    """What two numbers must agree in to be compared."""
    evaluation = report.folder.evaluation or {}
    entry = evaluation.get(name) or {}
    facts = {key: evaluation.get(key) for key in ("norm", "eps", "seed")} if name != "nat" else {}
    fingerprint = report.folder.record.get("data_fingerprint")
    return {**facts, "data_fingerprint": fingerprint, "attack": entry.get("attack"), "attacks": entry.get("attacks")}


@dataclass(frozen=True)
class StageRow:
    """One attack of AutoAttack: how many images it broke of those that stood before it, and what stands then."""

    title: str
    before: int
    broken: int
    standing: str


def stage_rows(evaluation: dict[str, Any] | None) -> list[StageRow]:
    """AutoAttack's attacks one after another; none where it was not run, or not after clean images.

    >>> aa = {"steps": {"apgd-ce": 0.5, "square": 0.25}, "num_examples": 4}
    >>> [(row.title, row.broken, row.standing) for row in stage_rows({"nat": {"correct": "1110111"}, "aa": aa})]
    [('APGD-CE', 1, '50.0%'), ('Square', 1, '25.0%')]
    """
    nat, aa = (evaluation or {}).get("nat") or {}, (evaluation or {}).get("aa") or {}
    if not (nat.get("correct") and aa.get("steps")):
        return []
    count = int(aa["num_examples"])
    before, rows = str(nat["correct"])[:count].count("1"), []
    for name, share in aa["steps"].items():
        left = round(share * count)
        rows.append(StageRow(attack_name(name), before, before - left, percent(share)))
        before = left
    return rows


@dataclass(frozen=True, kw_only=True)
class AttackGap:
    """How much PGD overstates: images that withstand it and fall to AutoAttack."""

    pgd: str
    pgd_share: float
    aa_share: float
    fallen: int
    standing: int
    num_examples: int
    interval: tuple[float, float]

    @property
    def points(self) -> float:
        """Robust accuracy under PGD less that under AutoAttack, in points."""
        return 100 * (self.pgd_share - self.aa_share)


def attack_gap(evaluation: dict[str, Any] | None) -> AttackGap | None:
    """The gap over the images both looked at; None without AutoAttack or without PGD."""
    evaluation = evaluation or {}
    pgds = [name for name in attacks(evaluation) if name.startswith("pgd")]
    aa = evaluation.get("aa")
    if aa is None or not pgds or not aa.get("correct"):
        return None
    # The longest run of steps is the strongest of them.
    name = max(pgds, key=lambda pgd: int("".join(filter(str.isdigit, pgd.partition("x")[0])) or 20))
    count = min(len(aa["correct"]), len(evaluation[name]["correct"]))
    ours, theirs = evaluation[name]["correct"][:count], aa["correct"][:count]
    standing = ours.count("1")
    fallen = sum(pair == ("1", "0") for pair in zip(ours, theirs, strict=True))
    return AttackGap(
        pgd=attack_name(name),
        pgd_share=standing / count,
        aa_share=theirs.count("1") / count,
        fallen=fallen,
        standing=standing,
        num_examples=count,
        interval=wilson_interval(fallen, standing),
    )
