"""Table 3: the methods of table 2 on CIFAR-10 with a wide network."""

from probmargin.experiments.experiment import AA, APGD, CW, NAT, PGD, Experiment, Row, against, highest
from probmargin.experiments.table2 import METHODS

TABLE3 = Experiment(
    name="table3",
    title="Methods on CIFAR-10, WRN-32-10",
    claim="With a wide network MAIL-TRADES is the most robust under APGD, CW and AutoAttack, MAIL-AT under PGD, and "
    "FAT has the most natural accuracy.",
    model="wrn-32-10",
    rows=tuple(Row(id=name, method=name, published=f"table3/{name}") for name in METHODS),
    columns=(NAT, PGD, APGD, CW, AA),
    contrasts=(against("mail-at", "at"), against("gairat", "at"), against("mail-trades", "trades")),
    claims=(
        *highest("mail-trades", METHODS, "APGD", "CW", "AA"),
        *highest("mail-at", METHODS, "PGD"),
        *highest("fat", METHODS, "NAT"),
    ),
)
