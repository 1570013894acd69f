"""Does a claim hold? Decided by paired intervals over the images, and the seeds, that its rows share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from probmargin.core.words import counted
from probmargin.reporting.compare import Comparison, Verdicts, compare_widest
from probmargin.reporting.spec import Claim, ColumnSpec, by_title

Verdict = Literal["holds", "does not hold", "undecided", "not tested"]


@dataclass(frozen=True)
class Judged:
    """A claim, the comparisons there are for it, and the rows that have no number for it."""

    claim: Claim
    comparisons: tuple[Comparison, ...]
    missing: tuple[str, ...]
    """Without a record."""
    unfinished: tuple[str, ...]
    """With a record that has no number in the claim's column."""
    seeds: Mapping[str, tuple[int, ...]]
    """By row: its first seeds, as many as the table has trials."""

    @property
    def verdict(self) -> Verdict:
        """One clear contradiction refutes it, one difference that is not clear keeps it open, whatever is missing."""
        if any(found.deciding_interval[1] < self.claim.by for found in self.comparisons):
            return "does not hold"
        if any(found.deciding_interval[0] <= self.claim.by for found in self.comparisons):
            return "undecided"
        return "holds" if len(self.comparisons) == len(self.claim.others) else "not tested"

    @property
    def deciding(self) -> Comparison | None:
        """The difference that speaks least for it: with the lowest end of its interval that the verdict turns on."""
        end = 1 if self.verdict == "does not hold" else 0
        return min(self.comparisons, key=lambda found: found.deciding_interval[end], default=None)

    @property
    def evidence(self) -> str:
        """The difference that decides it with its interval, or what is missing."""
        lacks = {"rows missing": self.missing, f"rows without a number for {self.claim.column}": self.unfinished}
        told = [f"{what}: {', '.join(f'`{row}`' for row in rows)}" for what, rows in lacks.items() if rows]
        if self.verdict == "not tested":
            return "; ".join(told) or self._apart
        found = self.deciding
        assert found is not None
        low, high = found.deciding_interval
        looked = f"{counted(found.num_examples, 'image')}, {counted(len(found.seeds), 'seed')}"
        points = f"{found.difference:+.2f} [{low:+.2f}, {high:+.2f}]"
        # What is missing could refute a claim that is undecided, and cannot save one that does not hold.
        return "; ".join(
            [f"`{found.contrast.title}` {points}, {looked}", *(told if self.verdict == "undecided" else [])]
        )

    @property
    def _apart(self) -> str:
        """Which rows have no seed in common, and the seeds they have."""
        own = self.seeds[self.claim.row]
        names = [self.claim.row, *(row for row in self.claim.others if not set(own) & set(self.seeds[row]))]
        found = ", ".join(f"`{row}` has {', '.join(map(str, self.seeds[row]))}" for row in names)
        return f"its rows share no seed among the first of each, which count: {found}"


def judge(claim: Claim, columns: Sequence[ColumnSpec], cells: Mapping[str, Sequence[Verdicts]]) -> Judged:
    """Judge a claim; `cells` has a row's verdicts in every column, by row id.

    Rows without a number in the claim's column are compared in a part of it that they share.
    """
    places = by_title(columns, claim.column)
    compared = (compare_widest(contrast, places, columns, cells) for contrast in claim.contrasts)
    rows = (claim.row, *claim.others)
    verdicts = {row: [found[place] for place in places] for row, found in cells.items()}
    seeds = {row: tuple(sorted(set().union(*verdicts.get(row, [])))) for row in rows}
    missing = tuple(row for row in rows if not any(cells.get(row, ())))
    unfinished = tuple(row for row in rows if not seeds[row] and row not in missing)
    return Judged(claim, tuple(found for found in compared if found is not None), missing, unfinished, seeds)
