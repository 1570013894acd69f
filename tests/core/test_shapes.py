"""Plain data of a wrong shape: what first does not fit is named."""

from typing import Any

import pytest

from probmargin.core.shapes import misfit
from probmargin.engine.shapes import EntryShape, RecordShape, StateShape


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ({"epoch": 1, "batch": 0, "seconds": 1, "images": 2}, StateShape, ""),
        ({"epoch": 1, "batch": 0, "seconds": 1, "images": True}, StateShape, "images is true or false"),
        ({"epoch": 1, "batch": 0, "seconds": 1}, StateShape, "images is missing"),
        ({"interval": [0, "x"], "num_examples": 1}, EntryShape, "interval.1 is text"),
        ({"interval": [0, 1], "num_examples": 1, "per_class": [None, 0.5]}, EntryShape, ""),
        ([], RecordShape, "it is a list"),
    ],
)
def test_what_first_does_not_fit_is_named(value: Any, kind: Any, words: str) -> None:
    assert misfit(value, kind) == words
