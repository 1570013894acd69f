"""What is said of a recipe before it is trained: it works, and may not be what was meant."""

from probmargin.attacks.attack import Attack
from probmargin.attacks.lm_pgd import LMPGD
from probmargin.attacks.pgd import PGD, EarlyStopPGD, longer_step
from probmargin.core.words import counted
from probmargin.margins.none import NoMargin
from probmargin.methods.method import Method


def short_reach(method: Method) -> str | None:
    """A line on an attack, of any phase, whose steps do not reach the surface of its ball; None where all do."""
    return next(filter(None, (_short(method.at(epoch).attack, epoch) for epoch in method.epoch_plan())), None)


def _short(attack: Attack | None, epoch: int) -> str | None:
    """What is said of the attack of an epoch (from 0)."""
    step = longer_step(attack)
    if step is None:
        return None
    assert isinstance(attack, PGD | EarlyStopPGD)
    reach = attack.num_steps * attack.step_size
    which = f"the attack from epoch {epoch + 1} on" if epoch else "the attack"
    fix = (
        f"in the phase, such as attack.step_size={step:.4g}" if epoch else f"such as --set attack.step_size={step:.4g}"
    )
    return (
        f"{which} goes {counted(attack.num_steps, 'step')} of {attack.step_size:.4g}, to {reach:.4g} and not to its "
        f"eps {attack.eps:.4g}: raise attack.step_size with it, {fix}"
    )


def wide_steps(method: Method) -> str | None:
    """A line on an attack whose steps are longer than its ball is wide; None where there is none."""
    attack = method.final_attack
    if not isinstance(attack, PGD | EarlyStopPGD) or attack.step_size <= attack.eps:
        return None
    return (
        f"the attack's steps of {attack.step_size:.4g} are longer than its eps {attack.eps:.4g}, so that it only jumps "
        f"between the ends of its ball: lower attack.step_size with it, such as --set "
        f"attack.step_size={attack.eps / 4:.4g}"
    )


def split_directions(method: Method) -> str | None:
    """A line on a divergence that is attacked in one direction and trained on in the other; None where it is one."""
    return next(filter(None, (_split(method.at(epoch)) for epoch in method.epoch_plan())), None)


def _split(method: Method) -> str | None:
    attack = method.attack
    trained = getattr(method.objective, "kl_direction", None)
    if trained is None or not isinstance(attack, PGD | EarlyStopPGD | LMPGD) or attack.loss != "kl":
        return None
    if attack.kl_direction == trained:
        return None
    return (
        f"the attack raises the KL divergence {attack.kl_direction} and the objective lowers {trained}: set both "
        f"alike, such as --set attack.kl_direction={trained}"
    )


def idle_weights(method: Method) -> str | None:
    """A line on weights or a margin that never come into play; None where they do."""
    later = {path.partition(".")[0] for phase in method.phases for path in phase.set}
    has_margin = "margin" in later or not isinstance(method.margin, NoMargin)
    has_weight = "weight" in later or method.is_reweighted
    if has_weight and not has_margin:
        return (
            f"the weight {method.weight.registered_name} has no margin to go by (margin none), so every example gets "
            "the same: choose one, such as --set margin=pm_adv"
        )
    if has_margin and not has_weight:
        return (
            f"the margin {method.margin.registered_name} changes nothing, since the weight "
            f"{method.weight.registered_name} does not go by it: choose another, such as --set weight=sigmoid"
        )
    if not method.is_reweighted or method.burn_in_epochs < method.epochs:
        return None
    return (
        f"burn-in takes {counted(method.burn_in_epochs, 'epoch')} and training "
        f"{counted(method.epochs, 'epoch')}, so every weight stays one: lower it, such as "
        "--set burn_in_epochs=0, or train longer"
    )


def other_scale(method: Method) -> str | None:
    """A line on a weight that reads other numbers than its margin gives; None where they fit."""
    now = method.at(method.epochs - 1)
    counts = "steps" in now.margin.needs
    margin, weight = now.margin.registered_name, now.weight.registered_name
    if now.weight.reads == "steps" and not counts and not isinstance(now.margin, NoMargin):
        return (
            f"the weight {weight} reads attack steps survived, and the margin {margin} lies between -1 and 1 or so: "
            "weights will hardly differ; choose --set margin=lps, or --set weight=sigmoid"
        )
    is_unaware = now.weight.reads == "margin" and now.is_reweighted and getattr(now.weight, "bias", 0.0) < 1
    if counts and is_unaware:
        return (
            f"the margin {margin} counts attack steps from 0 on, and the weight {weight} is made for margins between "
            "-1 and 1: choose --set weight=gairat_tanh, a weight.bias among the steps, or, of your own, reads = 'steps'"
        )
    return None


def late_phases(method: Method) -> str | None:
    """A line on phases that would begin after the end; None where there are none."""
    late = sorted({phase.from_epoch for phase in method.phases if phase.from_epoch >= method.epochs})
    if not late:
        return None
    return (
        f"what the recipe changes from epoch {late[0]} on changes nothing, since training ends after "
        f"{counted(method.epochs, 'epoch')}: lower from_epoch, or train longer"
    )


def averages(method: Method) -> str | None:
    """A line on which weights count where a moving average is kept; None where none is."""
    if method.ema is None:
        return None
    return (
        f"the moving average of the weights (ema.decay {method.ema.decay:g}) is what is judged, chosen and exported; "
        "accuracies of epochs are of the weights in training"
    )


_ADAMW_RATE = 0.01
"""Learning rates from here on are SGD's."""


def rate_of_sgd(method: Method) -> str | None:
    """A line on a learning rate that a recipe of SGD has left to AdamW; None where it is small enough."""
    if method.optimizer != "adamw" or method.lr < _ADAMW_RATE:
        return None
    return f"lr {method.lr:g} is a rate for sgd: adamw, whose steps are all about lr long, wants --set lr=0.001 or less"


def remarks(method: Method) -> list[str]:
    """A line on each thing about a recipe that deserves one."""
    looks = (short_reach, wide_steps, split_directions, idle_weights, late_phases, other_scale, averages, rate_of_sgd)
    return [line for look in looks if (line := look(method))]
