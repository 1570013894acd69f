"""Runs on a Ray cluster of two nodes on this machine."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import needs
import pytest
import torch
from experiment_helpers import TINY, crash_once, note, task, wait_to_be_stopped

from probmargin.core.errors import Interrupted, UsageError
from probmargin.experiments import catalogue, grid
from probmargin.experiments.cluster import run_on_cluster
from probmargin.experiments.reproduce import reproduce
from probmargin.experiments.request import ReproduceRequest
from probmargin.experiments.work import Outcome, Task
from probmargin.runs.run import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    needs.package("ray", "cluster"),
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Two nodes of one CPU each; their workers find the modules of these tests."""
    from ray.cluster_utils import Cluster

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster.address
    cluster.shutdown()
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


def run_all(tasks: list[Task], address: str, work: Any) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    run_on_cluster(tasks, lambda outcome: outcomes.update({outcome.id: outcome}), address=address, work=work)
    return outcomes


def test_two_workers_share_the_tasks_and_children_wait(tmp_path: Path, address: str) -> None:
    tasks = [task("a", tmp_path), task("bad", tmp_path), task("b", tmp_path, "a"), task("c", tmp_path)]
    outcomes = run_all(tasks, address, note)
    assert {name for name, outcome in outcomes.items() if outcome.record} == {"a", "b", "c"}
    assert outcomes["bad"].reason == "it is bad"
    ends = {name: [float(text) for text in (tmp_path / name).read_text().split()[:2]] for name in ("a", "b")}
    assert ends["b"][0] >= ends["a"][1]


def test_a_worker_that_dies_is_tried_again_and_one_that_always_dies_is_reported(tmp_path: Path, address: str) -> None:
    assert run_all([task("once", tmp_path)], address, crash_once)["once"].record == {"id": "once"}
    outcome = run_all([task("crash", tmp_path)], address, note)["crash"]
    assert outcome.record is None
    assert "after 2 retries" in outcome.reason


def test_an_interrupt_lets_workers_save(tmp_path: Path, address: str) -> None:
    def interrupt() -> None:
        end = time.time() + 100
        while len(list(tmp_path.glob("*.begun"))) < 2 and time.time() < end:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(Interrupted, match="go on with the same command"):
        run_all([task(name, tmp_path) for name in ("a", "b", "c")], address, wait_to_be_stopped)
    assert sorted(path.name for path in tmp_path.glob("*.saved")) == ["a.saved", "b.saved"]


def test_an_experiment_on_the_cluster(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "EXPERIMENTS", {"tiny": (TINY,)})
    monkeypatch.setattr(grid, "SMOKE_EPOCHS", 2)
    said: list[str] = []
    request = ReproduceRequest(name="tiny", scale="smoke", executor="ray", address=address)
    assert reproduce(request, said.append) == []
    if not torch.cuda.is_available():
        assert "the cluster has no GPU: runs compute on its CPUs" in said
    assert Run(tmp_path / "runs/reproduce/digits-small-cnn-mail-at-s1").record["forked_from"]["epoch"] == 1
    assert len(list((tmp_path / "runs/reproduce/records").glob("*.json"))) == 3
    assert "Missing" not in said[-1]


def test_a_cluster_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no Ray cluster answers at 127\.0\.0\.1:1; start one"):
        run_on_cluster([task("a", tmp_path)], lambda outcome: None, address="127.0.0.1:1")
