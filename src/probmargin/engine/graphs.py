"""Capturing work in CUDA graphs."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

WARM_UP_RUNS = 3


@cache
def _side_stream(_device: int) -> torch.cuda.Stream:
    """One for all warm-ups of a device: cuBLAS keeps a workspace for every stream it has seen."""
    return torch.cuda.Stream()


def warm_up(work: Callable[[], None]) -> None:
    """Run work a few times: this compiles what is to be compiled and lets libraries choose their kernels."""
    side = _side_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_RUNS):
            work()
    torch.cuda.current_stream().wait_stream(side)


@contextmanager
def chosen_kernels() -> Iterator[None]:
    """Have cuDNN try its kernels and take the quickest, inside this block."""
    found = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = found


@contextmanager
def no_garbage_collected() -> Iterator[None]:
    """Put garbage collection off inside this block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Capture what this thread does; a thread that feeds images meanwhile goes on.

    No garbage is collected meanwhile: an older graph that is freed during a capture spoils it.
    """
    with no_garbage_collected(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        yield


def capture(work: Callable[[], None], touched: Sequence[torch.Tensor]) -> torch.cuda.CUDAGraph:
    """Capture work that reads and writes fixed tensors; `touched` and what is drawn next stay as before."""
    # Detached: a clone with a history would keep autograd's nodes alive on a stream outside the capture.
    kept = [tensor.detach().clone() for tensor in touched]
    graph = torch.cuda.CUDAGraph()
    # On the tensors' own device: a capture on another one is empty, and its replays do nothing.
    device = kept[0].device
    try:
        with torch.cuda.device(device), torch.random.fork_rng(devices=[device]):
            warm_up(work)
            with capturing(graph):
                work()
    finally:
        # Where a capture fails too: what goes on without it must not have trained in the warm-up.
        with torch.no_grad():
            for tensor, value in zip(touched, kept, strict=True):
                tensor.copy_(value)
    return graph
