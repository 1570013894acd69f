"""Figure 1b: how LPS is spread, and how much of its highest value is critical."""

from typing import Any

from probmargin.core.losses import is_correct
from probmargin.evaluation.protocol import build_attack
from probmargin.experiments.followed import follow, subject_of
from probmargin.experiments.study import Bench, Study

EXAMPLES = {"smoke": None, "full": 10_000}


def split(lps: Any, num_steps: int, wrong_at_end: Any, broken_by_cw: Any) -> dict[str, Any]:
    """Counts of each LPS; of those at the maximum, how many are wrong after all, and how many only under CW.

    >>> import numpy as np
    >>> found = split(np.array([0, 2, 2, 2]), 2, np.array([1, 1, 0, 0]) > 0, np.array([1, 1, 1, 0]) > 0)
    >>> found["counts"], found["wrong_at_end"], found["only_cw"], found["critical"]
    ([1, 0, 3], 1, 1, 2)
    """
    top = lps == num_steps
    return {
        "counts": [int((lps == value).sum()) for value in range(num_steps + 1)],
        "wrong_at_end": int((top & wrong_at_end).sum()),
        "only_cw": int((top & ~wrong_at_end & broken_by_cw).sum()),
        "critical": int((top & (wrong_at_end | broken_by_cw)).sum()),
    }


def measure(bench: Bench) -> dict[str, Any]:
    """LPS of the training images under the attack of training; CW-20 at the same radius tells what is critical."""
    subject = subject_of(bench, "at", EXAMPLES[bench.scale])
    path = follow(subject, subject.attack)
    cw = build_attack("cw", "Linf", subject.eps)
    assert cw is not None
    broken = ~is_correct(subject.logits(follow(subject, cw).x_adv.to(subject.x.device)), subject.labels).cpu().numpy()
    num_steps = int(getattr(subject.attack, "num_steps", 0))
    data = split(path.lps, num_steps, ~path.right_at_end, broken)
    at_top = data["counts"][-1]
    share = data["critical"] / at_top if at_top else 0.0
    data |= {"eps": subject.eps, "num_steps": num_steps, "examples": len(path.lps), "share_critical": share}
    summary = [
        f"LPS is {num_steps} for {at_top:,} of {len(path.lps):,} training images; {data['critical']} of these "
        f"({share:.1%}) are critical: {data['wrong_at_end']} wrong after the last step, {data['only_cw']} more under "
        "CW-20 at the same radius.",
    ]
    return data | {"summary": summary}


FIGURE1B = Study(name="figure1b", title="LPS and its critical part", rows=("at",), measure=measure)
