"""Table 5: margins of logits against margins of probabilities in MAIL-TRADES."""

from probmargin.experiments.experiment import SHORT_AA, Experiment, Row, above, against

TABLE5 = Experiment(
    name="table5",
    title="Logit margins (MM) against probabilistic margins (PM) in MAIL-TRADES, CIFAR-10, ResNet-18",
    claim="Probabilistic margins give more natural, PGD and AutoAttack accuracy than logit margins.",
    rows=(
        Row(
            id="mail-trades-mm-adv",
            method="mail-trades",
            settings={"margin": "mm_adv"},
            published="table5/mm",
            left_open="attacked images, slope 2 and bias 0 are ours: the paper writes the margin of clean images and "
            "prints neither slope nor bias",
        ),
        Row(id="mail-trades", method="mail-trades", published="table5/pm"),
        # The appendix prints MM on the natural image.
        Row(id="mail-trades-mm-nat", method="mail-trades", settings={"margin": "mm_nat"}, is_extra=True),
    ),
    aa_first=SHORT_AA,
    contrasts=(against("mail-trades", "mail-trades-mm-adv"), against("mail-trades", "mail-trades-mm-nat")),
    claims=above("mail-trades", "mail-trades-mm-adv", "NAT", "PGD", "AA"),
)
