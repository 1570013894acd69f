"""Accuracy of a model on clean and attacked images."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from probmargin.attacks.attack import Attack
from probmargin.attacks.balls import Norm
from probmargin.core.errors import UsageError
from probmargin.core.losses import is_correct
from probmargin.core.noise import KeyedNoise
from probmargin.core.settings import check_seed
from probmargin.core.speech import Say, silent
from probmargin.core.types import Classifier, Images, Labels
from probmargin.evaluation.autoattack import Speaker, warnings_before, why_not_standard
from probmargin.evaluation.checks import company_warning, one_class_warning, square_warning
from probmargin.evaluation.network import Ready, SearchPrecision
from probmargin.evaluation.opening import Threat, opened
from probmargin.evaluation.own_attacks import own_label
from probmargin.evaluation.parts import Maker, StoredParts, entry_folder, made_by
from probmargin.evaluation.protocol import Plan, make_plan
from probmargin.evaluation.recheck import RECHECKED, recheck
from probmargin.evaluation.search import (
    Finding,
    Outcome,
    Parts,
    Score,
    Stage,
    Subject,
    run_stages,
)
from probmargin.evaluation.summary import summarize
from probmargin.evaluation.verdicts import EntryVerdicts, Verdicts, outside_line

DEFAULT_CHUNK = 250
_FEW = 8
"""Images that are looked at beside others."""


@dataclass(frozen=True)
class EvaluationSettings:
    """What every attack of an evaluation shares."""

    norm: Norm = "Linf"
    eps: float = 8 / 255
    seed: int = 0
    batch_size: int | None = None
    """Caps memory; verdicts do not depend on it."""
    protocol: str = "custom"
    step_size: float | None = None
    """Of PGD and CW; in proportion to eps where it is left out."""
    aa_examples: int | None = None
    """AutoAttack's ensembles look at the examples with ids below this; None is all."""
    recheck: int | None = None
    """Survivors of AutoAttack's ensembles to attack again in float32; 100 where searches were less precise, else 0."""
    search: SearchPrecision = "auto"

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def conditions(self) -> dict[str, Any]:
        """What results that are compared agree in."""
        chosen = {} if self.search == "auto" else {"search": self.search}
        return {"norm": self.norm, "eps": self.eps, "seed": self.seed, **chosen}


@dataclass(frozen=True)
class Keep:
    """Where an evaluation keeps what it finds, and which part of the test set it looks at."""

    folder: Path | None = None
    """Of partial results; None keeps nothing."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What identifies the model and the data."""
    ids: torch.Tensor | None = None
    """Places in the whole test set, rising; 0, 1, ... where left out."""
    images: bool = False
    """Keep the worst adversarial images."""
    fresh: bool = False
    """Store, but do not use what is stored."""
    hardware: str = ""
    """What this process runs on, in words."""

    def parts(self, plan: Plan, settings: EvaluationSettings, ids: torch.Tensor, precision: str) -> Parts:
        """The partial results of a plan."""
        if self.folder is None or not plan.stages:
            return Parts()
        shared = {**settings.conditions(), "attack": plan.meaning()}
        here = Maker(self.hardware, precision)
        folder = entry_folder(self.folder, plan.name, {**self.identity, **shared})
        return StoredParts(folder, ids.cpu(), with_images=self.images, fresh=self.fresh, here=here)


def correct_under(
    model: Classifier, attack: Attack | None, x: Images, labels: Labels, settings: EvaluationSettings, first: int = 0
) -> torch.Tensor:
    """For each example: is it classified correctly, on the clean image or under the attack? A quick look.

    All forwards go through one chunk shape: the last chunk is filled with copies of its first row. `first` is the
    place of the first example in the whole set, by which noise is keyed.
    """
    size = min(settings.batch_size or DEFAULT_CHUNK, len(x))
    verdicts = []
    for start in range(0, len(x), size):
        rows = torch.arange(start, min(start + size, len(x)), device=x.device)
        filled = torch.cat([rows, rows[:1].expand(size - len(rows))])
        images, wanted = x[filled], labels[filled]
        if attack is not None:
            noise = KeyedNoise(seed=settings.seed, ids=filled + first)
            images = attack(model, images, wanted, noise=noise).x_adv
        with torch.no_grad():
            verdicts.append(is_correct(model(images), wanted)[: len(rows)])
    return torch.cat(verdicts)


