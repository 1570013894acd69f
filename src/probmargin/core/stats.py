"""Small statistics, in numpy."""

import math

import numpy as np
import numpy.typing as npt


def wilson_interval(successes: int, total: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % interval of a proportion that stays in [0, 1] (Wilson's score interval).

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
