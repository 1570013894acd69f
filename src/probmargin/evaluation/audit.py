"""Is this robustness real? Each check is a number, a threshold, a verdict and a sentence on what to do.

Robust models fall to gradients; a model that only hides its gradients looks robust to PGD and falls to something else.
A pass is no proof: it says that none of these signs was found.
"""

import math
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn

from probmargin.attacks.apgd import APGD
from probmargin.attacks.attack import Attack
from probmargin.attacks.balls import Norm, check_eps
from probmargin.attacks.square import Square
from probmargin.core.frozen import frozen
from probmargin.core.losses import cross_entropy, is_correct, logit_margin
from probmargin.core.noise import KeyedNoise
from probmargin.core.types import Classifier, Images, Labels, Logits
from probmargin.core.words import radius
from probmargin.evaluation.audit_rules import RULES, Check, number_or_none
from probmargin.evaluation.checks import (
    SAME_OUTPUT,
    check_logits,
    company_spread,
    inner_gradients,
    is_undefined,
    is_zero,
    looks_like_probabilities,
    names_one_class,
    no_answer,
    output_spread,
)
from probmargin.evaluation.network import made_ready
from probmargin.evaluation.protocol import build_attack
from probmargin.evaluation.room import Room, find_room
from probmargin.evaluation.search import all_logits, inside_threat_model

STARTS = ("pgd-20", "restart 2", "restart 3", "restart 4", "restart 5")
STEPS = (1, 20, 100)
NUM_NOISES = 20
BLACK_BOX_QUERIES = 1000
_FEW = 8


@dataclass
class Bench:
    """The model under audit with its images, and what attacks have done to them so far."""

    call: Classifier
    x: Images
    labels: Labels
    norm: Norm
    eps: float
    seed: int
    room: Room
    right: dict[str, torch.Tensor] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=dict)

    def logits(self, x: Images) -> Logits:
        """Logits of images."""
        return all_logits(self.call, x, self.room)

    def images(self, attack: Attack, *, round_: int = 0, call: Classifier | None = None) -> Images:
        """Adversarial images of all examples, made on this model or on another one."""

        def work(rows: torch.Tensor) -> Images:
            noise = KeyedNoise(seed=self.seed, ids=rows, round=round_)
            return attack(call or self.call, self.x[rows], self.labels[rows], noise=noise).x_adv

        rows = torch.arange(len(self.x), device=self.x.device)
        share = attack.num_targets if isinstance(attack, APGD) and attack.loss == "dlr_targeted" else 1
        return torch.cat(list(self.room.in_chunks(rows, work, share)))

    def judge(self, name: str, x_adv: Images, eps: float | None = None) -> torch.Tensor:
        """Which examples withstand these images; a break outside the ball does not count. Remembered by name."""
        logits = self.logits(x_adv)
        inside = inside_threat_model(x_adv, self.x, self.norm, self.eps if eps is None else eps)
        right = is_correct(logits, self.labels) & ~no_answer(logits, self.labels)
        self.right[name] = right | ~inside
        self.loss[name] = float(cross_entropy(logits, self.labels).mean())
        return self.right[name]

    def attack(self, name: str, attack: Attack, *, round_: int = 0) -> torch.Tensor:
        """Attack all examples and remember the verdicts."""
        return self.judge(name, self.images(attack, round_=round_))

    def curves(self) -> dict[str, Any]:
        """Accuracy after each further restart of PGD-20, and the loss after 1, 20 and 100 steps."""
        held, shares = self.right["nat"].clone(), []
        for name in STARTS:
            held &= self.right[name]
            shares.append(float(held.double().mean()))
        return {"restarts": shares, "loss": {str(steps): number_or_none(self.loss[f"pgd-{steps}"]) for steps in STEPS}}

    def flatness(self) -> float:
        """What 1 step of PGD adds to the clean loss, as a share of what 100 add; 1 where these add nothing.

        The clean loss itself counts for nothing: in a small ball it is nearly all of the loss, however good the steps.
        """
        one, hundred = (self.loss[name] - self.loss["nat"] for name in ("pgd-1", "pgd-100"))
        return 1.0 if hundred <= 0 else max(one, 0.0) / hundred

    def only(self, names: list[str], without: list[str]) -> float:
        """Share of the examples broken by one of some attacks and by none of others, nor as they stand."""
        held = self.right["nat"].clone()
        for name in without:
            held &= self.right[name]
        fell = torch.zeros_like(held)
        for name in names:
            fell |= ~self.right[name]
        return float((held & fell).double().mean())


