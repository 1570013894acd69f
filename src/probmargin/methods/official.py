"""Presets `official` and `official-2021`: what released code does.

MAIL's repository for the methods it has; the authors' own for the rest, on ResNet-18.
"""

from dataclasses import replace

from probmargin.attacks.attack import Attack
from probmargin.attacks.pgd import PGD, EarlyStopPGD
from probmargin.core.settings import Augment
from probmargin.methods import paper
from probmargin.methods.method import Method, Phase
from probmargin.methods.paper import tau_phases
from probmargin.objectives.mart import Mart
from probmargin.objectives.trades import Trades
from probmargin.weights.gairat import GairatTanh
from probmargin.weights.normalizers import Fixed

_EPS, _STEP = 0.031, 0.007


def _mail_repository(method: Method) -> Method:
    """MAIL's script: 120 epochs, drops at 75, 90 and 100, 0.031 and 0.007, three times the weight from epoch 76."""
    attack = replace(method.attack, eps=_EPS, step_size=_STEP) if isinstance(method.attack, PGD) else None
    objective = method.objective
    if isinstance(objective, Trades | Mart):
        objective = replace(objective, beta=5.0)
    normalizer = Fixed(factor=3.0) if method.is_reweighted else method.normalizer
    schedule = replace(method, preset="official", epochs=120, lr_milestones=(75, 90, 100), burn_in_epochs=76)
    return replace(schedule, attack=attack, objective=objective, normalizer=normalizer)


def _first_release(method: Method) -> Method:
    """MAIL as first released: from the weights after 70 epochs, fresh momentum, epochs 75..100 with the CE attack."""
    phase = Phase(from_epoch=75, start_from_epoch=70, fresh_momentum=True, set={"attack.loss": "ce"})
    return replace(_mail_repository(method), preset="official-2021", epochs=101, burn_in_epochs=75, phases=(phase,))


def standard() -> Method:
    """Ordinary training under the schedule of MAIL's script."""
    return _mail_repository(paper.standard())


def at() -> Method:
    """AT as in MAIL's script."""
    return _mail_repository(paper.at())


def trades() -> Method:
    """TRADES as in MAIL's script: beta 5, one natural pass."""
    return _mail_repository(paper.trades())


def mart() -> Method:
    """MART as in MAIL's script: beta 5."""
    return _mail_repository(paper.mart())


def mail_at() -> Method:
    """MAIL-AT as released."""
    return _mail_repository(paper.mail_at())


def mail_trades() -> Method:
    """MAIL-TRADES as released."""
    return _mail_repository(paper.mail_trades())


def mail_mart() -> Method:
    """MAIL-MART as released: beta 5."""
    return _mail_repository(paper.mail_mart())


def mail_at_2021() -> Method:
    """MAIL-AT as first released."""
    return _first_release(paper.mail_at())


def mail_trades_2021() -> Method:
    """MAIL-TRADES as first released: burn-in with the KL attack, weighted epochs with CE."""
    return _first_release(paper.mail_trades())


def mail_mart_2021() -> Method:
    """MAIL-MART as first released."""
    return _first_release(paper.mail_mart())


def _friendly(attack: Attack | None, **settings: object) -> EarlyStopPGD:
    """FAT's attack at 0.031 with a clamped start."""
    assert isinstance(attack, EarlyStopPGD)
    return replace(attack, eps=_EPS, step_size=_STEP, clamp_start=True, **settings)  # type: ignore[arg-type]


def fat() -> Method:
    """FAT: learning rate 0.1, tau 0, 1, 2 from epochs 0, 50, 90 of 120, uniform start."""
    base = paper.fat()
    rate = replace(base, lr=0.1, lr_milestones=(59, 89, 109), lr_decay=(0.1, 0.1, 0.5), weight_decay=2e-4)
    return replace(rate, preset="official", epochs=120, attack=_friendly(base.attack, start="uniform_eps"))


def fat_trades() -> Method:
    """FAT for TRADES: 85 epochs, tau up to 3."""
    base = paper.fat_trades()
    rate = replace(base, lr=0.1, lr_milestones=(74,), weight_decay=2e-4, burn_in_epochs=74)
    return replace(rate, preset="official", epochs=85, attack=_friendly(base.attack))


def fat_mart() -> Method:
    """FAT for MART: 90 epochs, tau up to 4, adversarial pass before the natural one."""
    base = paper.fat_mart()
    rate = replace(base, lr=0.1, lr_milestones=(59, 89), weight_decay=2e-4, passes=("adv", "nat"))
    return replace(rate, preset="official", epochs=90, attack=_friendly(base.attack), phases=tau_phases(20, 40, 60, 80))


def awp() -> Method:
    """AT-AWP: 200 epochs, drops by iteration, reflected padding, attack with batch statistics.

    The released code attacks in train mode and lets the attack move the batch-norm buffers; here batch statistics are
    used and the buffers put back. Its monitoring pass on clean images, which moves them too, is left out, and so is
    its input normalisation, which is a property of the model (--normalize). It is the script for CIFAR-10, whatever
    the data: that for SVHN takes lr 0.01, steps of 1/255, 5 epochs of warm-up and no augmentation, that for CIFAR-100
    turns images by up to 15 degrees.
    """
    attack = PGD(start="uniform_eps", clamp_start=True, model_mode="train")
    rate = replace(paper.awp(), lr=0.1, lr_milestones=(100, 150), lr_per="iteration", weight_decay=5e-4)
    return replace(rate, preset="official", epochs=200, attack=attack, augment=Augment(padding="reflect"))


def trades_awp() -> Method:
    """TRADES-AWP: 200 epochs, weights perturbed from epoch 9 on, passes adversarial, natural, natural."""
    rate = replace(paper.trades_awp(), lr=0.1, lr_milestones=(99, 149), weight_decay=5e-4)
    return replace(rate, preset="official", epochs=200, passes=("adv", "nat", "nat"))


def gairat() -> Method:
    """GAIRAT on ResNet-18: 100 epochs, drops at 29 and 59, weights from epoch 29 on."""
    attack = PGD(eps=_EPS, step_size=_STEP, start="uniform_eps", clamp_start=True)
    rate = replace(paper.gairat(), lr=0.1, lr_milestones=(29, 59), weight_decay=2e-4, burn_in_epochs=29)
    return replace(rate, preset="official", attack=attack, weight=GairatTanh(lam=-1.0, half="int"))


def gair_trades() -> Method:
    """GAIR-RST without its extra images: a mixture of KL and CW images, Lambda 3, weights not normalised."""
    attack = PGD(loss="kl", eps=_EPS, step_size=_STEP)
    base = replace(
        paper.gair_trades(),
        attack=attack,
        second_attack=replace(attack, loss="cw"),
        objective=Trades(beta=6.0, weighted_part="rst_mixture"),
        passes=("adv", "second", "nat"),
    )
    rate = replace(base, lr=0.1, lr_milestones=(), lr_schedule="cosine", nesterov=True, weight_decay=5e-4)
    weights = replace(rate, weight=GairatTanh(lam=3.0, half="int"), normalizer=Fixed(factor=1.0), burn_in_epochs=99)
    return replace(weights, preset="official", epochs=200, batch_size=256)
