"""Runs on a Ray cluster. Ray is imported here alone, and only when it is asked for."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from probmargin.core.errors import UsageError
from probmargin.experiments.local import AGAIN, Receive, Waiting, Work
from probmargin.experiments.work import Outcome, Task, attempt
from probmargin.training.loop import Interrupted

RETRIES = 2
"""Of a run whose worker died; it goes on from its last state."""
_SECONDS_TO_SAVE = 120.0


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Ray, connected to the cluster at an address; without one, to a cluster of this machine alone."""
    try:
        import ray
    except ImportError:
        raise UsageError("--executor ray needs Ray: pip install 'probmargin[cluster]'") from None
    begun = not ray.is_initialized()
    if begun:
        settings: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
        try:
            _knock(address or "")
            ray.init(log_to_driver=False, **settings)
        except OSError:
            raise UsageError(f"no Ray cluster answers at {address}; start one with ray start --head") from None
    try:
        yield ray
    finally:
        if begun:
            ray.shutdown()


def _knock(address: str) -> None:
    """Raise OSError where nobody listens at HOST:PORT; Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10.0).close()


def run_on_cluster(
    tasks: Sequence[Task],
    receive: Receive,
    *,
    address: str | None = None,
    gpus: float = 0.0,
    work: Work = attempt,
) -> None:
    """Let Ray place the tasks; `gpus` is what each takes of a GPU, so 0.5 puts two on one.

    Records come back with the outcomes, so machines need not share a disk. Where they do not, a run whose parent
    was trained elsewhere trains its burn-in itself, and a retry begins anew.
    """
    with _cluster(address) as ray:
        remote = ray.remote(work).options(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)
        waiting = Waiting(tasks)
        running: dict[Any, Task] = {}
        try:
            while waiting or running:
                while (task := waiting.take()) is not None:
                    running[remote.remote(task)] = task
                ready, _ = ray.wait(list(running), num_returns=1)
                for reference in ready:
                    task = running.pop(reference)
                    waiting.finish(task.id)
                    receive(_outcome(ray, reference, task))
        except KeyboardInterrupt:
            _cancel(ray, list(running))
            raise Interrupted(AGAIN) from None


def _outcome(ray: Any, reference: Any, task: Task) -> Outcome:
    try:
        outcome = ray.get(reference)
        assert isinstance(outcome, Outcome)
        return outcome
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split())[:300]
        return Outcome(task.id, reason=f"{type(error).__name__} after {RETRIES} retries: {reason}")


def _cancel(ray: Any, references: list[Any]) -> None:
    """Interrupt the workers, which save their states as on Ctrl-C, and wait for them."""
    for reference in references:
        ray.cancel(reference, force=False)
    if references:
        ray.wait(references, num_returns=len(references), timeout=_SECONDS_TO_SAVE)
