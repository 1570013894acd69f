"""How evenly a data set's classes are filled."""

from pathlib import Path

from probmargin.data.dataset import DataSet

UNEVEN = 3.0
"""From this ratio of the largest class to the smallest on, a line is said about it."""


def imbalance(data: DataSet) -> str | None:
    """A line on classes of very different size; None where they are even."""
    counts = data.class_counts()
    small, large = min(counts), max(counts)
    if small == 0:
        empty = [repr(name) for name, count in zip(data.classes, counts, strict=True) if count == 0]
        shown = ", ".join(empty[:5]) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
        return f"no training image is of {shown}: the model has an output for each, and learns to answer none of them"
    if large < UNEVEN * small:
        return None
    least, most = data.classes[counts.index(small)], data.classes[counts.index(large)]
    ratio = f"{large / small:.0f} times as many"
    split = "the split of train and test keeps the shares, and " if _is_split_here(data) else ""
    return (
        f"classes are uneven: {large} training images of {most!r} and {small} of {least!r}, {ratio}; {split}accuracy "
        "by class is in evaluation.json"
    )


def _is_split_here(data: DataSet) -> bool:
    """Were the test images taken from a folder of classes, and not from a test folder of the user's?"""
    kind, _, path = data.name.partition(":")
    return kind == "folder" and not (Path(path) / "test").is_dir()
