"""Weights or attack? Both switched one at a time after one TRADES burn-in, as in MAIL's released code."""

from probmargin.experiments.experiment import AA, AA_1000, APGD, CW, NAT, PGD, Experiment, Row, above, against
from probmargin.reporting.spec import Contrast

FORK_EPOCH = 76
LAST_EPOCH = 100


def _row(method: str, loss: str) -> Row:
    """A recipe of MAIL's repository, stopped where its first release stopped; CE takes over where weights begin."""
    settings: dict[str, object] = {"epochs": LAST_EPOCH + 1}
    if loss == "ce":
        settings["phases"] = [{"from_epoch": FORK_EPOCH, "set": {"attack.loss": "ce"}}]
    return Row(id=f"{method}-official-{loss}", method=method, preset="official", settings=settings)


_UNIFORM_KL, _UNIFORM_CE = _row("trades", "kl"), _row("trades", "ce")
_MAIL_KL, _MAIL_CE = _row("mail-trades", "kl"), _row("mail-trades", "ce")
_RELEASE = Row(id="mail-trades-official-2021", method="mail-trades", preset="official-2021", is_extra=True)

TWO_BY_TWO = Experiment(
    name="two-by-two",
    title="MAIL's weights and the training attack's loss, from one TRADES burn-in, CIFAR-10, ResNet-18",
    claim="If MAIL's gain over TRADES comes from its weights, mail-trades-official-kl beats trades-official-kl; if it "
    "comes from the CE attack of the first release, trades-official-ce beats trades-official-kl.",
    rows=(_UNIFORM_KL, _MAIL_KL, _UNIFORM_CE, _MAIL_CE, _RELEASE),
    columns=(NAT, PGD, APGD, CW, AA, AA_1000),
    contrasts=(
        Contrast("weights", (_MAIL_KL.id, _MAIL_CE.id), (_UNIFORM_KL.id, _UNIFORM_CE.id)),
        Contrast("CE attack", (_UNIFORM_CE.id, _MAIL_CE.id), (_UNIFORM_KL.id, _MAIL_KL.id)),
        # Twice the difference of the means of two rows each: (MAIL - uniform under CE) - (MAIL - uniform under KL).
        Contrast(
            "interaction: weights under CE - under KL",
            (_MAIL_CE.id, _UNIFORM_KL.id),
            (_UNIFORM_CE.id, _MAIL_KL.id),
            2.0,
        ),
        against(_MAIL_KL.id, _UNIFORM_KL.id),
        against(_MAIL_CE.id, _UNIFORM_CE.id),
        against(_UNIFORM_CE.id, _UNIFORM_KL.id),
        against(_MAIL_CE.id, _MAIL_KL.id),
        against(_MAIL_CE.id, _UNIFORM_KL.id),
        against(_RELEASE.id, _UNIFORM_KL.id),
    ),
    claims=(
        *above(_MAIL_KL.id, _UNIFORM_KL.id, "AA"),
        *above(_UNIFORM_CE.id, _UNIFORM_KL.id, "AA"),
    ),
    # The first 1,000 stand in a column of their own, by the released code's protocol.
    aa_first=(2000,),
    trials=3,
)
