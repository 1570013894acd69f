"""Runs in processes of their own: order, failures, Ctrl-C."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from experiment_helpers import end_or_wait, note, save_state, save_then_wait_for_child, task, wait_to_be_stopped

from probmargin.core.errors import Interrupted, UsageError
from probmargin.engine.signals import terminate_as_interrupt
from probmargin.experiments import local
from probmargin.experiments.cluster import Share
from probmargin.experiments.local import Waiting, run_on_devices
from probmargin.experiments.work import Outcome


def test_a_child_waits_for_its_parent(tmp_path: Path) -> None:
    waiting = Waiting([task("child", tmp_path, "parent"), task("parent", tmp_path), task("orphan", tmp_path, "gone")])
    names = [found.id for found in (waiting.take(), waiting.take()) if found]
    assert names == ["parent", "orphan"]
    assert waiting.take() is None
    assert waiting
    waiting.finish("parent")
    child = waiting.take()
    assert child is not None
    assert child.id == "child"
    assert not waiting


def test_a_child_begins_once_its_parent_has_come_to_the_state(tmp_path: Path) -> None:
    waiting = Waiting([task("parent", tmp_path), task("child", tmp_path, "parent")])
    assert waiting.take() is not None
    assert waiting.take() is None
    save_state(task("parent", tmp_path))
    child = waiting.take()
    assert child is not None
    assert child.fork == f"{tmp_path / 'parent'}@1"


def test_nobody_waits_where_nothing_runs(tmp_path: Path) -> None:
    tasks = [task("a", tmp_path, "b"), task("b", tmp_path, "a")]
    with pytest.raises(UsageError, match="these wait for each other: a, b; run them one by one with --only"):
        run_on_devices(tasks, ["cpu", "cpu"], lambda outcome: None, note)


def test_a_free_device_looks_again_for_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child ends before its parent, which goes on after the state was saved."""
    monkeypatch.setattr(local, "LOOK_AGAIN", 0.05)
    outcomes: dict[str, Outcome] = {}
    run_on_devices(
        [task("parent", tmp_path), task("child", tmp_path, "parent")],
        ["cpu", "cpu"],
        lambda outcome: outcomes.update({outcome.id: outcome}),
        save_then_wait_for_child,
    )
    assert outcomes["parent"].record == {"saw_its_child_end": True}


def test_two_devices_work_side_by_side_and_failures_stop_nobody(tmp_path: Path) -> None:
    tasks = [task("a", tmp_path), task("crash", tmp_path), task("bad", tmp_path), task("b", tmp_path, "a")]
    outcomes: dict[str, Outcome] = {}
    run_on_devices(tasks, ["cpu", "cpu"], lambda outcome: outcomes.update({outcome.id: outcome}), note)
    assert outcomes["a"].record == {"id": "a"}
    assert outcomes["bad"].reason == "it is bad"
    assert outcomes["crash"].reason == "its process ended with exit code 3"
    ends = {name: [float(text) for text in (tmp_path / name).read_text().split()[:2]] for name in ("a", "b")}
    assert ends["b"][0] >= ends["a"][1]


def test_a_process_sees_its_own_gpu_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    run_on_devices([task("a", tmp_path)], ["cuda:1"], lambda outcome: None, note)
    assert (tmp_path / "a").read_text().split()[2:] == ["cuda", "7"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_lets_every_process_save(tmp_path: Path, number: int) -> None:
    def interrupt() -> None:
        end = time.time() + 50
        while len(list(tmp_path.glob("*.begun"))) < 2 and time.time() < end:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    before = signal.getsignal(signal.SIGTERM)
    tasks = [task(name, tmp_path) for name in ("a", "b", "c")]
    with pytest.raises(Interrupted, match="go on with the same command"), terminate_as_interrupt():
        run_on_devices(tasks, ["cpu", "cpu"], lambda outcome: None, wait_to_be_stopped)
    assert sorted(path.name for path in tmp_path.glob("*.saved")) == ["a.saved", "b.saved"]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
def test_an_outcome_that_cannot_be_taken_in_leaves_no_process_behind(tmp_path: Path) -> None:
    def refuse(outcome: Outcome) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        run_on_devices([task("quick", tmp_path), task("slow", tmp_path)], ["cpu", "cpu"], refuse, end_or_wait)
    assert [path.name for path in tmp_path.glob("*.saved")] == ["slow.saved"]


def test_a_gpu_is_asked_for_where_the_cluster_has_one() -> None:
    said: list[str] = []
    assert Share(None, say=said.append).of(4.0, None) == 1.0
    assert Share(0.5, say=said.append).of(1.0, None) == 0.5
    assert Share(0.0, say=said.append).of(0.0, None) == 0.0
    assert said == []
    assert Share(None, may_use_cpu=True, say=said.append).of(0.0, None) == 0.0
    assert said.pop() == "the cluster has no GPU: runs compute on its CPUs"
    with pytest.raises(UsageError, match="has 0 GPUs and a run asks for 1: give --device cpu, or add GPUs"):
        Share(None).of(0.0, "auto")
    with pytest.raises(UsageError, match="has 1 GPUs and a run asks for 2: give --gpus-per-run 1 or less"):
        Share(2.0, may_use_cpu=True).of(1.0, None)
    # A cluster elsewhere may grow.
    assert Share(1.0, say=said.append).of(0.0, "auto") == 1.0
    assert "runs wait until it has the 1" in said[0]
