"""Preset `paper`: one recipe for all methods, so that rows of a table differ in the method alone.

Learning rate 0.01, divided by 10 at epochs 74 and 89 of 100 (from 0), weight decay 3.5e-3, batch 128; while training
PGD of 10 steps of 2/255 in a ball of 8/255, start 0.001 N(0,1); burn-in to the first drop of the learning rate.
"""

from dataclasses import replace

from probmargin.attacks.pgd import PGD, EarlyStopPGD
from probmargin.core.settings import AWP
from probmargin.margins.lps import LPS
from probmargin.margins.pm_adv import PMAdv
from probmargin.methods.method import Method, Phase
from probmargin.objectives.at import AT
from probmargin.objectives.mart import Mart
from probmargin.objectives.standard import Standard
from probmargin.objectives.trades import Trades
from probmargin.weights.gairat import GairatTanh
from probmargin.weights.sigmoid import Sigmoid


def tau_phases(*starts: int) -> tuple[Phase, ...]:
    """FAT's tau: 0, and one more from each of these epochs on."""
    return tuple(Phase(from_epoch=epoch, set={"attack.tau": tau + 1}) for tau, epoch in enumerate(starts))


def standard() -> Method:
    """Ordinary training on clean images."""
    return Method(method="standard", preset="paper", attack=None, objective=Standard())


def at() -> Method:
    """Adversarial training: cross-entropy of PGD images."""
    return Method(method="at", preset="paper", attack=PGD(), objective=AT())


def trades() -> Method:
    """TRADES: clean cross-entropy and a divergence the attack maximises."""
    return Method(method="trades", preset="paper", attack=PGD(loss="kl"), objective=Trades(beta=6.0))


def mart() -> Method:
    """MART: boosted cross-entropy, divergence weighted by misclassification."""
    return Method(method="mart", preset="paper", attack=PGD(), objective=Mart(beta=5.0))


def fat() -> Method:
    """FAT: AT on images just past the boundary; tau as in FAT's own code."""
    attack = EarlyStopPGD(step_noise=0.001)
    return replace(at(), method="fat", attack=attack, phases=tau_phases(50, 90))


def fat_trades() -> Method:
    """FAT's early stop under TRADES."""
    return replace(trades(), method="fat-trades", attack=EarlyStopPGD(loss="kl"), phases=tau_phases(30, 50, 70))


def fat_mart() -> Method:
    """FAT's early stop under MART."""
    objective = Mart(beta=6.0)
    phases = tau_phases(20, 40, 60, 80)
    return replace(mart(), method="fat-mart", attack=EarlyStopPGD(), objective=objective, phases=phases)


def awp() -> Method:
    """AT with adversarial weight perturbation."""
    return replace(at(), method="awp", awp=AWP(gamma=0.01))


def trades_awp() -> Method:
    """TRADES with adversarial weight perturbation."""
    return replace(trades(), method="trades-awp", awp=AWP(gamma=0.005, warmup_epochs=9))


def gairat() -> Method:
    """GAIRAT: AT weighted by the attack steps an example survives."""
    return replace(at(), method="gairat", margin=LPS(), weight=GairatTanh(lam=-1.0))


def gair_trades() -> Method:
    """GAIRAT's weights on the divergence of TRADES."""
    weights = gairat()
    objective = Trades(beta=5.0)
    return replace(trades(), method="gair-trades", objective=objective, margin=weights.margin, weight=weights.weight)


def gair_mart() -> Method:
    """GAIRAT's weights on the boosted cross-entropy of MART."""
    weights = gairat()
    objective = Mart(beta=6.0)
    return replace(mart(), method="gair-mart", objective=objective, margin=weights.margin, weight=weights.weight)


def mail_at() -> Method:
    """MAIL on AT: weighted by the probabilistic margin of the adversarial image."""
    return replace(at(), method="mail-at", margin=PMAdv(), weight=Sigmoid(slope=10.0, bias=-0.5))


def mail_trades() -> Method:
    """MAIL on TRADES: the weight falls on the divergence."""
    weight = Sigmoid(slope=2.0, bias=0.0)
    return replace(trades(), method="mail-trades", objective=Trades(beta=5.0), margin=PMAdv(), weight=weight)


def mail_mart() -> Method:
    """MAIL on MART: the weight falls on the boosted cross-entropy."""
    weight = Sigmoid(slope=2.0, bias=0.0)
    return replace(mart(), method="mail-mart", objective=Mart(beta=6.0), margin=PMAdv(), weight=weight)


def mail_awp() -> Method:
    """MAIL-AT with adversarial weight perturbation."""
    return replace(mail_at(), method="mail-awp", awp=AWP(gamma=0.01))
