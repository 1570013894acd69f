"""Paired comparisons: over the same test images, and over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtrit

from probmargin.core.stats import mcnemar, mean_std, paired_t
from probmargin.reporting.spec import NO_SEED, ColumnSpec, Contrast

Verdicts = Mapping[int, str]
"""By seed: for each image 1 where it is right, 0 where not."""

Interval = tuple[float, float]
"""Its lower and its upper end, in points."""

Z = 1.959964
"""Standard errors in half of a 95% interval."""
LEAST_SEEDS = 3
"""Fewer say too little about seeds for a test or an interval over them."""
ROUNDING = 1e-9
"""Points: equal differences have a deviation of this size or none."""


@dataclass(frozen=True)
class Discordant:
    """One seed's pair of models: images that one alone gets right, and McNemar's exact p."""

    seed: int
    only_plus: int
    only_minus: int

    @property
    def p(self) -> float:
        """Two-sided."""
        return mcnemar(self.only_plus, self.only_minus)


@dataclass(frozen=True)
class Comparison:
    """A contrast in one column; differences in points of percent."""

    contrast: Contrast
    column: ColumnSpec
    seeds: tuple[int, ...]
    num_examples: int
    difference: float
    seed_differences: tuple[float, ...]
    centre: float
    """Of the interval over images: the mean with one image more that differs each way, a little nearer to 0."""
    error: float
    """Its standard error; those two images keep it from 0 where few differ, or none."""
    pairs: tuple[Discordant, ...]
    """A seed each, where the contrast is of one row with one other."""
    seeds_std: float | None

    @property
    def interval(self) -> Interval:
        """95%, over the choice of images: of two models that of Bonett and Price (2012), the adjusted Wald interval.

        More rows or seeds are averaged image by image first, which their formula then takes in the place of counts.
        """
        most = 100.0 * abs(self.contrast.factor)
        low, high = (self.centre + sign * Z * self.error for sign in (-1, 1))
        return max(low, -most), min(high, most)

    @property
    def is_clear(self) -> bool:
        """Does the interval over images exclude no difference?"""
        low, high = self.interval
        return not low <= 0.0 <= high

    @property
    def tells_about_seeds(self) -> bool:
        """Are there enough seeds, and do they differ by more than rounding?"""
        return len(self.seeds) >= LEAST_SEEDS and self.seeds_std is not None and self.seeds_std > ROUNDING

    @property
    def images_p(self) -> float:
        """Two-sided, of the z test that the mean over images is 0, by the interval's centre and error."""
        return float(2.0 * ndtr(-abs(self.centre) / self.error))

    @property
    def seeds_p(self) -> float | None:
        """Of the paired t test over seeds; None for fewer than three, or where they do not differ."""
        return paired_t(self.seed_differences) if self.tells_about_seeds else None

    @property
    def seeds_interval(self) -> Interval | None:
        """95%, over seeds; None where there is no test over them."""
        if not self.tells_about_seeds or self.seeds_std is None:
            return None
        count = len(self.seeds)
        half = float(stdtrit(count - 1, 0.975)) * self.seeds_std / math.sqrt(count)
        return self.difference - half, self.difference + half

    @property
    def deciding_interval(self) -> Interval:
        """The wider of both: a difference must hold for other images and for other seeds."""
        return max(self.interval, self.seeds_interval or self.interval, key=lambda ends: ends[1] - ends[0])


def compare_widest(
    contrast: Contrast, places: Sequence[int], columns: Sequence[ColumnSpec], cells: Mapping[str, Sequence[Verdicts]]
) -> Comparison | None:
    """Compare in a whole column, the first of the places, or where its rows share nothing there in the largest part
    that they share, be it that more seeds do.
    """
    tried = (compare(contrast, columns[at], {row: found[at] for row, found in cells.items()}) for at in places)
    return next((found for found in tried if found is not None), None)


def _bits(text: str, count: int) -> npt.NDArray[np.float64]:
    return np.array([character == "1" for character in text[:count]], dtype=np.float64)


def _side(rows: Sequence[Verdicts], seed: int, count: int) -> npt.NDArray[np.float64]:
    mean: npt.NDArray[np.float64] = np.mean([_bits(row[seed], count) for row in rows], axis=0)
    return mean


def _side_by_side(rows: Mapping[str, Verdicts]) -> Mapping[str, Verdicts]:
    """Rows of which those without a seed have the seeds of the others.

    >>> _side_by_side({"before": {NO_SEED: "10"}, "after": {1: "11", 2: "01"}})["before"]
    {-1: '10', 1: '10', 2: '10'}
    """
    seeds = sorted(set().union(*rows.values()))
    spread = {name: dict.fromkeys(seeds, row[NO_SEED]) for name, row in rows.items() if NO_SEED in row}
    return {**rows, **spread}


def compare(contrast: Contrast, column: ColumnSpec, rows: Mapping[str, Verdicts]) -> Comparison | None:
    """Compare over the seeds and images that all rows of a contrast share; None where they share none."""
    rows = _side_by_side({name: rows.get(name, {}) for name in contrast.rows})
    seeds = sorted(set.intersection(*(set(row) for row in rows.values())))
    if not seeds:
        return None
    count = min(len(row[seed]) for row in rows.values() for seed in seeds)
    plus, minus = ([rows[name] for name in side] for side in (contrast.plus, contrast.minus))
    per_seed = {seed: contrast.factor * (_side(plus, seed, count) - _side(minus, seed, count)) for seed in seeds}
    per_image = np.mean(list(per_seed.values()), axis=0)
    means = [100.0 * float(values.mean()) for values in per_seed.values()]
    guarded = np.append(per_image, [contrast.factor, -contrast.factor])
    is_pair = len(plus) == len(minus) == 1
    pairs = [Discordant(seed, int((d > 0).sum()), int((d < 0).sum())) for seed, d in per_seed.items()]
    difference, seeds_std = mean_std(means)
    return Comparison(
        contrast=contrast,
        column=column,
        seeds=tuple(seeds),
        num_examples=count,
        difference=difference,
        seed_differences=tuple(means),
        centre=100.0 * float(guarded.mean()),
        error=100.0 * float(guarded.std()) / math.sqrt(count + 2),
        pairs=tuple(pairs) if is_pair else (),
        seeds_std=seeds_std,
    )
