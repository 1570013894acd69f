"""How much a page may hold: pictures are left out, evenly over the runs, before it grows too large to send."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probmargin.reporting.page.data import Picture, RunReport, Sample

MOST_RUNS = 12
"""Beyond, tables are no longer read side by side."""
MOST_PICTURE_BYTES = 1_400_000


def _size(pictures: Iterable[Picture]) -> int:
    return sum(len(picture.source) for picture in pictures)


def _pictures(sample: Sample) -> tuple[Picture, ...]:
    return sample.clean, sample.adversarial, sample.difference


def within_budget(reports: Sequence[RunReport], most: int = MOST_PICTURE_BYTES) -> list[RunReport]:
    """The same reports; where their pictures are too many, each run keeps the first that fit into its share."""
    total = sum(_size(report.pictures.values()) for report in reports)
    total += sum(_size(_pictures(sample)) for report in reports for sample in report.gallery.samples)
    if total <= most:
        return list(reports)
    return [_fitted(report, most // (2 * len(reports))) for report in reports]


def _fitted(report: RunReport, half: int) -> RunReport:
    """Half of a run's share is for its gallery, half for its training images."""
    room, samples = half, []
    for sample in report.gallery.samples:
        room -= _size(_pictures(sample))
        if room < 0:
            break
        samples.append(sample)
    room, pictures = half, {}
    for place, picture in report.pictures.items():
        room -= len(picture.source)
        if room < 0:
            break
        pictures[place] = picture
    note = f"{report.gallery.scale} {len(samples)} of {len(report.gallery.samples)} are shown, to keep the page small."
    gallery = replace(report.gallery, samples=tuple(samples), scale=note.strip())
    return replace(report, gallery=gallery, pictures=pictures)
