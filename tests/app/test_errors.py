"""The page of errors is made from the code, and every message names its fix."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "errors.py"


@pytest.fixture(scope="module")
def errors() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_errors", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_errors"] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_is_not_stale(errors: ModuleType) -> None:
    assert errors.PAGE.read_text(encoding="utf-8") == errors.page(), "run: python docs/errors.py"
    assert errors.main(["--check"]) == 0


def test_every_raise_is_on_it(errors: ModuleType) -> None:
    """As many as a plain search of the text finds, but for the class itself and messages that pass others on."""
    found = {(message.file, message.line) for message in errors.messages()}
    assert len(found) > 200
    text = "\n".join(path.read_text(encoding="utf-8") for path in errors.SOURCE.rglob("*.py"))
    written = len(re.findall(r"(?<!class )\b(?:UsageError|TrainingStopped|Failure|Interrupted)\(", text))
    assert 0 <= written - len(found) <= 12


VERBS = set(
    "add ask bring build call check choose clip collect convert delete divide download draw empty evaluate export "
    "fetch fork give go have import install leave look lower make move name pass pip put relabel remove repair "
    "rescale resize return run save see start subtract take train try turn use write".split()
)


def test_every_message_names_a_fix(errors: ModuleType) -> None:
    """What follows the last semicolon or colon tells the user to do something, or computes what to do."""
    for message in errors.messages():
        assert message.parts is not None, message
        cause, fix = message.parts
        if cause.startswith("it is {"):
            assert re.search(r"\b(must|takes|needs?|has)\b", fix), message
            continue
        word = re.split(r"[ ,]", fix)[0]
        names_it = word.startswith(("--", "{", "see:")) or fix.startswith("passes must")
        assert word in VERBS or names_it, message


def test_no_fix_is_a_bare_placeholder_and_numbers_are_right(errors: ModuleType) -> None:
    texts = [message.text for message in errors.messages()]
    for message in errors.messages():
        assert message.parts is not None, message
        assert not re.match(r"(use |give )?\{\w+\}( \(|,|$)", message.parts[1]), message
        assert not re.search(r" [;:,]", message.text), message
    assert "cannot hold out {count} of {total} training images: ask for 1 to {total - 1}" in texts
    assert "images must be in [0, 1]; found values from {low} to {high}: clip them to [0, 1]" in texts
    assert any(text.startswith("out of memory at batch size {batch_size}; choose a smaller --model") for text in texts)


def test_messages_split_where_they_should(errors: ModuleType) -> None:
    assert errors.split("a ({b}; c): do it") == ("a ({b}; c)", "do it")
    assert errors.split("x must be 1 or more, not {x}") == ("it is {x}", "x must be 1 or more")
    assert errors.split("no attack is named; see: probmargin list attacks") == (
        "no attack is named",
        "see: probmargin list attacks",
    )
    assert errors.split("something is wrong") is None
