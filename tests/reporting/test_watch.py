"""Curves in the terminal: what a frame shows, and when watching ends."""

import io
import json
from pathlib import Path

import pytest
from report_runs import metrics, write_run
from rich.console import Console

from probmargin.core.errors import UsageError
from probmargin.reporting.folder import read_folder
from probmargin.reporting.watch import blocks, curves, seconds_left, watch


def screen(width: int = 80, height: int = 40, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=terminal, color_system=None)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_blocks_are_as_high_as_the_values() -> None:
    assert blocks([0.0, 0.5, 1.0], 3, 2) == [" ▁█", "▁██"]
    rows = blocks([float(value) for value in range(100)], 10, 3)
    assert [len(row) for row in rows] == [10, 10, 10]
    assert (rows[0][0], rows[0][-1]) == (" ", "▇")
    assert rows[2] == "▂▄▇" + "█" * 7
    assert blocks([1.0, 1.0 + 1e-9], 2, 1) == ["▄▄"], "rounding is no change"


def test_one_frame_shows_every_quantity(tmp_path: Path) -> None:
    console = screen()
    watch(write_run(tmp_path / "a"), once=True, console=console)
    text = shown(console)
    assert "epoch 6/6  finished" in text
    for title in ("loss  0.3333", "accuracy, attacked", "test monitor cw  45.0%", "held out, clean  90.0%"):
        assert title in text
    assert "effective sample size  30" in text
    assert "mean weight  1" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_run_without_an_epoch_says_so(tmp_path: Path) -> None:
    console = screen()
    watch(write_run(tmp_path / "a", epochs=0, parts=""), once=True, console=console)
    assert "epoch 0/6" in shown(console)
    assert "no epoch is finished yet" in shown(console)


def test_time_left_follows_the_pace(tmp_path: Path) -> None:
    folder = read_folder(write_run(tmp_path / "a", epochs=2, parts=""))
    assert seconds_left(folder) == pytest.approx(4 * 40 / 100), "40 images an epoch at 100 a second"
    assert seconds_left(folder, 3.0) == 12.0
    assert seconds_left(read_folder(write_run(tmp_path / "b"))) is None
    assert {curve.title for curve in curves(folder)} >= {"loss", "learning rate"}


def test_watching_ends_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_run(tmp_path / "a", epochs=2, parts="")
    rows = iter(metrics(6)[2:])

    def train_on(_: float) -> None:
        with (path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(next(rows)) + "\n")

    monkeypatch.setattr("probmargin.reporting.watch.time.sleep", train_on)
    console = screen(terminal=True)
    watch(path, every=0.01, console=console)
    assert "epoch 2/6" in shown(console)
    assert "epoch 6/6  finished" in shown(console)


def test_an_interrupt_ends_it_without_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("probmargin.reporting.watch.time.sleep", interrupt)
    console = screen(terminal=True)
    watch(write_run(tmp_path / "a", epochs=2, parts=""), console=console)
    assert "ETA 0:00:02" in shown(console)


def test_a_low_terminal_gets_flat_charts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("probmargin.reporting.watch.time.sleep", interrupt)
    console = screen(height=24, terminal=True)
    watch(write_run(tmp_path / "a", epochs=4, parts=""), console=console)
    assert "learning rate" in shown(console), "the last chart still fits"


def test_a_wrong_pace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--every"):
        watch(tmp_path, every=0.0)