class Worst:
    """The least logit margin any attack reached on each example, and the image that has it."""

    def __init__(self, subject: Subject, with_images: bool) -> None:
        self.score = Score.of(subject.logits, subject.labels)
        self.size = torch.zeros(len(subject.labels), dtype=torch.float64)
        self.broken = ~subject.correct
        self.broken_by = ["clean" if wrong else "" for wrong in self.broken.tolist()]
        self.x_adv = subject.x.float().cpu().clone() if with_images else None

    def take(self, finding: Finding, name: str) -> None:
        """Compare what a chunk brought with what was known."""
        rows, score = finding.rows, finding.score
        fresh = finding.broken & ~self.broken[rows]
        better = (score.margin < self.score.margin[rows]) | fresh
        won = rows[better]
        for known, new in zip(vars(self.score).values(), vars(score).values(), strict=True):
            known[won] = new[better]
        self.size[won] = finding.size[better]
        if self.x_adv is not None and finding.x_adv is not None:
            self.x_adv[won] = finding.x_adv.float().cpu()[better]
        for row in rows[fresh].tolist():
            self.broken_by[row] = name
        self.broken[rows[fresh]] = True


def evaluate(
    model: nn.Module,
    x: Images,
    labels: Labels,
    *,
    attacks: Sequence[str] = ("nat", "pgd-20"),
    settings: EvaluationSettings | None = None,
    log: Say | None = None,
) -> dict[str, Any]:
    """Judge a model that turns [0, 1] images into logits; the result is plain data, ready for evaluation.json."""
    verdicts, _ = judge(model, x, labels, attacks=attacks, settings=settings, log=log)
    return summarize(verdicts)


def judge(
    model: Classifier,
    x: Images,
    labels: Labels,
    *,
    attacks: Sequence[str | Plan],
    settings: EvaluationSettings | None = None,
    log: Say | None = None,
    keep: Keep | None = None,
) -> tuple[Verdicts, Images | None]:
    """What is known of each example after all attacks, and the worst images where `keep` asks for them.

    Attacks are named, or plans of one's own.
    """
    settings, keep = settings or EvaluationSettings(), keep or Keep()
    plans = _plans(attacks, settings)
    if len(x) == 0:
        raise UsageError("the data has no images to evaluate: pass at least one")
    say = log or silent
    threat = Threat(settings.norm, settings.eps, settings.seed, keep.ids)
    stages = [stage for plan in plans for stage in plan.stages]
    begun = time.perf_counter()
    with opened(model, x, labels, threat, settings.batch_size, stages, settings.search) as (subject, ready):
        clean_seconds = time.perf_counter() - begun
        worst = Worst(subject, keep.images)
        clean = {name: values.numpy().copy() for name, values in vars(worst.score).items()}
        notes = [*ready.notes, *_warned(subject, plans, say)]
        entries = {}
        for plan in plans:
            part = _part(subject, plan, settings)
            parts = keep.parts(plan, settings, part.ids, ready.precision)
            first = settings.aa_examples if len(part.labels) < len(labels) else None
            entry = _run(part, plan, parts, worst, say, clean_seconds, first)
            made = made_by(parts, Maker(keep.hardware, ready.precision))
            entry.facts.update({} if made.hardware == keep.hardware else {"hardware": made.hardware})
            entry.facts.update(_second_look(part, plan, entry, ready, made, settings.recheck, say))
            entries[plan.name] = entry
    entries[plans[0].name].facts.setdefault("warnings", []).extend(notes)
    verdicts = Verdicts(
        ids=subject.ids.cpu().numpy(),
        labels=labels.cpu().numpy(),
        num_classes=subject.logits.shape[1],
        clean=clean,
        worst={**{name: values.numpy() for name, values in vars(worst.score).items()}, "size": worst.size.numpy()},
        broken_by=tuple(worst.broken_by),
        entries=entries,
        facts={"protocol": settings.protocol, **settings.conditions()},
    )
    return verdicts, worst.x_adv


def _warned(subject: Subject, plans: Sequence[Plan], say: Say) -> list[str]:
    """What makes any number worth nothing, and PGD's doubtful; searches look for themselves."""
    plain = [stage for plan in plans if not plan.is_search for stage in plan.stages]
    few = torch.arange(min(_FEW, len(subject.x)), device=subject.x.device)
    found = one_class_warning(subject.logits, subject.labels.cpu())
    found += next(subject.room.in_chunks(few, lambda rows: company_warning(subject.judge, subject.x[rows])))
    found += warnings_before(subject, plain) if plain else []
    for line in found:
        say(f"warning: {line}")
    return found


