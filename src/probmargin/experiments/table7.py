"""Table 7: the attack that makes the training images, under MAIL-AT and MAIL-TRADES."""

from probmargin.experiments.experiment import Experiment, Row, against


def _row(base: str, printed: str, loss: str) -> Row:
    """A MAIL method under another attack loss; its own one needs no suffix."""
    method = f"mail-{base}"
    own = {"at": "ce", "trades": "kl"}[base]
    place = f"table7/{base}/{printed}"
    if loss == own:
        return Row(id=method, method=method, published=place)
    return Row(id=f"{method}-{loss}", method=method, settings={"attack.loss": loss}, published=place)


TABLE7 = Experiment(
    name="table7",
    title="Attack that makes the training images, CIFAR-10, ResNet-18",
    claim="MAIL works with several training attacks: KL gives the most natural accuracy, CW the most under PGD, and "
    "each method's own attack the most under AutoAttack.",
    rows=tuple(
        _row(base, printed, loss)
        for base in ("at", "trades")
        for printed, loss in (("pgd", "ce"), ("cw", "cw"), ("kl", "kl"))
    ),
    contrasts=(
        against("mail-at", "mail-at-cw"),
        against("mail-at", "mail-at-kl"),
        against("mail-trades", "mail-trades-ce"),
        against("mail-trades", "mail-trades-cw"),
    ),
)
