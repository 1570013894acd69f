"""Table 1: LPS against probabilistic margins, under AT, MART and TRADES."""

from probmargin.experiments.experiment import SHORT_AA, Experiment, Row, above, against
from probmargin.reporting.spec import Claim, Contrast


def _third(base: str, lps: str) -> tuple[Row, ...]:
    """One base method under each measure of safety; all use MAIL's burn-in."""
    mail = f"mail-{base}"
    return (
        Row(id=lps, method=lps, published=f"table1/{base}/lps"),
        Row(id=f"{mail}-pm-nat", method=mail, settings={"margin": "pm_nat"}, published=f"table1/{base}/pm_nat"),
        Row(id=mail, method=mail, published=f"table1/{base}/pm_adv"),
        Row(id=f"{mail}-pm-dif", method=mail, settings={"margin": "pm_dif"}, is_extra=True),
    )


def _pairs(base: str, lps: str) -> tuple[Contrast, ...]:
    mail = f"mail-{base}"
    return against(mail, lps), against(f"{mail}-pm-nat", lps), against(mail, f"{mail}-pm-nat")


def _claims(base: str, lps: str) -> tuple[Claim, ...]:
    mail = f"mail-{base}"
    better = above(mail, lps, "PGD", "AA") + above(f"{mail}-pm-nat", lps, "PGD", "AA")
    # Under AT the paper prints more AutoAttack accuracy for PM-nat.
    return better + above(mail, f"{mail}-pm-nat", *(("PGD",) if base == "at" else ("PGD", "AA")))


TABLE1 = Experiment(
    name="table1",
    title="LPS against probabilistic margins, CIFAR-10, ResNet-18",
    claim="Weights from probabilistic margins give more PGD and more AutoAttack accuracy than weights from attack "
    "steps survived (LPS), under AT, MART and TRADES, and margins of attacked images slightly more than of clean ones, "
    "but for AutoAttack under AT, where the paper prints the reverse.",
    aa_first=SHORT_AA,
    rows=_third("at", "gairat") + _third("mart", "gair-mart") + _third("trades", "gair-trades"),
    claims=_claims("at", "gairat") + _claims("mart", "gair-mart") + _claims("trades", "gair-trades"),
    contrasts=_pairs("at", "gairat") + _pairs("mart", "gair-mart") + _pairs("trades", "gair-trades"),
)