def _plans(attacks: Sequence[str | Plan], settings: EvaluationSettings) -> list[Plan]:
    if not attacks:
        raise UsageError("no attack is named; see: probmargin list attacks")
    return [
        one if isinstance(one, Plan) else make_plan(one, settings.norm, settings.eps, settings.step_size)
        for one in dict.fromkeys(attacks)
    ]


def _part(subject: Subject, plan: Plan, settings: EvaluationSettings) -> Subject:
    """The examples a plan looks at: they come first, since ids rise."""
    if plan.version is None or settings.aa_examples is None:
        return subject
    count = int((subject.ids < settings.aa_examples).sum())
    first = {name: getattr(subject, name)[:count] for name in ("x", "labels", "ids", "logits")}
    return replace(subject, **first)


def _run(
    subject: Subject, plan: Plan, parts: Parts, worst: Worst, say: Say, clean_seconds: float, first: int | None
) -> EntryVerdicts:
    """Run one plan; AutoAttack's attacks say what AutoAttack says, the others one line, which tells of a part."""
    ids = subject.ids.cpu().numpy()
    if not plan.stages:
        entry = EntryVerdicts(ids, {"nat": subject.correct.numpy()}, {"nat": clean_seconds}, {"attack": plan.meaning()})
        say(_line(plan.name, entry))
        return entry
    standing = torch.ones_like(subject.correct) if plan.begins_with_all else subject.correct
    facts: dict[str, Any] = {"attack": plan.meaning()}
    if plan.version is not None:
        reason = why_not_standard(plan.version, subject.logits.shape[1])
        facts["is_standard"] = not reason
        if reason:
            facts["label"] = f"not AutoAttack's standard: {reason}"
    label, outside = own_label(plan.stages[0].attack), 0
    facts |= {"is_standard": False, "label": label} if label else {}
    speaks = plan.is_search and len(subject.labels) > 0
    speaker = Speaker(subject, len(plan.stages), say if speaks else silent)
    warnings = warnings_before(subject, plan.stages) if speaks else []
    speaker.begin()

    def on_finding(stage: Stage, finding: Finding) -> None:
        nonlocal outside
        outside += int(finding.outside.sum())
        speaker.chunk(stage, finding)
        worst.take(finding, plan.name if plan.version is None else stage.name)

    outcome: Outcome = run_stages(subject, plan.stages, standing, parts, on_finding, speaker.stage)
    if speaks:
        warnings += square_warning({"clean": subject.correct, **outcome.after})
        speaker.end(list(outcome.after.values())[-1], warnings)
        facts |= {"warnings": warnings, "thin_breaks": speaker.thin_breaks}
    if label and outside:
        facts |= {"outside": outside, "warnings": [outside_line(plan.name, outside)]}
        say(f"warning: {outside_line(plan.name, outside)}")
    entry = EntryVerdicts(ids, {name: flags.numpy() for name, flags in outcome.after.items()}, outcome.seconds, facts)
    remark = label or (f"first {first:,}" if first is not None else "")
    say(_line(f"{plan.name} ({remark})" if remark else plan.name, entry))
    return entry


def _second_look(
    subject: Subject, plan: Plan, entry: EntryVerdicts, ready: Ready, made: Maker, count: int | None, say: Say
) -> dict[str, Any]:
    """What an ensemble's searches computed in, and what a few survivors say to float32; outside the clock."""
    if plan.version is None:
        return {}
    facts: dict[str, Any] = {"search_precision": made.precision}
    asked = (RECHECKED if subject.rounds else 0) if count is None else count
    if not asked and made.precision != ready.precision:
        say(f"searched in {made.precision} before: no second look in float32 is taken here")
    standing = torch.from_numpy(entry.correct)
    if asked and bool(standing.any()):
        found = recheck(subject, plan.stages, standing, asked, ready.in_float32(subject.x, subject.room.rows))
        say(found.line())
        facts["recheck"] = found.plain()
    return facts


def _line(name: str, entry: EntryVerdicts) -> str:
    share = float(np.mean(entry.correct)) if len(entry.correct) else 0.0
    return f"{name}: {share:.2%} of {len(entry.correct)} ({sum(entry.seconds.values()):.1f} s)"
