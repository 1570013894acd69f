"""The one way attacks are run here: in chunks, on what stands, and every claimed break confirmed in float32."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeGuard

import torch

from probmargin.attacks.apgd import APGD
from probmargin.attacks.attack import Attack, logits_without_gradient
from probmargin.attacks.balls import Norm
from probmargin.attacks.fab import FAB
from probmargin.attacks.square import Square
from probmargin.core.errors import UsageError
from probmargin.core.losses import is_correct, logit_margin, probabilistic_margin
from probmargin.core.noise import KeyedNoise
from probmargin.core.registry import is_own
from probmargin.core.types import Classifier, Images, Labels, Logits, PerExample
from probmargin.engine.devices import tf32
from probmargin.evaluation.checks import no_answer
from probmargin.evaluation.network import Form, SearchPrecision, Watched
from probmargin.evaluation.room import Room
from probmargin.models.own import failed

_TOLERANCE = 1e-6


@contextmanager
def full_float32(x: Images) -> Iterator[None]:
    """On a GPU, no TF32 inside: it rounds to 10 bits, and a break must hold in float32."""
    if not x.is_cuda:
        yield
        return
    with tf32(convolutions=False):
        yield


@dataclass(frozen=True)
class Score:
    """What the network says of some images in float32; on the host, a row each."""

    margin: PerExample
    """z_y - max_{j != y} z_j."""
    pm: PerExample
    predicted: torch.Tensor

    @classmethod
    def of(cls, logits: Logits, labels: Labels) -> "Score":
        """Read logits; no answer counts as another class, by a margin of 0, and what is infinite becomes finite."""
        margin, pm = logit_margin(logits, labels), probabilistic_margin(logits, labels)
        others = logits.nan_to_num(nan=0.0).scatter(1, labels[:, None], -torch.inf)
        predicted = torch.where(no_answer(logits, labels), others.argmax(dim=1), logits.argmax(dim=1))
        return cls(margin.float().nan_to_num(nan=0.0).cpu(), pm.float().nan_to_num(nan=0.0).cpu(), predicted.cpu())


def all_logits(call: Classifier, x: Images, room: Room) -> Logits:
    """Logits of all images, block by block."""
    with full_float32(x):
        return room.logits(call, x)


def form_for(attack: Attack, search: SearchPrecision = "auto") -> Form | None:
    """What an attack asks on CUDA; None is the model itself, in float32.

    Left to itself, an ascent asks bfloat16, and so does FAB in L-inf, which found as much by it on one network (of 421
    images one verdict differed); margins that are compared with each other need more digits, which float16 has where no
    gradient can underflow.

    >>> form_for(APGD()), form_for(FAB()), form_for(FAB(norm="L2")), form_for(FAB(), "float32")
    ('bf16', 'bf16', 'tf32', None)
    >>> form_for(Square()), form_for(Square(norm="L2"))
    ('fp16', 'tf32')
    """
    # How a form is called is agreed with our attacks alone.
    if search == "float32" or is_own(attack):
        return None
    if search in ("bf16", "tf32"):
        return search
    if isinstance(attack, Square) and attack.norm == "Linf":
        return "fp16"
    is_rough = isinstance(attack, APGD) or (isinstance(attack, FAB) and attack.norm == "Linf")
    return "bf16" if is_rough else "tf32"


@dataclass(frozen=True)
class Subject:
    """A frozen model, the images it is judged on, and the ball around each."""

    call: Classifier
    """What searches ask that no form is made for."""
    judge: Classifier
    """What decides: the same model, as exactly as it can be had."""
    x: Images
    labels: Labels
    ids: torch.Tensor
    """Names of the examples for the noise: their places in the whole test set."""
    norm: Norm
    eps: float
    seed: int
    logits: Logits
    """Of the clean images."""
    room: Room
    forms: Mapping[Form, Classifier] = field(default_factory=dict)
    """What other searches ask, by precision; they round more than float32 does."""
    search: SearchPrecision = "auto"
    rounds: bool = False
    """Whether searches compute in fewer digits than what decides."""

    def asked_by(self, attack: Attack) -> Classifier:
        """What an attack asks."""
        form = form_for(attack, self.search)
        if form == "fp16" and form not in self.forms:
            form = "tf32"
        return self.call if form is None else self.forms.get(form, self.call)

    @property
    def correct(self) -> torch.Tensor:
        """Which clean images are classified correctly; on the host."""
        return is_correct(self.logits, self.labels).cpu()


@dataclass(frozen=True)
class Stage:
    """One attack of an ensemble, or one restart."""

    name: str
    attack: Attack
    round: int = 0
    """Changes the noise between restarts."""
    fills: bool = False
    """Fill the last chunk with copies, so that all forwards have one shape; for attacks that drop no example."""


@dataclass(frozen=True)
class Finding:
    """What a stage found for the examples at `rows`; on the host but for the images."""

    rows: torch.Tensor
    broken: torch.Tensor
    """Confirmed: misclassified in float32, inside the ball, inside [0, 1]."""
    score: Score
    size: PerExample
    """Norm of the perturbation, in float64."""
    outside: torch.Tensor
    """Left the ball or [0, 1], so that the clean image counts."""
    seconds: float = 0.0
    x_adv: Images | None = None
    """Left out where it was read from a file that holds none."""


def aims(attack: Attack) -> TypeGuard[APGD | FAB]:
    """Whether an attack tries one wrong class after the other."""
    if isinstance(attack, APGD):
        return attack.loss == "dlr_targeted"
    return isinstance(attack, FAB) and attack.targeted


def rows_per_example(attack: Attack, num_classes: int) -> int:
    """How many images of one example an attack forwards at once.

    >>> rows_per_example(APGD(loss="dlr_targeted"), 10), rows_per_example(APGD(), 10), rows_per_example(FAB(), 4)
    (9, 1, 3)
    """
    return min(attack.num_targets, num_classes - 1) if aims(attack) else 1


def perturbation_size(x_adv: Images, x: Images, norm: Norm) -> PerExample:
    """Norm of each perturbation, measured in float64.

    >>> perturbation_size(torch.full((1, 1, 1, 2), 0.6), torch.full((1, 1, 1, 2), 0.5), "Linf").tolist()
    [0.1]
    """
    delta = (x_adv.double() - x.double()).flatten(1)
    size: PerExample = delta.abs().amax(dim=1) if norm == "Linf" else delta.norm(dim=1)
    return size


def inside_threat_model(x_adv: Images, x: Images, norm: Norm, eps: float) -> torch.Tensor:
    """True where an image is in [0, 1] and, measured in float64, within eps + 1e-6 of the clean one.

    >>> x = torch.full((1, 1, 1, 2), 0.5)
    >>> inside_threat_model(x + 0.1, x, "Linf", 0.1).tolist(), inside_threat_model(x + 0.1, x, "L2", 0.1).tolist()
    ([True], [False])
    """
    boxed = ((x_adv >= 0) & (x_adv <= 1)).flatten(1).all(dim=1)
    return boxed & (perturbation_size(x_adv, x, norm) <= eps + _TOLERANCE)


def confirm(subject: Subject, rows: torch.Tensor, found: Images) -> Finding:
    """Judge what an attack returned: nothing it claims counts before it holds in float32 on the final image."""
    x, labels = subject.x[rows], subject.labels[rows]
    with full_float32(x):
        logits = subject.room.logits(subject.judge, found)
    inside = inside_threat_model(found, x, subject.norm, subject.eps)
    # What left the threat model is no answer to it: there the clean image counts.
    logits = torch.where(inside[:, None], logits, subject.logits[rows])
    broken = ~is_correct(logits, labels) | no_answer(logits, labels)
    size = torch.where(inside, perturbation_size(found, x, subject.norm), 0.0)
    return Finding(rows.cpu(), broken.cpu(), Score.of(logits, labels), size.cpu(), (~inside).cpu(), x_adv=found)


def attempt(subject: Subject, stage: Stage, rows: torch.Tensor, call: Classifier) -> Images:
    """What an attack returns for the examples at `rows` when it asks `call`."""
    noise = KeyedNoise(seed=subject.seed, ids=subject.ids[rows], round=stage.round)
    try:
        return stage.attack(call, subject.x[rows], subject.labels[rows], noise=noise).x_adv
    except (UsageError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if not is_own(stage.attack):
            raise
        raise failed(f"attack {stage.attack.registered_name!r} fails", error) from None


def try_again(subject: Subject, stage: Stage, finding: Finding, call: Classifier) -> Finding:
    """Search in float32 where a rounded form claimed a break that did not hold: the search had stopped there."""
    assert finding.x_adv is not None
    rows, x_adv = finding.rows.to(subject.x.device), finding.x_adv
    logits = logits_without_gradient(call, x_adv)
    claimed = ~is_correct(logits, subject.labels[rows]) | ~logits.isfinite().all(dim=1)
    doubtful = (claimed & ~finding.broken.to(claimed.device)).nonzero()[:, 0]
    if len(doubtful) == 0:
        return finding
    x_adv = x_adv.clone()
    with full_float32(x_adv):
        x_adv[doubtful] = attempt(subject, stage, rows[doubtful], subject.judge)
    return confirm(subject, rows, x_adv)


def run_stage(subject: Subject, stage: Stage, rows: torch.Tensor) -> Iterator[Finding]:
    """Attack the examples at `rows`, a finding a chunk."""

    def work(part: torch.Tensor) -> Finding:
        begun = time.perf_counter()
        call = subject.asked_by(stage.attack)
        size = min(subject.room.at_once(), len(rows)) if stage.fills else len(part)
        filled = torch.cat([part, part[:1].expand(size - len(part))])
        with full_float32(subject.x) if subject.search == "float32" else nullcontext():
            found = attempt(subject, stage, filled, call)[: len(part)]
        if isinstance(call, Watched) and call.overflowed():
            call = subject.judge
            with full_float32(subject.x):
                found = attempt(subject, stage, part, call)
        finding = confirm(subject, part, found)
        if subject.rounds:
            finding = try_again(subject, stage, finding, call)
        return replace(finding, seconds=time.perf_counter() - begun)

    share = rows_per_example(stage.attack, subject.logits.shape[1])
    return subject.room.in_chunks(rows.to(subject.x.device), work, share)


class Parts:
    """What is already known of a plan's stages; this one knows and keeps nothing."""

    def known(self, stage: str) -> list[Finding]:
        """Findings of an earlier, interrupted evaluation."""
        return []

    def keep(self, stage: str, finding: Finding) -> None:
        """Take a finding as it comes."""


@dataclass
class Outcome:
    """Which examples stand after each stage, and the seconds each stage took; on the host."""

    after: dict[str, torch.Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def run_stages(
    subject: Subject,
    stages: Sequence[Stage],
    standing: torch.Tensor,
    parts: Parts,
    on_finding: Callable[[Stage, Finding], None],
    on_stage: Callable[[Stage, Outcome], None],
) -> Outcome:
    """Run stage after stage, each on what the ones before it left standing; what `parts` knows is not run again."""
    standing, outcome = standing.clone(), Outcome()
    for stage in stages:
        known = parts.known(stage.name)
        left = standing.clone()
        for finding in known:
            left[finding.rows] = False
        spent = 0.0
        for finding in chain(known, _kept(parts, stage, run_stage(subject, stage, left.nonzero()[:, 0]))):
            standing[finding.rows[finding.broken]] = False
            spent += finding.seconds
            on_finding(stage, finding)
        outcome.after[stage.name] = standing.clone()
        outcome.seconds[stage.name] = spent
        on_stage(stage, outcome)
    return outcome


def _kept(parts: Parts, stage: Stage, findings: Iterable[Finding]) -> Iterator[Finding]:
    for finding in findings:
        parts.keep(stage.name, finding)
        yield finding
