"""Every code block of README, CONTRIBUTING and docs/ runs, or is at least checked against the real command line."""

import sys
from pathlib import Path

import pytest
from page_blocks import (
    PAGES,
    READ_ONLY,
    SHOWN,
    blocks,
    check_arguments,
    check_command,
    check_inline,
    commands,
    forget_modules,
    inline_code,
    run_block,
)

from probmargin.core.errors import UsageError

BY_NAME = {page.name: page for page in PAGES}
RUN = [name for name, page in BY_NAME.items() if any(block.is_run for block in blocks(page))]

NOT_OURS = ("--Lambda", "--set margin=entropy_adv")
"""An option of GAIRAT's script; the component that CONTRIBUTING.md adds."""


@pytest.mark.parametrize("name", BY_NAME)
def test_every_block_says_what_it_is_and_could_work(name: str) -> None:
    for block in blocks(BY_NAME[name]):
        assert block.language in {"bash", "python"} | SHOWN, f"{block.place}: fence it and name its language"
        assert block.words <= READ_ONLY, f"{block.place}: nobody knows the word {block.words - READ_ONLY}"
        if block.language == "python":
            compile(block.text, block.place, "exec")
        for words in commands(block.text) if block.language == "bash" else []:
            try:
                check_command(words)
            except Exception as error:
                pytest.fail(f"{block.place}: {' '.join(words)}: {error}")


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"errors.md"}))
def test_commands_options_and_settings_in_sentences_exist(name: str) -> None:
    for text in inline_code(BY_NAME[name]):
        if not text.startswith(NOT_OURS):
            try:
                check_inline(text)
            except Exception as error:
                pytest.fail(f"{name}: {text}: {error}")


@pytest.mark.parametrize("text", ["probmargin trian", "--metod", "--set weight.slop=2", "probmargin audit --nope"])
def test_a_wrong_word_in_a_sentence_would_be_noticed(text: str) -> None:
    with pytest.raises((Exception, AssertionError)):
        check_inline(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_a_page_runs_from_top_to_bottom(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for block in blocks(BY_NAME[name]):
        if block.is_run:
            try:
                run_block(block, lambda arguments: monkeypatch.setattr(sys, "argv", arguments))
            except (Exception, SystemExit) as error:
                pytest.fail(f"{block.place}: {error}; {capsys.readouterr().err}")
    forget_modules(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "train --out a --metod mail-at",
        "train --out a --method mail-att",
        "train --out a --set weight.slop=2",
        "evaluate a --attacks pdg-20",
        "trian --out a",
        "reproduce table9",
    ],
)
def test_a_wrong_line_would_be_noticed(line: str) -> None:
    with pytest.raises((Exception, UsageError)):
        check_arguments(line.split())


def test_the_main_pages_are_run_and_not_only_read() -> None:
    assert {"README.md", "quickstart.md", "own-data.md", "method.md", "robustness.md", "migration.md"} <= set(RUN)
