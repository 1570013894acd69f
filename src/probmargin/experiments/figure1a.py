"""Figure 1a: the loss along PGD and along LM-PGD, on the example where PGD falls behind most.

The paper draws it to show that LPS depends on the path, by an image that PGD calls safe and LM-PGD breaks early. LPS
may differ more the other way on some image; the record gives the largest gap of both directions.
"""

from typing import Any

import numpy as np

from probmargin.attacks.lm_pgd import LMPGD
from probmargin.attacks.pgd import PGD
from probmargin.core.records import to_plain
from probmargin.core.stats import rank_correlation
from probmargin.experiments.followed import Followed, Subject, follow, subject_of
from probmargin.experiments.study import Bench, Study

NUM_STEPS = 50
EXAMPLES = {"smoke": 500, "full": 2000}


def attacks(eps: float, num_steps: int = NUM_STEPS) -> dict[str, PGD | LMPGD]:
    """The paper's two attacks: sizes are those it gives for 8/255, in proportion to the radius."""
    unit = eps / 8
    return {
        "pgd": PGD(eps=eps, step_size=2 * unit, num_steps=num_steps),
        "lm_pgd": LMPGD(eps=eps, num_steps=num_steps, momentum=0.8, step_max=6 * unit, step_min=4 * unit),
    }


def most_different(pgd: Followed, lm_pgd: Followed, right: Any) -> int:
    """The image, right as it stands, that PGD overrates most: by LPS, among equals by the loss it leaves behind.

    LM-PGD may miss what PGD finds; the record counts both ways.
    """
    gap = pgd.first_cross - lm_pgd.first_cross
    loss_gap = lm_pgd.loss[-1] - pgd.loss[-1]
    return int(np.lexsort((loss_gap, gap, right))[-1])


def _curve(path: Followed, place: int) -> dict[str, Any]:
    return {
        "loss": path.loss[:, place],
        "correct": path.correct[:, place],
        "lps": path.first_cross[place],
        "right_at_end": path.right_at_end[place],
    }


def _summary(data: dict[str, Any]) -> list[str]:
    pgd, lm_pgd = data["curves"]["pgd"], data["curves"]["lm_pgd"]
    return [
        f"Training image {data['index']} ({data['class']}): LPS is {int(pgd['lps'])} by PGD and {int(lm_pgd['lps'])} "
        f"by LM-PGD, out of {data['num_steps']} steps from the same start.",
        f"Of {data['examples']} images, {data['only_lm_pgd']} fall to LM-PGD alone and {data['only_pgd']} to PGD "
        f"alone; LPS differs on {data['share_differs']:.1%} (rank correlation {data['rank_correlation']:.3f}), by "
        f"up to {data['largest_gaps'][0]} steps where PGD is the weaker, {data['largest_gaps'][1]} where the stronger.",
    ]


def measure(bench: Bench) -> dict[str, Any]:
    """Both paths of every image; the one where they differ most is drawn, all of them are counted."""
    subject: Subject = subject_of(bench, "at", EXAMPLES[bench.scale])
    built = attacks(subject.eps)
    paths = {name: follow(subject, attack) for name, attack in built.items()}
    pgd, lm_pgd = paths["pgd"], paths["lm_pgd"]
    right = (subject.logits(subject.x).argmax(dim=1) == subject.labels).cpu().numpy()
    place = most_different(pgd, lm_pgd, right)
    gap = (pgd.first_cross - lm_pgd.first_cross)[right]
    fell = {name: ~path.correct.all(axis=0) for name, path in paths.items()}
    data: dict[str, Any] = {
        "eps": subject.eps,
        "attacks": {name: to_plain(attack) for name, attack in built.items()},
        "num_steps": NUM_STEPS,
        "index": int(subject.ids[place]),
        "class": subject.class_name(place),
        "curves": {name: _curve(path, place) for name, path in paths.items()},
        "examples": len(right),
        "only_lm_pgd": int((fell["lm_pgd"] & ~fell["pgd"]).sum()),
        "only_pgd": int((fell["pgd"] & ~fell["lm_pgd"]).sum()),
        "largest_gaps": [int(max(gap.max(), 0)), int(max(-gap.min(), 0))],
        "share_differs": float((pgd.first_cross != lm_pgd.first_cross).mean()),
        "rank_correlation": rank_correlation(pgd.first_cross, lm_pgd.first_cross) or 0.0,
    }
    return data | {"summary": _summary(data)}


FIGURE1A = Study(name="figure1a", title="Loss along PGD and LM-PGD", rows=("at",), measure=measure)
