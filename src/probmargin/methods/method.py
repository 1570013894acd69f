"""A method is one choice at each arrow of the training flow, as frozen data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from probmargin.attacks.attack import Attack
from probmargin.core.batch import Need, TraceLevel
from probmargin.core.errors import UsageError
from probmargin.core.records import canonical_hash, to_plain
from probmargin.core.settings import AWP, EMA, Augment
from probmargin.margins.margin import Margin
from probmargin.margins.none import NoMargin
from probmargin.objectives.objective import Objective, Pass
from probmargin.weights.normalizers import Fixed, MeanOne
from probmargin.weights.uniform import Uniform
from probmargin.weights.weight import Normalizer, Weight


@dataclass(frozen=True, kw_only=True)
class Phase:
    """What changes on the way: from an epoch on, some settings differ."""

    from_epoch: int
    """First epoch (from 0) of the phase."""
    start_from_epoch: int | None = None
    """Go on from the state after this many epochs; what lies between is not trained."""
    fresh_momentum: bool = False
    """Begin with an optimizer that remembers nothing."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Settings by path, as --set takes them."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A resolved recipe: everything that decides a training run but data, model and seed."""

    method: str
    preset: str
    epochs: int = 100
    batch_size: int = 128
    """Over all processes."""
    lr: float = 0.01
    lr_milestones: tuple[int, ...] = (74, 89)
    """Epochs (from 0) at which the learning rate is multiplied by lr_decay."""
    lr_decay: float | tuple[float, ...] = 0.1
    """One factor for all milestones, or one for each."""
    lr_schedule: Literal["step", "cosine"] = "step"
    lr_per: Literal["epoch", "iteration"] = "epoch"
    """`iteration`: time is epoch + (batch + 1) / batches, so a drop comes with the last batch before a milestone."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """adamw is for transformers; the methods here were published with sgd."""
    momentum: float = 0.9
    """Of adamw the first beta; its second is 0.999."""
    nesterov: bool = False
    weight_decay: float = 0.0035
    """On all parameters."""
    burn_in_epochs: int = 74
    """Epochs in which every weight is one."""
    attack: Attack | None
    second_attack: Attack | None = None
    """A second adversarial image for objectives that compare two (GAIR-RST)."""
    margin: Margin = field(default_factory=NoMargin)
    weight: Weight = field(default_factory=Uniform)
    normalizer: Normalizer = field(default_factory=MeanOne)
    objective: Objective
    passes: tuple[Pass, ...] = ()
    """Order of the training-mode forward passes; () is the objective's own. An earlier one of two equal passes only
    moves batch-norm statistics."""
    reduction: Literal["mean", "sum"] = "mean"
    awp: AWP | None = None
    ema: EMA | None = None
    augment: Augment = field(default_factory=Augment)
    phases: tuple[Phase, ...] = ()

    def __post_init__(self) -> None:
        if not self.passes:
            object.__setattr__(self, "passes", self.objective.passes)
        self._check_numbers()
        self._check_parts()

    def _check_numbers(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise UsageError(f"epochs and batch_size must be 1 or more, not {self.epochs} and {self.batch_size}")
        if not self.lr > 0 or self.weight_decay < 0 or not 0 <= self.momentum < 1:
            raise UsageError(
                "lr must be above 0, weight_decay 0 or more and momentum in [0, 1), "
                f"not {self.lr}, {self.weight_decay} and {self.momentum}"
            )
        if list(self.lr_milestones) != sorted(set(self.lr_milestones)):
            raise UsageError(f"lr_milestones must rise, not {list(self.lr_milestones)}")
        if isinstance(self.lr_decay, tuple) and len(self.lr_decay) != len(self.lr_milestones):
            raise UsageError(
                f"lr_decay needs a factor for each of {len(self.lr_milestones)} milestones: give so many, or one in all"
            )
        if self.nesterov and self.optimizer != "sgd":
            raise UsageError("nesterov goes with sgd alone: --set optimizer=sgd, or leave nesterov out")
        if self.nesterov and self.momentum == 0:
            raise UsageError("nesterov needs a momentum above 0: --set momentum=0.9")
        self._check_times()

    def _check_times(self) -> None:
        if min(self.burn_in_epochs, *self.lr_milestones, 0) < 0:
            raise UsageError(
                "burn_in_epochs and lr_milestones must be 0 or more, "
                f"not {self.burn_in_epochs} and {list(self.lr_milestones)}"
            )
        factors = self.lr_decay if isinstance(self.lr_decay, tuple) else (self.lr_decay,)
        if not math.isfinite(self.lr) or not all(0 < factor <= 1 for factor in factors):
            raise UsageError(f"lr must be finite and lr_decay above 0 and at most 1, not {self.lr} and {self.lr_decay}")
        for phase in self.phases:
            start = phase.from_epoch if phase.start_from_epoch is None else phase.start_from_epoch
            if not 0 <= start <= phase.from_epoch:
                raise UsageError(
                    f"start_from_epoch of a phase must be from 0 to its from_epoch {phase.from_epoch}, not {start}"
                )
        self._check_jumps()

    def _check_jumps(self) -> None:
        """A phase that goes on from an earlier state finds it, and begins before the run ends."""
        trained = {0, *(epoch + 1 for epoch in self.epoch_plan())}
        for phase in self.phases:
            start, first = phase.start_from_epoch, phase.from_epoch
            # What starts after the run's end is never reached.
            if start is None or start == first or start >= self.epochs:
                continue
            if first >= self.epochs:
                raise UsageError(
                    f"a phase goes on from the state after {start} epochs with epoch {first}, and epochs={self.epochs} "
                    f"ends before; use --epochs {self.epochs}, which scales phases too, or epochs={first + 1} or more"
                )
            if start not in trained:
                raise UsageError(
                    f"a phase goes on from the state after {start} epochs, which another phase skips; choose a "
                    "start_from_epoch that is trained"
                )

    def _check_parts(self) -> None:
        needs = self.needs
        if self.attack is None and (needs - {"logits_nat"}):
            raise UsageError(f"{self.method} needs an attack: --set attack=pgd")
        if self.trace_level != "none" and self.attack is not None and not self.attack.records_steps:
            raise UsageError(
                f"the margin {self.margin.registered_name} needs an attack that records its steps, as pgd does: "
                "--set attack=pgd"
            )
        if (self.second_attack is None) != ("logits_second" not in needs):
            raise UsageError(
                "second_attack goes with objective.weighted_part=rst_mixture, and only with it: give both or neither"
            )
        wanted = {"nat": "logits_nat", "adv": "logits_adv", "second": "logits_second"}
        missing = [name for name, need in wanted.items() if need in self.objective.needs and name not in self.passes]
        if missing:
            raise UsageError(
                f"the objective {self.objective.registered_name} needs more: passes must contain {', '.join(missing)}, "
                f"as --set passes={','.join(self.objective.passes)} has it"
            )

    def check_margin(self) -> None:
        """Refuse a margin of attacked images where none are passed; recipes of runs are read without this."""
        if "logits_adv" in self.margin.needs and "adv" not in self.passes:
            raise UsageError(
                f"the margin {self.margin.registered_name} reads attacked images, and the objective "
                f"{self.objective.registered_name} has none: --set margin=pm_nat, or another objective"
            )

    @property
    def needs(self) -> frozenset[Need]:
        """What margin and objective ask of the training step."""
        return self.margin.needs | self.objective.needs

    @property
    def trace_level(self) -> TraceLevel:
        """How much the attack must record."""
        return "path" if "path" in self.needs else "steps" if "steps" in self.needs else "none"

    @property
    def is_reweighted(self) -> bool:
        """Do examples get different weights after the burn-in?"""
        return self.weight.direction != "constant"

    def plain(self) -> dict[str, Any]:
        """The recipe as JSON's own types."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    def hash(self) -> str:
        """Sixteen hex digits that identify the recipe."""
        return canonical_hash(self.plain())

    def without_weights(self) -> "Method":
        """The same recipe with every weight one, as during burn-in: of a mixture of two attacks the first is left."""
        parts: dict[str, Any] = {"margin": NoMargin(), "weight": Uniform(), "normalizer": Fixed()}
        if self.second_attack is not None:
            parts["objective"] = replace(self.objective, weighted_part="kl")  # type: ignore[type-var]
            parts["second_attack"] = None
            parts["passes"] = tuple(name for name in self.passes if name != "second")
        return replace(self, **parts)

    @property
    def burn_in_end(self) -> int:
        """Epochs trained when burn-in ends: the state after them is the last without weights."""
        before = [epoch for epoch in self.epoch_plan() if epoch < self.burn_in_epochs]
        return before[-1] + 1 if before else 0

    def at(self, epoch: int) -> "Method":
        """The recipe as it is in one epoch (from 0): phases applied, weights one during burn-in, schedules resolved.

        >>> from probmargin.methods.resolve import named
        >>> named("mail-at").at(73).is_reweighted, named("mail-at").at(74).is_reweighted
        (False, True)
        """
        from probmargin.methods.plain import at

        return at(self, epoch)

    @property
    def final_attack(self) -> Attack | None:
        """The attack it ends with, whose ball a run is judged in: a phase may have changed it on the way."""
        return self.at(self.epochs - 1).attack

    def epoch_plan(self) -> list[int]:
        """The epochs that are trained, in order; a phase that starts from an earlier state skips what it discards."""
        jumps = {p.start_from_epoch: p.from_epoch for p in self.phases if p.start_from_epoch is not None}
        plan, epoch = [], 0
        while epoch < self.epochs:
            epoch = jumps.get(epoch, epoch)
            plan.append(epoch)
            epoch += 1
        return plan

    def fresh_momentum_at(self, epoch: int) -> bool:
        """Does this epoch begin with an optimizer that remembers nothing?"""
        return any(phase.fresh_momentum and phase.from_epoch == epoch for phase in self.phases)

    def lr_at(self, epoch: int, batch: int = 0, num_batches: int = 1) -> float:
        """The learning rate of one step.

        >>> from probmargin.methods.resolve import named
        >>> [named("mail-at").lr_at(epoch) for epoch in (73, 74, 89)]
        [0.01, 0.001, 0.0001]
        """
        time = epoch + (batch + 1) / num_batches if self.lr_per == "iteration" else float(epoch)
        if self.lr_schedule == "cosine":
            return self.lr * 0.5 * (1.0 + math.cos(math.pi * min(time / self.epochs, 1.0)))
        factors = self.lr_decay if isinstance(self.lr_decay, tuple) else (self.lr_decay,) * len(self.lr_milestones)
        lr = self.lr
        for milestone, factor in zip(self.lr_milestones, factors, strict=True):
            lr *= factor if time >= milestone else 1.0
        return lr
