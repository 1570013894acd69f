"""A network called at few sizes: compiled once, each size captured in CUDA graphs, smaller batches filled up."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from probmargin.core.types import Images, Logits
from probmargin.engine.devices import tf32
from probmargin.engine.graphs import capturing, chosen_kernels, warm_up

_FINE = 1024
"""Sizes are powers of four up to this, then its multiples: little is filled up, and few sizes are captured."""


class Slot(Protocol):
    """One size of a network: fixed tensors that are written, run and read."""

    def forward(self, x: Images) -> Logits:
        """Logits of these images, in a tensor that the next call overwrites."""
        ...

    def backward(self, slope: Logits) -> Images:
        """Gradient to the images of the last forward, in a tensor that the next call overwrites."""
        ...


class GraphSlot:
    """A forward pass as one CUDA graph, and the gradient to the images as another.

    Graphs of one pool share memory: what one leaves behind, the next may overwrite.
    """

    def __init__(
        self, network: Callable[[Images], Logits], x: Images, *, with_gradient: bool, pool: Any, rounds: bool
    ) -> None:
        self._x = x.detach().clone(memory_format=torch.channels_last).requires_grad_(with_gradient)
        torch._dynamo.maybe_mark_dynamic(self._x, 0)
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        on_device = torch.cuda.device(x.device)
        with on_device, tf32(convolutions=rounds), chosen_kernels(), torch.set_grad_enabled(with_gradient):
            warm_up(lambda: self._once(network, with_gradient))
            with capturing(self._forward, pool=pool):
                logits = network(self._x)
            self._slope = torch.ones_like(logits)
            if with_gradient:
                with capturing(self._backward, pool=pool):
                    (self._gradient,) = torch.autograd.grad(logits, self._x, self._slope)
        self._logits = logits.detach()

    def _once(self, network: Callable[[Images], Logits], with_gradient: bool) -> None:
        logits = network(self._x)
        if with_gradient:
            torch.autograd.grad(logits.sum(), self._x)

    def forward(self, x: Images) -> Logits:
        """Logits of these images, in a tensor that the next call overwrites."""
        with torch.no_grad():
            self._x.copy_(x)
        self._forward.replay()
        return self._logits

    def backward(self, slope: Logits) -> Images:
        """Gradient to the images of the last forward, in a tensor that the next call overwrites."""
        self._slope.copy_(slope)
        self._backward.replay()
        return self._gradient


class _Replay(torch.autograd.Function):
    """A slot's passes as one differentiable operation."""

    @staticmethod
    def forward(ctx: Any, x: Images, network: "CapturedNetwork") -> Logits:
        ctx.network, ctx.token = network, object()
        ctx.save_for_backward(x)
        return network.run(x, ctx.token).clone()

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return ctx.network.gradient(x, slopes[0], ctx.token), None


class CapturedNetwork:
    """Calls a network at few sizes only; batches between two sizes are filled up with copies of their first image."""

    def __init__(self, make_slot: Callable[[Images, bool], Slot], most: int) -> None:
        self._make_slot, self._most = make_slot, most
        self._slots: dict[tuple[int, bool], Slot] = {}
        self._last: object = None

    def __call__(self, x: Images) -> Logits:
        """Logits; differentiable in the images alone."""
        if len(x) > self._most:
            return torch.cat([self(part) for part in x.split(self._most)])
        count = size_for(len(x), self._most)
        filled = x if count == len(x) else torch.cat([x, x[:1].detach().expand(count - len(x), *x.shape[1:])])
        if torch.is_grad_enabled() and x.requires_grad:
            logits: Logits = _Replay.apply(filled, self)  # type: ignore[no-untyped-call]
            return logits[: len(x)]
        self._last = None
        return self._slot(filled, False).forward(filled)[: len(x)].clone()

    def run(self, x: Images, token: object) -> Logits:
        """Forward with what a gradient needs; the token names whose it is."""
        slot = self._slot(x, True)
        self._last = token
        return slot.forward(x)

    def gradient(self, x: Images, slope: Logits, token: object) -> Images:
        """Gradient of a forward pass, which is run again where another call came between or used it up."""
        slot = self._slot(x, True)
        if self._last is not token:
            slot.forward(x)
        self._last = None
        return slot.backward(slope).clone(memory_format=torch.contiguous_format)

    def _slot(self, x: Images, with_gradient: bool) -> Slot:
        key = len(x), with_gradient
        if key not in self._slots:
            self._last = None
            self._slots[key] = self._make_slot(x, with_gradient)
        return self._slots[key]


def size_for(count: int, most: int) -> int:
    """The size at which a batch of `count` runs.

    >>> [size_for(count, 4096) for count in (1, 65, 256, 257, 1500, 4096)], size_for(600, 700)
    ([64, 256, 256, 1024, 2048, 4096], 700)
    """
    if count > _FINE // 4:
        return min(-(-count // _FINE) * _FINE, most)
    return min(64 if count <= 64 else 256, most)


def captured(network: Callable[[Images], Logits], most: int, *, rounds: bool) -> CapturedNetwork:
    """A network on CUDA over graphs that share memory; whether its float32 `rounds` to TF32 in convolutions."""
    pool = torch.cuda.graph_pool_handle()

    def make_slot(x: Images, with_gradient: bool) -> Slot:
        return GraphSlot(network, x, with_gradient=with_gradient, pool=pool, rounds=rounds)

    return CapturedNetwork(make_slot, most)
