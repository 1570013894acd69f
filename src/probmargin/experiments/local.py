"""Runs on one machine: one after another, or side by side on its devices, each in a process of its own."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from probmargin.core.errors import Interrupted, UsageError
from probmargin.core.speech import Say
from probmargin.experiments.work import Outcome, Task, attempt
from probmargin.training.progress import Reporter

Work = Callable[[Task], Outcome]
Receive = Callable[[Outcome], None]

AGAIN = "interrupted; what is trained and judged is saved; go on with the same command"


LOOK_AGAIN = 5.0
"""Seconds after which a task that waits for its parent's state is looked at again."""


class Waiting:
    """Tasks that have not begun; one whose parent has not come to the state it starts from is not ready."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = list(tasks)
        self.open = {task.id for task in tasks}

    def __bool__(self) -> bool:
        return bool(self.tasks)

    def take(self) -> Task | None:
        """The next task that is ready."""
        for task in self.tasks:
            if self._is_ready(task):
                self.tasks.remove(task)
                return task
        return None

    def _is_ready(self, task: Task) -> bool:
        if task.parent is None or task.parent.run not in self.open:
            return True
        return task.fork is not None or task.is_begun

    def check(self, num_running: int) -> None:
        """Refuse to wait where nothing runs that could make a task ready."""
        if self.tasks and num_running == 0:
            names = ", ".join(task.id for task in self.tasks)
            raise UsageError(f"nothing runs, and these wait for each other: {names}; run them one by one with --only")

    def finish(self, name: str) -> None:
        """A task has ended, one way or another: its children need not wait."""
        self.open.discard(name)


def run_in_turn(tasks: Sequence[Task], receive: Receive, say: Say) -> None:
    """One after another, in this process."""
    for place, task in enumerate(tasks):
        say(f"[{place + 1}/{len(tasks)}] {task.id}")
        receive(attempt(task, Reporter()))


def run_on_devices(tasks: Sequence[Task], devices: Sequence[str], receive: Receive, work: Work = attempt) -> None:
    """As many at a time as there are devices; Ctrl-C lets each save its state."""
    waiting, free = Waiting(tasks), list(devices)
    running: dict[Connection, tuple[Task, str, BaseProcess]] = {}
    try:
        while waiting or running:
            while free and (task := waiting.take()) is not None:
                device = free.pop(0)
                connection, process = _start(task, device, work)
                running[connection] = (task, device, process)
            waiting.check(len(running))
            for ready in wait(list(running), LOOK_AGAIN if waiting and free else None):
                assert isinstance(ready, Connection)
                task, device, process = running.pop(ready)
                outcome = _receive(ready, task, process)
                waiting.finish(task.id)
                free.append(device)
                receive(outcome)
    except KeyboardInterrupt:
        raise Interrupted(AGAIN) from None
    finally:
        # On an interruption, or where an outcome could not be taken in.
        _stop([process for _, _, process in running.values()])


def _start(task: Task, device: str, work: Work) -> tuple[Connection, BaseProcess]:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_child, args=(theirs, task, device, work))
    process.start()
    theirs.close()
    return ours, process


def _child(connection: Connection, task: Task, device: str, work: Work) -> None:
    """Carry a task out on one device and send home how it ended."""
    # In a group of its own Ctrl-C reaches it once, from its parent; a second signal would break a save off.
    os.setsid()
    kind, _, index = device.partition(":")
    if index:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[int(index)] if visible != [""] else index
    with suppress(Interrupted, KeyboardInterrupt):
        connection.send(work(replace(task, device=kind)))
    connection.close()


def _receive(connection: Connection, task: Task, process: BaseProcess) -> Outcome:
    try:
        outcome = connection.recv()
        assert isinstance(outcome, Outcome)
    except EOFError:
        process.join()
        outcome = Outcome(task.id, reason=f"its process ended with exit code {process.exitcode}")
    process.join()
    return outcome


def _stop(processes: Sequence[BaseProcess]) -> None:
    """Ask each process once to stop, and wait until it has saved its state."""
    for process in processes:
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGINT)
    for process in processes:
        process.join()
