"""Table 2: MAIL against six methods on CIFAR-10 with ResNet-18."""

from probmargin.experiments.experiment import AA, APGD, CW, NAT, PGD, Experiment, Row, above, against, highest

FAR = 5.0
"""Points that count as far below; the paper prints more than twice as many."""
METHODS = ("at", "trades", "mart", "fat", "awp", "gairat", "mail-at", "mail-trades")

TABLE2 = Experiment(
    name="table2",
    title="Methods on CIFAR-10, ResNet-18",
    claim="MAIL-TRADES is the most robust under CW and AutoAttack, MAIL-AT under PGD and APGD. GAIRAT is above AT "
    "under PGD and APGD, far behind it under CW and AutoAttack, and behind MAIL-AT under CW. MAIL-AT is above AT under "
    "PGD and APGD, MAIL-TRADES above TRADES under all four attacks. Of the two MAIL-AT is the better under PGD and "
    "APGD, MAIL-TRADES under CW and AutoAttack. FAT has the most natural accuracy and is less robust than they are.",
    rows=(
        *(Row(id=name, method=name, published=f"table2/{name}") for name in METHODS),
        # The unweighted controls of MAIL-TRADES and MAIL-MART, which have a beta of their own.
        Row(id="trades-beta5", method="trades", settings={"objective.beta": 5.0}, is_extra=True),
        Row(id="mart-beta6", method="mart", settings={"objective.beta": 6.0}, is_extra=True),
        Row(
            id="mail-mart",
            method="mail-mart",
            published="table1/mart/pm_adv",
            published_for="in table 1",
            is_extra=True,
        ),
        Row(
            id="mail-trades-official-2021",
            method="mail-trades",
            preset="official-2021",
            published="table2/mail-trades",
            published_for="for mail-trades",
            is_extra=True,
        ),
    ),
    columns=(NAT, PGD, APGD, CW, AA),
    contrasts=(
        against("mail-at", "at"),
        against("gairat", "at"),
        against("mail-at", "gairat"),
        against("awp", "at"),
        against("mail-trades", "awp"),
        against("mail-trades", "trades"),
        against("mail-trades", "trades-beta5"),
        against("mail-mart", "mart-beta6"),
        against("mail-mart", "mart"),
        against("mart-beta6", "mart"),
        against("mail-trades-official-2021", "mail-trades"),
        against("mail-trades-official-2021", "trades-beta5"),
    ),
    claims=(
        *highest("mail-trades", METHODS, "CW", "AA"),
        *highest("mail-at", METHODS, "PGD", "APGD"),
        *above("gairat", "at", "PGD", "APGD"),
        *above("at", "gairat", "CW", "AA", by=FAR),
        # Under PGD and AutoAttack it is a claim of table 1.
        *above("mail-at", "gairat", "CW"),
        *above("mail-at", "at", "PGD", "APGD"),
        *above("mail-trades", "trades", "PGD", "APGD", "CW", "AA"),
        *above("mail-at", "mail-trades", "PGD", "APGD"),
        *above("mail-trades", "mail-at", "CW", "AA"),
        *above("mail-at", "fat", "PGD", "APGD"),
        *above("mail-trades", "fat", "CW", "AA"),
        *highest("fat", METHODS, "NAT"),
    ),
)
