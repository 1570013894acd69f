"""What a person sees."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from training_runs import Listener, fit, recipe

from probmargin.methods.method import Phase
from probmargin.models.build import build_model
from probmargin.training.assemble import Hardware
from probmargin.training.forecast import Measured, Pace, forecast
from probmargin.training.progress import Reporter, epoch_line

METRICS: dict[str, Any] = {
    "epoch": 2,
    "lr": 0.1,
    "loss": 1.2345,
    "natural_accuracy": 0.8,
    "robust_accuracy": 0.5,
    "weight_mean": 1.0,
    "effective_sample_size": 40.0,
    "images_per_second": 900.0,
}


def test_a_line_says_everything() -> None:
    line = epoch_line(METRICS, 10)
    for words in ("epoch 3/10", "lr 0.1", "loss 1.2345", "natural 80.0%", "robust 50.0%", "ess 40", "900 img/s"):
        assert words in line
    assert "weight" not in line
    assert "natural" not in epoch_line(METRICS | {"natural_accuracy": None}, 10)
    assert "weight 0.85" in epoch_line(METRICS | {"weight_mean": 0.85}, 10)
    watched = METRICS | {"validation": {"robust_accuracy": 0.4}, "monitors": {"pgd-20": 0.3}}
    assert epoch_line(watched, 10).endswith("held out robust 40.0%  test monitors: pgd-20 30.0%")


def test_a_line_names_the_accuracy_that_chooses() -> None:
    look = {"natural_accuracy": 0.9, "robust_accuracy": None}
    assert epoch_line(METRICS | {"validation": look}, 10).endswith("held out natural 90.0%")
    look = {"natural_accuracy": 0.9, "robust_accuracy": 0.4}
    assert epoch_line(METRICS | {"validation": look}, 10).endswith("held out robust 40.0%")


def test_a_terminal_gets_a_bar_with_the_numbers() -> None:
    screen = io.StringIO()
    reporter = Reporter(console=Console(file=screen, force_terminal=True, width=200))
    reporter.start("mail-at", 100, 0)
    assert reporter.is_live
    reporter.advance()
    reporter.glance(METRICS, 10)
    reporter.epoch(METRICS, 10)
    reporter.stop()
    shown = screen.getvalue()
    for words in ("epoch 3/10", "loss 1.2345", "ess 40", "900 img/s", "ETA", "1/100"):
        assert words in shown
    assert not reporter.is_live


def test_an_epoch_on_a_terminal_breaks_between_numbers() -> None:
    screen = io.StringIO()
    reporter = Reporter(console=Console(file=screen, force_terminal=True, width=80))
    reporter.start("mail-at", 100, 0)
    watched = METRICS | {"validation": {"robust_accuracy": 0.4}, "monitors": {"pgd-20": 0.3, "cw": 0.25}}
    reporter.epoch(watched, 10)
    reporter.stop()
    numbers = "epoch 3/10  lr 0.1  loss 1.2345  natural 80.0%  robust 50.0%  ess 40"
    assert f"{numbers}\n  held out robust 40.0%  test monitors: pgd-20 30.0%, cw 25.0%\n" in screen.getvalue()


def bar_at(width: int, metrics: dict[str, Any]) -> str:
    """The bar of a long run, as a terminal of this width shows it."""
    screen = io.StringIO()
    reporter = Reporter(console=Console(file=screen, force_terminal=True, width=width))
    reporter.start("mail-at", 46900, 0)
    for _ in range(4690):
        reporter.advance()
    reporter.glance(metrics, 120)
    reporter.stop()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", shown) if "epoch 3/120" in line]
    assert all(len(line) <= width for line in lines)
    return lines[-1]


IMPORTANT = ("epoch 3/120", "ETA", "12345 img/s", "loss 1.2345", "robust 50.0%")


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (80, IMPORTANT),
        (100, (*IMPORTANT, "natural 80.0%")),
        (120, (*IMPORTANT, "natural 80.0%", "step 4690/46900")),
        (
            200,
            (*IMPORTANT, "natural 80.0%", "step 4690/46900", "elapsed 0:00:0", "weight 1.00", "ess 40", "\u2501" * 5),
        ),
    ],
)
def test_a_bar_shows_what_fits_and_cuts_nothing(width: int, words: tuple[str, ...]) -> None:
    line = bar_at(width, METRICS | {"images_per_second": 12345.0})
    assert "\u2026" not in line
    found = [line.index(word) for word in words if word[0] != "\u2501"]
    assert found == sorted(found)
    assert all(word in line for word in words)


def test_a_bar_leaves_out_what_a_recipe_does_not_measure() -> None:
    line = bar_at(80, METRICS | {"robust_accuracy": None})
    assert "natural 80.0%" in line
    assert "robust" not in line


def test_a_file_gets_plain_lines_with_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    page = io.StringIO()
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    reporter = Reporter(console=Console(file=page, width=200))
    reporter.start("mail-at", 100, 20)
    for _ in range(20):
        reporter.advance()
    clock[0] += 10.0
    reporter.epoch(METRICS, 10)
    assert page.getvalue().rstrip().endswith("ETA 0:00:30")
    assert "\x1b" not in page.getvalue()


def test_a_forecast_comes_once_after_the_first_steps(tmp_path: Path) -> None:
    listener = Listener()
    fit(tmp_path / "run", recipe("at"), reporter=listener)
    told = [text for text in listener.said if text.startswith("forecast")]
    assert len(told) == 1
    assert re.search(r"about \d+:\d\d:\d\d for the 13 steps that are left, at .* ms each", told[0])
    assert "GiB" in told[0]


def test_the_first_steps_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    said: list[str] = []
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    pace = Pace(torch.device("cpu"), said.append)
    for step in range(20):
        clock[0] += 100.0 if step < Pace.skipped else 2.0
        pace.step(1000 - step)
    assert len(said) == 1
    assert "at 2e+03 ms each" in said[0]
    assert "0:33:00 for the 990 steps" in said[0]


def test_a_dry_run_times_real_shapes() -> None:
    text = forecast(
        recipe("mail-at"), build_model("small-cnn", num_classes=2, in_channels=1), (64, 1, 4, 4, 2), Hardware()
    )
    assert "for 6 epochs of 4 steps" in text
    assert "(measured: 2 steps of 16 images on cpu)" in text


def test_a_dry_run_does_not_count_epochs_that_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six epochs the third and the fourth; an image takes a second."""
    monkeypatch.setattr("probmargin.training.forecast.measure", lambda *_: Measured(16.0, 16, 2))
    method = recipe("at", phases=(Phase(from_epoch=4, start_from_epoch=2),))
    model = build_model("small-cnn", num_classes=2, in_channels=1)
    text = forecast(method, model, (64, 1, 4, 4, 2), Hardware())
    assert text.startswith("forecast: about 0:04:16 for 4 epochs of 4 steps, 1 images/s")


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_said_is_printed_as_it_is(terminal: bool) -> None:
    """Names between colons are pictures to rich, and `folder:two: runs/a` holds one."""
    screen = io.StringIO()
    reporter = Reporter(console=Console(file=screen, force_terminal=terminal, width=200, color_system=None))
    reporter.say("trained at on folder:two: [b]runs/a[/b] :fire:")
    assert screen.getvalue() == "trained at on folder:two: [b]runs/a[/b] :fire:\n"
