"""Small statistics, in numpy."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def wilson_interval(successes: int, total: int, z: float = 1.959964) -> tuple[float, float]:
    """95% interval of a proportion that stays in [0, 1] (Wilson's score interval).

    >>> wilson_interval(50, 100)
    (0.4038, 0.5962)
    """
    if total == 0:
        return 0.0, 1.0
    share, square = successes / total, z * z
    centre = (share + square / (2 * total)) / (1 + square / total)
    half = z * math.sqrt(share * (1 - share) / total + square / (4 * total * total)) / (1 + square / total)
    return max(0.0, centre - half), min(1.0, centre + half)


def effective_sample_size(weight: npt.ArrayLike) -> float:
    """How many equally weighted examples the weights are worth: (sum w)^2 / sum w^2.

    >>> effective_sample_size([1, 1, 1, 1]), effective_sample_size([4, 0, 0, 0])
    (4.0, 1.0)
    """
    values = np.asarray(weight, dtype=np.float64)
    squares = float((values**2).sum())
    return float(values.sum()) ** 2 / squares if squares > 0 else 0.0


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation (n - 1 below); one value has no deviation.

    >>> mean_std([1.0, 3.0]), mean_std([2.0])
    ((2.0, 1.414214), (2.0, None))
    """
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None


def binomial_error(share: float, total: int) -> float:
    """Standard error of a share of `total` examples.

    >>> binomial_error(0.5, 100)
    0.05
    """
    return math.sqrt(share * (1.0 - share) / total)


def agreement_bound(std: float, trials: int, share: float, total: int) -> float:
    """How far a mean over trials may lie from a published one: 2 sqrt(std^2 / trials + binomial error^2).

    >>> agreement_bound(0.03, 9, 0.5, 2500)     # 2 sqrt(0.01^2 + 0.01^2)
    0.028284
    """
    return 2.0 * math.sqrt(std * std / trials + binomial_error(share, total) ** 2)


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p of McNemar's test, from the examples that one of two models alone gets right.

    >>> mcnemar(1, 5), mcnemar(0, 0)            # 2 (1 + 6) / 2^6
    (0.21875, 1.0)
    """
    total, fewer = only_first + only_second, min(only_first, only_second)
    below, term = 0, 1
    for count in range(fewer + 1):
        below += term
        term = term * (total - count) // (count + 1)
    return min(1.0, 2 * below / (1 << total))


def paired_t(differences: Sequence[float]) -> float | None:
    """Two-sided p of the t test that paired differences have mean 0; None for fewer than two.

    >>> paired_t([1.0, 2.0, 3.0]), paired_t([1.0])      # t = 2 sqrt(3), 2 degrees of freedom
    (0.074180, None)
    """
    mean, std = mean_std(differences)
    if std is None:
        return None
    if std == 0.0:
        return 1.0 if mean == 0.0 else 0.0
    from scipy.special import stdtr  # slow to load, and every command imports this module

    degrees = len(differences) - 1
    return float(2.0 * stdtr(degrees, -abs(mean) / (std / math.sqrt(len(differences)))))


def gini(values: npt.ArrayLike) -> float:
    """How unequally a total is shared out: 0 where all have the same, towards 1 where one has everything.

    >>> gini([1, 1, 1, 1]), gini([0, 0, 0, 4])      # the latter is (n - 1) / n
    (0.0, 0.75)
    """
    rising = np.sort(np.asarray(values, dtype=np.float64))
    count, total = len(rising), float(rising.sum())
    if count == 0 or total <= 0.0:
        return 0.0
    return float((2 * np.arange(1, count + 1) - count - 1) @ rising) / (count * total)


def ranks(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Ranks from 1; equal values share the mean of theirs.

    >>> ranks([10, 30, 10]).tolist()
    [1.5, 3.0, 1.5]
    """
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2.0
    return np.asarray(middle[place], dtype=np.float64)


def rank_correlation(first: npt.ArrayLike, second: npt.ArrayLike) -> float | None:
    """Spearman's correlation; None where one of the two never changes.

    >>> rank_correlation([1, 2, 3], [10, 40, 90]), rank_correlation([1, 2], [3, 1]), rank_correlation([1, 1], [1, 2])
    (1.0, -1.0, None)
    """
    a, b = ranks(first), ranks(second)
    a, b = a - a.mean(), b - b.mean()
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale > 0.0 else None


def intraclass_correlation(values: npt.ArrayLike) -> float | None:
    """Agreement of repeated measurements, shaped (subjects, repeats): the share of variance that lies between subjects.

    One-way random effects, ICC(1): (MSB - MSW) / (MSB + (k - 1) MSW). 1 where repeats never differ, near 0 where they
    differ as much as subjects do (it can fall below), None where nothing varies at all.

    >>> intraclass_correlation([[1, 1], [3, 3]]), intraclass_correlation([[1, 3], [3, 1]])
    (1.0, -1.0)
    >>> intraclass_correlation([[0, 2], [4, 6]])        # MSB 16, MSW 2: 14 / 18
    0.777778
    """
    array = np.asarray(values, dtype=np.float64)
    repeats = array.shape[1]
    between = repeats * float(array.mean(axis=1).var(ddof=1))
    within = float(array.var(axis=1, ddof=1).mean())
    total = between + (repeats - 1) * within
    return (between - within) / total if total > 0.0 else None
