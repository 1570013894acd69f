"""Table 6: the function that turns a margin into a weight, in MAIL-TRADES."""

from collections.abc import Mapping
from typing import Any

from probmargin.experiments.experiment import SHORT_AA, Experiment, Row, above, against
from probmargin.experiments.table2 import FAR


def _weight(name: str, **fields: float) -> Mapping[str, Any]:
    return {"weight": {"name": name, **fields}}


# The paper gives neither slope nor bias of these; they are MAIL-TRADES's own.
_HINGE = {"slope": 2.0, "bias": 0.0}
_METHOD = "mail-trades"

TABLE6 = Experiment(
    name="table6",
    title="Weight functions in MAIL-TRADES, CIFAR-10, ResNet-18",
    claim="A sigmoid is the best weight function, in natural accuracy and under both attacks; under AutoAttack a "
    "hinge that rises with the margin is far below it and below a step.",
    rows=(
        Row(
            id="mail-trades-hinge-as-printed",
            method=_METHOD,
            settings=_weight("hinge_as_printed", **_HINGE),
            published="table6/hinge",
            left_open="the bias 0 is ours: the paper prints none (its slope cancels in weights with mean one)",
        ),
        Row(
            id="mail-trades-step",
            method=_METHOD,
            settings=_weight("step", alpha=0.2, bias=0.0),
            published="table6/step",
            left_open="the bias 0 is ours: the paper prints none",
        ),
        Row(id=_METHOD, method=_METHOD, published="table6/sigmoid"),
        # As printed the hinge rises with the margin; this one falls, as every other weight does.
        Row(id="mail-trades-hinge", method=_METHOD, settings=_weight("hinge", **_HINGE), is_extra=True),
    ),
    aa_first=SHORT_AA,
    contrasts=tuple(against(_METHOD, f"{_METHOD}-{other}") for other in ("hinge-as-printed", "step", "hinge")),
    claims=(
        *above(_METHOD, f"{_METHOD}-step", "NAT", "PGD", "AA"),
        *above(_METHOD, f"{_METHOD}-hinge-as-printed", "NAT", "PGD"),
        *above(_METHOD, f"{_METHOD}-hinge-as-printed", "AA", by=FAR),
        *above(f"{_METHOD}-step", f"{_METHOD}-hinge-as-printed", "AA", by=FAR),
    ),
)