def audit(
    model: nn.Module,
    x: Images,
    labels: Labels,
    norm: Norm = "Linf",
    eps: float = 8 / 255,
    *,
    surrogate: Classifier | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Look for signs of masked gradients; plain data, ready for audit.json.

    Without a `surrogate`, transfer is said not to be run.
    """
    check_eps(norm, eps)
    curves: dict[str, Any] = {}
    outside = float(((x < 0) | (x > 1)).double().mean())
    training = sum(module.training for module in model.modules())
    checks = [Check("normalised_inputs", outside), Check("train_mode", float(training))]
    if outside > 0:
        reason = "images outside [0, 1]: what an attack may do there is not defined"
        checks += [Check(name, None, reason) for name in RULES if name not in ("normalised_inputs", "train_mode")]
    else:
        with frozen(made_ready(model, x).quick, "eval") as call:
            bench = Bench(call, x, labels, norm, eps, seed, find_room(call, x, None))
            checks += _look(bench) + _attack(bench) + [_transfer(bench, surrogate)]
            curves = bench.curves()
    verdict = "warn" if any(check.verdict == "warn" for check in checks) else "pass"
    shared = {"norm": norm, "eps": eps, "num_examples": len(x), "seed": seed}
    return {"verdict": verdict, **shared, "checks": [check.plain(len(x)) for check in checks], "curves": curves}


def _look(bench: Bench) -> list[Check]:
    """What outputs and gradients show without an attack."""
    logits = bench.logits(bench.x)
    check_logits(logits, bench.labels)
    bench.right["nat"] = is_correct(logits, bench.labels)
    bench.loss["nat"] = float(cross_entropy(logits, bench.labels).mean())
    probe = APGD(norm=bench.norm, eps=bench.eps)

    def work(rows: torch.Tensor) -> torch.Tensor:
        noise = KeyedNoise(bench.seed, rows)
        gradient = probe.start_gradient(bench.call, bench.x[rows], bench.labels[rows], noise)
        return is_zero(gradient) | is_undefined(gradient)

    spread, few = output_spread(bench.call, bench.x), bench.x[:_FEW]
    company = None if spread > SAME_OUTPUT else company_spread(bench.call, few)
    useless = torch.cat(list(bench.room.in_chunks(torch.arange(len(bench.x), device=bench.x.device), work)))
    return [
        Check("softmax_output", float(looks_like_probabilities(logits))),
        Check("one_answer", float(names_one_class(logits, bench.labels))),
        Check("stochastic_output", spread),
        Check("batch_dependence", company, "" if company is not None else "its output is random"),
        Check("inner_gradients", float(bool(inner_gradients(bench.call, bench.x[:1])))),
        Check("zero_gradients", float(useless.double().mean())),
    ]


def _attack(bench: Bench) -> list[Check]:
    """What attacks of several kinds do, compared with each other."""
    norm, eps = bench.norm, bench.eps
    pgd = {steps: cast(Attack, build_attack(f"pgd-{steps}", norm, eps)) for steps in STEPS}
    for number, name in enumerate(STARTS):
        bench.attack(name, pgd[20], round_=number)
    bench.attack("pgd-1", pgd[1])
    bench.attack("pgd-100", pgd[100])
    bench.attack("apgd-ce", APGD(norm=norm, eps=eps))
    bench.attack("apgd-t", APGD(norm=norm, eps=eps, loss="dlr_targeted", num_targets=3))
    bench.attack("square", Square(norm=norm, eps=eps, num_queries=BLACK_BOX_QUERIES))
    noises = [f"noise {number}" for number in range(NUM_NOISES)]
    for number, name in enumerate(noises):
        bench.judge(name, _noisy(bench, number))
    bench.judge("rescaled", bench.images(pgd[20], call=_rescaled(bench)))
    whole = 1.0 if norm == "Linf" else math.sqrt(bench.x[0].numel())
    everything = bench.judge("eps 1", bench.images(APGD(norm=norm, eps=whole, num_steps=50)), eps=whole)
    white = ["pgd-20", "pgd-100", "apgd-ce", "apgd-t"]
    gap = bench.only(["apgd-ce", "apgd-t", "square"], ["pgd-20"])
    return [
        Check("logit_scale", bench.only(["rescaled"], list(STARTS))),
        Check("flat_loss", bench.flatness()),
        Check("restarts", bench.only(list(STARTS[1:]), ["pgd-20"])),
        Check("noise", bench.only(noises, ["pgd-20"])),
        Check("eps_one", float((bench.right["nat"] & everything).double().mean())),
        Check("black_box", bench.only(["square"], white)),
        Check("pgd_aa_gap", gap),
    ]


def _noisy(bench: Bench, number: int) -> Images:
    """Random noise of the largest size the ball allows."""
    noise = KeyedNoise(seed=bench.seed, ids=torch.arange(len(bench.x), device=bench.x.device), round=number)
    shape = tuple(bench.x.shape[1:])
    if bench.norm == "Linf":
        draw = torch.where(noise.uniform(shape, stream="audit/noise") > 0.5, bench.eps, -bench.eps)
    else:
        draw = noise.normal(shape, stream="audit/noise")
        draw = bench.eps * draw / draw.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    return (bench.x + draw).clamp(0.0, 1.0)


def _rescaled(bench: Bench) -> Classifier:
    """The model with logits of a mean margin of 1."""
    scale = logit_margin(bench.logits(bench.x), bench.labels).abs().mean().clamp(min=1e-12)

    def call(x: Images) -> Logits:
        return bench.call(x) / scale

    return call


def _transfer(bench: Bench, surrogate: Classifier | None) -> Check:
    """Images made on another model."""
    if surrogate is None:
        return Check("transfer", None, "no surrogate was given")
    with frozen(made_ready(surrogate, bench.x).quick, "eval") as call:
        bench.judge("transfer", bench.images(APGD(norm=bench.norm, eps=bench.eps), call=call))
    return Check("transfer", bench.only(["transfer"], ["pgd-20", "pgd-100", "apgd-ce", "apgd-t"]))


def lines(result: dict[str, Any]) -> list[str]:
    """An audit as text: a line a check, and what to do where it warns."""
    shown = []
    for check in result["checks"]:
        if check["verdict"] == "not run":
            shown.append(f"not run  {check['name']:<19}{check['reason']}")
            continue
        found = "not a number" if check["value"] is None else f"{check['value']:.4g}"
        limit = f"{found} (at most {check['threshold']:g})"
        shown.append(f"{check['verdict']:<9}{check['name']:<19}{limit:<26}{check['measures']}")
        if check["verdict"] == "warn":
            shown.append(f"{'':<9}{check['advice']}")
    return [
        *shown,
        f"{result['verdict']}: {result['norm']} eps {radius(result['eps'])}, {result['num_examples']} images",
    ]
