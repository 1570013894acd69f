"""A second look at survivors in float32, which bounds what a quicker search may have missed."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from probmargin.core.stats import wilson_interval
from probmargin.core.types import Classifier
from probmargin.evaluation.search import Parts, Stage, Subject, full_float32, run_stages

RECHECKED = 100


@dataclass(frozen=True)
class Recheck:
    """How many survivors were attacked again, and how many of them fell."""

    survivors: int
    """All that stood; a random few of them were attacked."""
    examples: int
    broken: int
    seconds: float

    def plain(self) -> dict[str, object]:
        """As stored with a result."""
        return {"precision": "float32", "examples": self.examples, "broken": self.broken, "seconds": self.seconds}

    def line(self) -> str:
        """As said: what was seen of a sample, and what that leaves open for all survivors.

        >>> Recheck(survivors=4900, examples=100, broken=0, seconds=60.0).line()
        '0 of 100 survivors broken in a second look in float32 (60.0 s): 0.0% to 3.7% of all, 95% interval'
        >>> Recheck(survivors=30, examples=30, broken=1, seconds=9.0).line()
        '1 of 30 survivors broken in a second look in float32 (9.0 s): these are all'
        """
        low, high = wilson_interval(self.broken, self.examples)
        is_sample = self.examples < self.survivors
        what = f"{low:.1%} to {high:.1%} of all, 95% interval" if is_sample else "these are all"
        seen = f"{self.broken} of {self.examples} survivors broken in a second look in float32 ({self.seconds:.1f} s)"
        return f"{seen}: {what}"


def recheck(
    subject: Subject, stages: Sequence[Stage], standing: torch.Tensor, count: int, call: Classifier | None = None
) -> Recheck:
    """Attack a random few of what stands again, every search in float32; `standing` itself is left alone.

    Searches ask `call`, or what decides where it is left out.
    """
    begun = time.perf_counter()
    survivors = standing.nonzero()[:, 0]
    order = torch.randperm(len(survivors), generator=torch.Generator().manual_seed(subject.seed))
    chosen = torch.zeros_like(standing)
    chosen[survivors[order[:count]]] = True
    exact = replace(subject, call=call or subject.judge, forms={}, rounds=False)
    with full_float32(subject.x):
        outcome = run_stages(exact, stages, chosen, Parts(), _ignore, _ignore)
    left = list(outcome.after.values())[-1]
    examples = int(chosen.sum())
    return Recheck(len(survivors), examples, examples - int(left.sum()), time.perf_counter() - begun)


def _ignore(*_: object) -> None:
    """Nobody asks how far it has come."""
