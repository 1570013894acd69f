"""Curves in the terminal: what a frame shows, and when watching ends."""

import io
import json
from pathlib import Path

import pytest
from report_runs import metrics, write_run
from rich.console import Console

from probmargin.core.errors import UsageError
from probmargin.reporting.folder import read_folder
from probmargin.reporting.watch import blocks, curves, placed, seconds_left, watch


def screen(width: int = 80, height: int = 40, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=terminal, color_system=None)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_blocks_are_as_high_as_the_values() -> None:
    assert blocks([0.0, 0.5, 1.0], 0.0, 1.0, 2) == [" ▁█", "▁██"]
    epochs, values = range(1, 101), [float(value) for value in range(100)]
    rows = blocks(placed(epochs, values, epochs, 10), 0.0, 99.0, 3)
    assert [len(row) for row in rows] == [10, 10, 10]
    assert (rows[0][0], rows[0][-1]) == (" ", "▇")
    assert rows[2] == "▂▄▇" + "█" * 7
    assert blocks([1.0, 1.0 + 1e-9], 1.0, 1.0 + 1e-9, 1) == ["▄▄"], "rounding is no change"


@pytest.mark.parametrize("count", [1, 7, 30, 31, 100, 250])
def test_a_value_is_drawn_where_every_other_curve_has_its_epoch(count: int) -> None:
    """Each value is its own epoch, so that a column tells by its value which epochs it stands for."""
    span = range(1, count + 1)
    looks = [epoch for epoch in span if epoch % 5 == 0 or epoch == count]
    every, few = (placed(epochs, [float(epoch) for epoch in epochs], span, 30) for epochs in (span, looks))
    pairs = [(one, other) for one, other in zip(few, every, strict=True) if one is not None]
    assert all(other is not None and abs(one - other) <= count / 30 for one, other in pairs)
    assert few[-1] is not None, "the last epoch is below the end of the axis"
    if count <= 30:
        assert {one for one, _ in pairs} == set(looks), "none is left out"


def test_curves_with_few_points_lie_below_their_epochs(tmp_path: Path) -> None:
    """Held-out accuracy of every second epoch, beside the loss of each."""
    console = screen(width=48)
    watch(write_run(tmp_path / "a"), once=True, console=console)
    lines = shown(console).splitlines()
    axes = [line[2:-2] for line in lines if "epoch 1" in line]
    assert axes[0].startswith("epoch 1 ")
    assert axes[0].endswith(" 6")
    start = next(place for place, line in enumerate(lines) if "held out, clean" in line)
    bars = lines[start + 5][2:44]
    assert [bars[start : start + 7].strip() == "" for start in range(0, 42, 7)] == [True, False] * 3


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


def test_a_finished_run_fits_the_terminal_it_is_drawn_on(tmp_path: Path) -> None:
    screen = io.StringIO()
    watch(write_run(tmp_path / "a"), console=Console(file=screen, force_terminal=True, width=120, height=24))
    assert screen.getvalue().count("\n") <= 24


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


def test_time_left_goes_by_all_images_where_weights_differ_from_the_first_epoch_on(tmp_path: Path) -> None:
    counts = {"class_counts": {"cat": 50, "dog": 60}, "validation": 10}
    folder = read_folder(write_run(tmp_path / "a", epochs=2, parts="", **counts))
    assert seconds_left(folder) == pytest.approx(4 * 100 / 100), "40 of them would do if weighted equally"


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
    assert "epoch 1 " in shown(console)


def test_the_axis_gives_way_where_a_terminal_has_no_line_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("probmargin.reporting.watch.time.sleep", interrupt)
    console = screen(height=18, terminal=True)
    watch(write_run(tmp_path / "a", epochs=4, parts=""), console=console)
    assert "learning rate" in shown(console), "the last chart still fits"
    assert "epoch 1 " not in shown(console)


def test_a_wrong_pace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--every"):
        watch(tmp_path, every=0.0)
