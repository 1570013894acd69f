"""What the README promises: short, with every command, a picture, and numbers that have a record."""

import re

from page_blocks import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_says_what_it_is_in_three_lines() -> None:
    opening = TEXT.split("\n\n")[1].splitlines()
    assert len(opening) == 3


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 170


def test_it_shows_a_picture_that_is_there() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TEXT)
    assert pictures
    assert all((ROOT / picture).is_file() for picture in pictures)


def test_its_speeds_link_to_their_records() -> None:
    records = re.findall(r"\((results/[\w-]+\.json)\)", TEXT)
    assert len(records) >= 2
    assert all((ROOT / record).is_file() for record in records)
