"""Table 7: the attack that makes the training images, under MAIL-AT and MAIL-TRADES."""

from probmargin.experiments.experiment import SHORT_AA, Experiment, Row, above, against, highest
from probmargin.reporting.spec import Claim


def _row(base: str, printed: str, loss: str) -> Row:
    """A MAIL method under another attack loss; its own one needs no suffix."""
    method = f"mail-{base}"
    own = {"at": "ce", "trades": "kl"}[base]
    place = f"table7/{base}/{printed}"
    if loss == own:
        return Row(id=method, method=method, published=place)
    return Row(id=f"{method}-{loss}", method=method, settings={"attack.loss": loss}, published=place)


_AT = ("mail-at", "mail-at-cw", "mail-at-kl")
_TRADES = ("mail-trades-ce", "mail-trades-cw", "mail-trades")


def _claims(rows: tuple[str, str, str], own: str) -> tuple[Claim, ...]:
    """Of one method's rows, by attack: PGD's, CW's and KL's."""
    _, cw, kl = rows
    return highest(kl, rows, "NAT") + highest(cw, rows, "PGD") + highest(own, rows, "AA")


TABLE7 = Experiment(
    name="table7",
    title="Attack that makes the training images, CIFAR-10, ResNet-18",
    claim="MAIL works with several training attacks: KL gives the most natural accuracy, CW the most under PGD, each "
    "method's own attack the most under AutoAttack, where MAIL-TRADES is above MAIL-AT with each of them.",
    rows=tuple(
        _row(base, printed, loss)
        for base in ("at", "trades")
        for printed, loss in (("pgd", "ce"), ("cw", "cw"), ("kl", "kl"))
    ),
    aa_first=SHORT_AA,
    contrasts=(
        against("mail-at", "mail-at-cw"),
        against("mail-at", "mail-at-kl"),
        against("mail-trades", "mail-trades-ce"),
        against("mail-trades", "mail-trades-cw"),
    ),
    claims=(
        *_claims(_AT, "mail-at"),
        *_claims(_TRADES, "mail-trades"),
        *(claim for at, trades in zip(_AT, _TRADES, strict=True) for claim in above(trades, at, "AA")),
    ),
)
