"""Table 4: the methods of table 2 on SVHN and on CIFAR-100, a table each."""

from probmargin.experiments.experiment import SHORT_AA, Experiment, Row, against, highest
from probmargin.experiments.table2 import METHODS
from probmargin.reporting.spec import Claim

CLOSE = 1.0
"""Points that count as close to the best."""


def _half(data: str, title: str, claim: str, claims: tuple[Claim, ...]) -> Experiment:
    name = f"table4-{data}"
    control = Row(id="trades-beta5", method="trades", settings={"objective.beta": 5.0}, is_extra=True)
    return Experiment(
        name=name,
        title=f"Methods on {title}, ResNet-18",
        claim=claim,
        data=data,
        rows=(*(Row(id=method, method=method, published=f"{name}/{method}") for method in METHODS), control),
        contrasts=(
            against("mail-at", "at"),
            against("gairat", "at"),
            against("mail-trades", "trades"),
            against("mail-trades", "trades-beta5"),
        ),
        claims=claims,
        aa_first=SHORT_AA,
    )


TABLE4_SVHN = _half(
    "svhn",
    "SVHN",
    "On SVHN MAIL-AT is the most robust under PGD and MAIL-TRADES under AutoAttack; FAT and MAIL-AT have the most "
    "natural accuracy, for which the paper prints the same number.",
    highest("mail-at", METHODS, "PGD")
    + highest("mail-trades", METHODS, "AA")
    + highest("fat", METHODS, "NAT", alike="mail-at")
    + highest("mail-at", METHODS, "NAT", alike="fat"),
)
TABLE4_CIFAR100 = _half(
    "cifar100",
    "CIFAR-100",
    "On CIFAR-100 MAIL-TRADES is the most robust under PGD and close to the best under AutoAttack; "
    "FAT has the most natural accuracy.",
    highest("mail-trades", METHODS, "PGD")
    + highest("mail-trades", METHODS, "AA", by=-CLOSE)
    + highest("fat", METHODS, "NAT"),
)
