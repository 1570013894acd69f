"""Runs on a Ray cluster. Ray is imported here alone, and only when it is asked for."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from probmargin.core.errors import Interrupted, UsageError
from probmargin.core.speech import Say, silent
from probmargin.experiments.local import AGAIN, Receive, Waiting, Work
from probmargin.experiments.work import Outcome, Task, attempt

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
        except OSError:
            raise UsageError(f"no Ray cluster answers at {address}; start one with ray start --head") from None
        try:
            ray.init(log_to_driver=False, **settings)
        except OSError:
            raise UsageError(
                f"Ray cannot join a cluster at {address or 'this machine'}; start one with ray start --head, with the "
                "same version of Ray and, where it asks for a token, the same RAY_AUTH_MODE and token as here"
            ) from None
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


@dataclass(frozen=True)
class Share:
    """What each run takes of a GPU, so 0.5 puts two on one; None is a whole one, where the cluster has any."""

    gpus: float | None = 0.0
    may_use_cpu: bool = False
    """Is a cluster without a GPU good enough?"""
    say: Say = silent

    def of(self, there: float, address: str | None) -> float:
        """What to ask of a cluster with so many GPUs: Ray would wait for ever for what there is not."""
        wanted = 1.0 if self.gpus is None else self.gpus
        if wanted <= there:
            return wanted
        if self.gpus is not None and address is not None:
            self.say(f"the cluster has {there:g} GPUs now: runs wait until it has the {wanted:g} that each asks for")
            return wanted
        if self.gpus is None and self.may_use_cpu:
            self.say("the cluster has no GPU: runs compute on its CPUs")
            return 0.0
        fix = "give --device cpu" if there == 0 else f"give --gpus-per-run {there:g} or less"
        raise UsageError(f"the cluster has {there:g} GPUs and a run asks for {wanted:g}: {fix}, or add GPUs to it")


def run_on_cluster(
    tasks: Sequence[Task],
    receive: Receive,
    *,
    address: str | None = None,
    share: Share | None = None,
    work: Work = attempt,
) -> None:
    """Let Ray place the tasks.

    Records come back with the outcomes, so machines need not share a disk. Where they do not, a run whose parent
    was trained elsewhere trains its burn-in itself, and a retry begins anew.
    """
    with _cluster(address) as ray:
        gpus = (share or Share()).of(float(ray.cluster_resources().get("GPU", 0.0)), address)
        remote = ray.remote(work).options(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)
        waiting = Waiting(tasks)
        running: dict[Any, Task] = {}
        try:
            while waiting or running:
                while (task := waiting.take()) is not None:
                    running[remote.remote(task)] = task
                waiting.check(len(running))
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
