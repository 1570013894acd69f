"""Where training images lie, and how batches of them reach the device."""

import multiprocessing
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any, ClassVar, Literal

import torch
from torch.utils.data import DataLoader, Dataset

from probmargin.core.errors import UsageError
from probmargin.data.dataset import ImageSet
from probmargin.data.files import FileImageSet, Unreadable

Placement = Literal["auto", "device", "host", "files"]

_AHEAD = 3
_DEVICE_SHARE = 0.4
"""Images may take this much of a GPU's free memory; the rest is for the network and its passes."""
_MOST_WORKERS = 16


class Feed(ABC):
    """Brings batches to the device ahead of need, and measures how long the device had to wait for them."""

    where: ClassVar[str]
    """Where the images lie, in words."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._waited = 0.0
        self._arrived: list[torch.cuda.Event] = []
        self._done: list[torch.cuda.Event] = []

    @abstractmethod
    def batches(self, positions: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """The images at each batch's positions, uint8 on the device, in order."""

    def step_done(self) -> None:
        """Note that a step on the last batch was asked for."""
        if self.device.type == "cuda":
            self._done.append(_mark())

    def arrived(self, seconds: float) -> None:
        """Note that a batch is there, after the host waited for it."""
        if self.device.type == "cuda":
            self._arrived.append(_mark())
        else:
            self._waited += seconds

    def waited(self) -> float:
        """Seconds, since last asked, between the end of a step and the arrival of the next batch."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            gaps = zip(self._done, self._arrived[1:], strict=False)
            self._waited = sum(max(done.elapsed_time(arrived), 0.0) for done, arrived in gaps) / 1000
            self._arrived, self._done = [], []
        seconds, self._waited = self._waited, 0.0
        return seconds


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class HostFeed(Feed):
    """Images in the host's memory: a thread gathers the next batches in pinned memory and copies them over."""

    where = "in the host's memory"

    def __init__(self, train: ImageSet, device: torch.device, batch_size: int) -> None:
        super().__init__(device)
        self._train = train
        pins = device.type == "cuda"
        shape = (_AHEAD + 2, batch_size, *train.images.shape[1:])
        self._staging = torch.empty(shape, dtype=torch.uint8, pin_memory=pins)
        self._copied: list[torch.cuda.Event | None] = [None] * len(self._staging)
        self._stream = torch.cuda.Stream(device) if pins else None

    def batches(self, positions: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """The images at each batch's positions, uint8 on the device, in order."""
        with ThreadPoolExecutor(max_workers=1) as thread:
            tasks = (thread.submit(self._stage, number, where) for number, where in enumerate(positions))
            waiting: deque[Future[tuple[torch.Tensor, torch.cuda.Event | None]]] = deque(islice(tasks, _AHEAD))
            try:
                while waiting:
                    began = time.perf_counter()
                    pixels, copied = waiting.popleft().result()
                    if copied is not None:
                        torch.cuda.current_stream(self.device).wait_event(copied)
                        pixels.record_stream(torch.cuda.current_stream(self.device))
                    self.arrived(time.perf_counter() - began)
                    waiting.extend(islice(tasks, 1))
                    yield pixels
            finally:
                for task in waiting:
                    task.cancel()

    def _stage(self, number: int, positions: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        slot = number % len(self._staging)
        before = self._copied[slot]
        if before is not None:
            before.synchronize()
        staged = self._staging[slot, : len(positions)]
        torch.index_select(self._train.images, 0, positions, out=staged)
        if self._stream is None:
            return staged.clone(), None
        with torch.cuda.stream(self._stream):
            pixels = staged.to(self.device, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record(self._stream)
        self._copied[slot] = copied
        return pixels, copied


class _Files(Dataset[torch.Tensor | UsageError]):
    """Images as worker processes read them; what is wrong comes as it is, since torch would send a traceback."""

    def __init__(self, train: FileImageSet) -> None:
        self._train = train

    def __getitem__(self, place: int) -> torch.Tensor | UsageError:
        try:
            return self._train.read(place)
        except Unreadable as error:
            return UsageError(
                f"cannot read the training image {error.file} any more ({error.reason}): put it back as it was and go "
                "on with --resume"
            )
        except UsageError as error:
            return error


def _batch(read: list[torch.Tensor | UsageError]) -> torch.Tensor | UsageError:
    """The images as one tensor, or what is wrong with the first that cannot be read."""
    images = [image for image in read if isinstance(image, torch.Tensor)]
    wrong = (fault for fault in read if isinstance(fault, UsageError))
    return next(wrong, None) or torch.stack(images)


_STOPS = (signal.SIGINT, signal.SIGTERM)


def _work_for_run(worker: int) -> None:
    """A worker goes on until its run ends: a terminal and `timeout` send a stop to all processes of a group.

    It ends with the process that started it, also where that one is killed. torch's workers look for it too, but
    take whoever is their parent when they first look: one that starts while its run is killed would stay for good.
    """
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_run, daemon=True).start()


def _end_with_run() -> None:
    run = multiprocessing.parent_process()
    assert run is not None
    run.join()
    os._exit(1)


@contextmanager
def _stops_held_back() -> Iterator[None]:
    """Workers start with stops blocked, since one could come before they ignore it; here it comes a little later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class FileFeed(Feed):
    """Images in files: worker processes read and decode the next batches."""

    where = "in their files"

    def __init__(self, train: FileImageSet, device: torch.device) -> None:
        super().__init__(device)
        self._files = _Files(train.take(torch.arange(len(train))))
        self._workers = min(max((os.cpu_count() or 1) - 1, 1), _MOST_WORKERS)

    def batches(self, positions: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """The images at each batch's positions, uint8 on the device, in order."""
        loader: DataLoader[Any] = DataLoader(
            self._files,
            batch_sampler=[where.tolist() for where in positions],
            collate_fn=_batch,
            num_workers=self._workers,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_work_for_run,
        )
        with _stops_held_back():
            source: Any = iter(loader)
        try:
            began = time.perf_counter()
            for pixels in source:
                if isinstance(pixels, UsageError):
                    raise pixels
                moved = pixels.to(self.device, non_blocking=True)
                self.arrived(time.perf_counter() - began)
                yield moved
                began = time.perf_counter()
        finally:
            # Not left to the last reference, which a traceback may hold until the end: there, Python waits for workers.
            source._shutdown_workers()


def check_placement(train: ImageSet, asked: Placement) -> None:
    """Refuse to leave images in files that they are not in."""
    if asked == "files" and not isinstance(train, FileImageSet):
        raise UsageError("only images of folder:PATH can stay in their files: use --placement host")


def place(train: ImageSet, device: torch.device, asked: Placement, batch_size: int) -> tuple[ImageSet, Feed | None]:
    """Put the images on the device where they fit; else leave them where they are, with a feed that brings them."""
    if isinstance(train, FileImageSet) and asked in ("auto", "files"):
        return train.with_labels_on(device), FileFeed(train, device)
    check_placement(train, asked)
    if isinstance(train, FileImageSet):
        train = train.to("cpu")
    if asked == "host" or (asked == "auto" and not _fits(train, device)):
        return train.with_labels_on(device), HostFeed(train, device, batch_size)
    return train.to(device), None


def _fits(train: ImageSet, device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return train.images.numel() <= _DEVICE_SHARE * free


def with_pixels(feed: Feed | None, positions: Sequence[torch.Tensor]) -> Iterator[torch.Tensor | None]:
    """Each batch's images, or None where the device has them all; ends what works ahead when closed."""
    if feed is None:
        yield from (None for _ in positions)
        return
    source = feed.batches(positions)
    with closing(source):  # type: ignore[type-var]
        yield from source
