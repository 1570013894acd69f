"""Capturing work in CUDA graphs."""

from collections.abc import Callable, Sequence

import torch

WARM_UP_RUNS = 3


def warm_up(work: Callable[[], None]) -> None:
    """Run work a few times: this compiles what is to be compiled and lets libraries choose their kernels."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_RUNS):
            work()
    torch.cuda.current_stream().wait_stream(side)


def capture(work: Callable[[], None], touched: Sequence[torch.Tensor]) -> torch.cuda.CUDAGraph:
    """Capture work that reads and writes fixed tensors; `touched` is left as it was found."""
    # Detached: a clone with a history would keep autograd's nodes alive on a stream outside the capture.
    kept = [tensor.detach().clone() for tensor in touched]
    warm_up(work)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    with torch.no_grad():
        for tensor, value in zip(touched, kept, strict=True):
            tensor.copy_(value)
    return graph
